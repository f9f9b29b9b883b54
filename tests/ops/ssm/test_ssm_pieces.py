"""The fused SSM piece by piece: parts of a sample, single samples, several; gain, feedthrough, recomputation."""

import pytest
import torch
from ssm_cases import H_OUT, SHAPES, B, H, L, P, check, cut, inputs, loop

from fractal_ssm.ops.ssm import passes, ssm
from fractal_ssm.ops.ssm.native import feedthrough_gradients

# Positions of a piece: parts of a sample (the last one short), one sample, two samples and one.
SIZES = [1, 5, 16, L, 2 * L + 3]


@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_piece_by_piece_equals_the_loop(monkeypatch, mode, reverse, rest, checkpoint):
    u, a, B_bar, C, x0 = inputs(mode)
    tensors = [u, a, B_bar, C] if rest else [u, a, B_bar, C, x0]
    start = torch.zeros_like(x0) if rest else x0
    for most in SIZES:
        cut(monkeypatch, most)
        check(tensors, ssm(*tensors, reverse=reverse, checkpoint=checkpoint), loop(*tensors[:4], start, reverse))


@pytest.mark.parametrize("features", [1, 2, 23])
@pytest.mark.parametrize("modes", [1, 3, 9])
def test_more_and_fewer_features_than_states(features, modes):
    """Sums of products are laid out by which side is longer."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, L, features), (modes,), (modes, features), (H_OUT, modes), (B, modes)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.complex128) / 2 for shape in shapes]
    tensors = [tensors[0].real.contiguous(), *tensors[1:]]
    tensors = [t.requires_grad_() for t in tensors]
    check(tensors, ssm(*tensors), loop(*tensors), tolerance=1e-10)


def gains(shape, real):
    gamma = torch.rand(shape, dtype=torch.float64 if real else torch.complex128)
    return gamma.requires_grad_()


@pytest.mark.parametrize("shape", [(P,), (B, 1, P), (L, P), (1, L, P), (B, L, P)])
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_gain_and_feedthrough_piece_by_piece(monkeypatch, shape, real, checkpoint):
    u, a, B_bar, _, x0 = inputs("shared")
    C, D = torch.randn(H, P, dtype=torch.complex128).requires_grad_(), torch.randn(H, dtype=torch.float64)
    tensors, gamma, D = [u, a, B_bar, C, x0], gains(shape, real), D.requires_grad_()
    expected = loop(*tensors, gamma=gamma if len(shape) < 3 or shape[0] > 1 else gamma[0], D=D)
    for most in SIZES:
        cut(monkeypatch, most)
        check([*tensors, gamma, D], ssm(*tensors, input_gain=gamma, checkpoint=checkpoint, D=D), expected)


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
@pytest.mark.parametrize("which", [0, 1])
def test_feedthrough(backend, which):
    u, a, B_bar, _, x0 = inputs()
    C, D = torch.randn(H, P, dtype=torch.complex128).requires_grad_(), torch.randn(H, dtype=torch.float64)
    tensors = [u, a, B_bar, C, x0, D.requires_grad_()]
    found, expected = ssm(*tensors[:5], backend=backend, D=D)[which], loop(*tensors[:5], D=D)[which]
    seed = torch.randn_like(expected)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    for one, other in zip(
        torch.autograd.grad(found, tensors, seed, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, tensors, seed, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


# Rows around those of a task and of a tile; one thread and several.
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1023, 1025, 3000])
@pytest.mark.parametrize("features", [1, 7, 32])
@pytest.mark.parametrize("real", [torch.float32, torch.float64])
def test_gradients_of_the_feedthrough(count, features, real):
    generator = torch.Generator().manual_seed(0)
    u, gy = torch.randn(2, count, features, generator=generator, dtype=real).unbind()
    D, gu = torch.randn(features, generator=generator, dtype=real), torch.empty_like(u)
    gD, exact = feedthrough_gradients(u, gy, D, gu), (u.double() * gy.double()).sum(0)
    torch.testing.assert_close(gu, gy * D, rtol=0, atol=0)
    assert gD.dtype == real
    assert (gD - exact).abs().max() <= 4 * torch.finfo(real).eps * (u * gy).abs().sum(0).max()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_lengths_and_one_output_piece_by_piece(monkeypatch, which, checkpoint):
    tensors, lengths = inputs(), torch.tensor([17, 5, 6])
    wanted = loop(*tensors, lengths=lengths)[which]
    seed = torch.randn_like(wanted)
    for most in SIZES:
        cut(monkeypatch, most)
        found = ssm(*tensors, lengths=lengths, checkpoint=checkpoint)[which]
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
        for one, other in zip(
            torch.autograd.grad(found, tensors, seed, allow_unused=True, materialize_grads=True),
            torch.autograd.grad(wanted, tensors, seed, allow_unused=True, materialize_grads=True, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_seeds_and_inputs_that_are_not_contiguous(monkeypatch):
    """An expanded gradient, and an input whose rows lie apart: only pieces of them are copied."""
    cut(monkeypatch, 5)
    u, *others = inputs()
    u = u.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    for tensors in ([u, *others], [u.detach()[..., :1].expand(B, L, H).requires_grad_(), *others]):
        found = torch.autograd.grad(ssm(*tensors)[0].sum(), tensors)
        torch.testing.assert_close(found, torch.autograd.grad(loop(*tensors)[0].sum(), tensors))


@pytest.mark.parametrize("gain", [False, True])
def test_recomputation_holds_the_states_of_a_piece_at_a_time(monkeypatch, gain):
    """In neither direction does the operator make states of more than ten positions at a time."""
    made = []
    make = passes.Prepared.drive
    monkeypatch.setattr(passes.Prepared, "drive", lambda *parts: (made.append(parts[3].shape), make(*parts)))
    cut(monkeypatch, 10)
    tensors = inputs(length=1600)
    gamma = torch.rand(1600, P, dtype=torch.float64).requires_grad_() if gain else None
    torch.autograd.grad(ssm(*tensors, input_gain=gamma, checkpoint=True)[0].sum(), tensors)
    assert len(made) == 2 * B * 160
    assert max(made) == (1, 10, P)


def test_a_batch_of_no_samples():
    u, *others = inputs()
    y, last = ssm(u[:0], *others[:3])
    assert y.shape == (0, L, H_OUT) and last.shape == (0, P)
    assert torch.autograd.grad(y.sum(), others[1])[0].abs().max() == 0


def test_recomputation_of_one_piece_gives_the_same_bits():
    tensors = inputs(real=torch.float32)
    found = [torch.autograd.grad(ssm(*tensors, checkpoint=flag)[0].sum(), tensors) for flag in (False, True)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_recomputation_keeps_no_states(monkeypatch):
    cut(monkeypatch, 10)

    def kept(flag: bool) -> int:
        sizes = []
        pack = lambda t: sizes.append(t.numel() if t.data_ptr() != tensors[0].data_ptr() else 0)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (pack(t), t)[1], lambda t: t):
            ssm(*tensors, checkpoint=flag)
        return sum(sizes)

    tensors = inputs(length=1000)
    # 99 states between parts; and a, B_bar, C, x0.
    assert kept(True) < 200 + 99 * B * P < 1000 * B * P <= kept(False)


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_operator_contract(monkeypatch, extras, checkpoint):
    cut(monkeypatch, 5)
    u, a, B_bar, _, x0 = inputs()
    C, D, gamma = inputs()[2].detach()[:, :H].t().contiguous().requires_grad_(), None, None
    if extras:
        D, gamma = torch.ones(H, dtype=torch.float64).requires_grad_(), torch.rand(1, L, P).to(a.dtype).requires_grad_()
    arguments = (u, a[None, None].detach().requires_grad_(), B_bar, C, D, gamma, x0, None, False, 2.0)
    torch.library.opcheck(torch.ops.fractal_ssm.ssm.default, (*arguments, "native", checkpoint))
