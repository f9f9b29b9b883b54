"""The fused SSM kernels against the float64 loop. The interpreter takes a millisecond an operation whatever its size,
so chunks are two steps long: five steps are two blocks of chunks, the last one cut short."""

import pytest
import torch
from test_ssm import loop

from fractal_ssm.ops.fused import ssm, triton_backend
from fractal_ssm.ops.scan import triton_backend as scan_backend

B, H, H_OUT, P = 2, 3, 2, 3


def cut(rows=2, **changes):
    small = {"block_m": 2, "block_p": 4, "block_k": 8, "block_h": 4, "sum_m": 4, "sum_h": 4, "warps": 1}
    return triton_backend.Plan(rows=rows, **small | changes)


@pytest.fixture
def fused(monkeypatch):
    """Switches the kernels on, cut as the returned function says."""

    def scan_plan(batch, length, width, processors, adjoint):
        return scan_backend.Plan(block_l=4, block_w=8, rows=1 << 20, chunks=1)

    def choose(plan):
        monkeypatch.setattr(triton_backend, "plan", lambda *sizes: plan)
        return plan

    monkeypatch.setattr(triton_backend, "FUSED", True)
    monkeypatch.setattr(scan_backend, "plan", scan_plan)
    choose(cut())
    return choose


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
    found = torch.autograd.grad(
        [y for y, _ in chosen], tensors, [seed for _, seed in chosen], allow_unused=True, materialize_grads=True
    )
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_every_length_forward_and_backward(fused, length, reverse):
    assert max(deviations(inputs(length, seed=length), reverse=reverse)) < 1e-6


def test_the_kernels_are_what_runs(fused, monkeypatch):
    def instead(*arguments):
        raise NotImplementedError

    monkeypatch.setattr(triton_backend, "forward", instead)
    with pytest.raises(NotImplementedError), torch.no_grad():
        ssm(*inputs(3), backend="triton")


@pytest.mark.parametrize("which", [(True, False), (False, True)])
def test_gradient_through_one_output_alone(fused, which):
    assert max(deviations(inputs(3), which=which)) < 1e-6


def test_without_an_initial_state(fused):
    tensors = inputs(5)[:4]
    assert max(deviations(tensors, conj_sym=False)) < 1e-6


def test_lengths_of_samples(fused):
    assert max(deviations(inputs(5), lengths=torch.tensor([3, 1]))) < 1e-6


def test_gates_of_each_sample_s_own(fused):
    assert max(deviations(inputs(5, per_sample=True), reverse=True)) < 1e-6


def test_more_modes_and_features_than_a_block_holds(fused):
    fused(cut(block_p=2, block_k=2, block_h=2, sum_h=2))
    assert max(deviations(inputs(3, modes=3, features=3, out_features=3))) < 1e-6


def test_several_blocks_of_chunks_a_program(fused, monkeypatch):
    """One program for the whole sum, and one partial sum a block, agree with the loop."""
    fused(cut(sum_m=1))
    for programs in (1, 64):
        monkeypatch.setattr(triton_backend, "_PROGRAMS", programs)
        assert max(deviations(inputs(3))) < 1e-6


def test_long_sequence_with_a_slow_mode(fused):
    """513 steps in 33 chunks: no worse than three times plain float32, in values and in every gradient."""
    fused(cut(rows=16, block_m=64, sum_m=64))
    tensors = inputs(513)
    plain = deviations(tensors, backend="torch")
    for ours, theirs in zip(deviations(tensors), plain, strict=True):
        assert ours < 3 * theirs + 1e-7


def test_half_precision_input_is_cast_when_loaded(fused):
    u, *rest = inputs(5)
    half = u.half()
    y, last = ssm(half, *rest, backend="triton")
    expected, state = ssm(half.float(), *rest, backend="triton")
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, expected.half(), rtol=0, atol=0)
    torch.testing.assert_close(last, state, rtol=0, atol=0)


def test_second_derivatives(fused):
    def penalty(tensors, backend):
        y, _ = ssm(*tensors, backend=backend)
        (gu,) = torch.autograd.grad(y.square().sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(gu.square().sum(), tensors)

    found, expected = ([t.requires_grad_() for t in inputs(2)] for _ in range(2))
    torch.testing.assert_close(penalty(found, "triton"), penalty(expected, "torch"), rtol=1e-4, atol=1e-4)


def test_only_the_borders_of_chunks_are_kept(fused):
    fused(cut(rows=4))
    tensors = [t.requires_grad_() for t in inputs(10)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        ssm(*tensors, backend="triton")
    assert (B, 3, P, 2) in kept and not any(shape[:2] == (B, 10) and shape != (B, 10, H) for shape in kept)


def test_same_bits_twice(fused):
    tensors = [t.requires_grad_() for t in inputs(2)]
    runs = [torch.autograd.grad(ssm(*tensors, backend="triton")[0].sum(), tensors) for _ in range(2)]
    torch.testing.assert_close(*runs, rtol=0, atol=0)
