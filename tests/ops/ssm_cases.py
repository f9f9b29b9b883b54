"""Inputs of the fused SSM, a loop over time that gives what it should, and the size of its pieces."""

import torch

from fractal_ssm.ops.ssm import pieces

B, L, H, H_OUT, P = 3, 17, 4, 3, 5
SHAPES = {"constant": (P,), "per_sample": (B, 1, P), "shared": (L, P), "full": (B, L, P)}


def inputs(mode="constant", real=torch.float64, length=L):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, dtype=real.to_complex()):
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    shape = tuple(length if n == L else n for n in SHAPES[mode])
    a = torch.polar(torch.full(shape, 0.95, dtype=real), 6 * torch.rand(shape, generator=generator, dtype=real))
    return [normal(B, length, H, dtype=real), a.requires_grad_(), normal(P, H), normal(H_OUT, P), normal(B, P)]


def loop(u, a, B_bar, C, x0, reverse=False, factor=2.0, gamma=None, lengths=None, D=None):
    """y and the last state, one step after another; a row of `a` or `gamma` is looked up by its own rank."""

    def at(t, k):
        return t if t.dim() == 1 else t[k] if t.dim() == 2 else t[:, k if t.shape[1] > 1 else 0]

    state, ys, xs = x0, [], []
    # Taken apart at once: the gradient of every single u[:, k] would be a tensor as large as u.
    rows = u.unbind(1)
    steps = range(u.shape[1])
    for k in reversed(steps) if reverse else steps:
        v = rows[k].to(B_bar.dtype) @ B_bar.T
        state = at(a, k) * state + (v if gamma is None else at(gamma, k) * v)
        xs.append(state)
        ys.append(factor * (state @ C.T).real + (0 if D is None else D * rows[k]))
    last = state if lengths is None else torch.stack([xs[n - 1][i] for i, n in enumerate(lengths.tolist())])
    return torch.stack(ys[::-1] if reverse else ys, 1), last


def check(tensors, ours, expected, tolerance=1e-11):
    seeds = [torch.randn_like(t) for t in expected]
    found = [*ours, *torch.autograd.grad(ours, tensors, seeds)]
    wanted = [*expected, *torch.autograd.grad(expected, tensors, seeds, retain_graph=True)]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert ((one - other).abs().max() / other.abs().max()).item() < tolerance


def cut(monkeypatch, most):
    """Let a piece have that many positions, and twice as many where all states are kept."""
    for states in ("_STATES", "_STATES_REMADE"):
        monkeypatch.setattr(pieces, states, 0)
    for fewest in ("_FEWEST", "_FEWEST_REMADE"):
        monkeypatch.setattr(pieces, fewest, most)
