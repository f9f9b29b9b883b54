"""Inputs of the fused SSM kernels, and how far their results are from the float64 loop's. The interpreter takes a
millisecond an operation whatever its size, so chunks are two steps long: five steps are two blocks of chunks, the last
one cut short."""

import torch
from ssm_cases import loop

from fractal_ssm.ops.ssm import ssm
from fractal_ssm.ops.ssm import triton as triton_backend

B, H, H_OUT, P = 2, 3, 2, 3


def cut(rows=2, **changes):
    small = {"block_m": 2, "block_p": 4, "block_k": 8, "block_h": 4, "sum_m": 4, "sum_h": 4, "warps": 1}
    return triton_backend.Plan(rows=rows, **small | changes)


def inputs(length, modes=P, features=H, out_features=H_OUT, per_sample=False, seed=0):
    """u, Lambda_bar, B_bar, C, x0 in single precision; |a| is 1 - 1e-5 for the first mode, 0 for the second."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, dtype=torch.complex64):
        return torch.randn(shape, generator=generator, dtype=dtype)

    radius = 0.5 + 0.5 * torch.rand((B, 1, modes) if per_sample else (modes,), generator=generator)
    radius[..., 0], radius[..., 1] = 1 - 1e-5, 0.0
    a = torch.polar(radius, 6 * torch.rand(radius.shape, generator=generator))
    u = normal(B, length, features, dtype=torch.float32)
    return [u, a, normal(modes, features), normal(out_features, modes), normal(B, modes)]


def double(t):
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64).requires_grad_()


def deviations(tensors, which=(True, True), lengths=None, reverse=False, conj_sym=True, backend="triton"):
    """Largest deviation of y, x_last and every gradient from the loop's, each over its largest entry."""
    ours = [t.detach().requires_grad_() for t in tensors]
    wide = [double(t) for t in tensors]
    found = ssm(*ours, reverse=reverse, conj_sym=conj_sym, lengths=lengths, backend=backend)
    start = wide[4] if len(wide) > 4 else torch.zeros(B, tensors[2].shape[0], dtype=torch.complex128)
    expected = loop(*wide[:4], start, reverse=reverse, factor=2.0 if conj_sym else 1.0, lengths=lengths)
    torch.manual_seed(0)
    seeds = [torch.randn_like(t) for t in found]
    pairs = [(*found, *gradients(found, ours, seeds, which)), (*expected, *gradients(expected, wide, seeds, which))]
    out = []
    for one, other in zip(*pairs, strict=True):
        assert one.shape == other.shape
        scale = other.abs().max().item() or 1.0
        error = (one - other).abs().max().item() / scale
        out.append(float("inf") if error != error else error)
    return out


def gradients(outputs, tensors, seeds, which):
    chosen = [(y, seed.to(y.dtype)) for y, seed, take in zip(outputs, seeds, which, strict=True) if take]
    return torch.autograd.grad(
        [y for y, _ in chosen], tensors, [seed for _, seed in chosen], allow_unused=True, materialize_grads=True
    )
