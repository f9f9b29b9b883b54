"""Convolution against the direct sum: values, wrap-around, gradients, half precision, refusals."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from fractal_ssm.errors import UsageError
from fractal_ssm.ops.convolution import convolve, good_fft_size
from fractal_ssm.ops.convolution import interface as convolution
from fractal_ssm.ops.runtime import backends

BACKENDS = ("torch", "native")


def direct(u, kernel, reverse=None):
    length = u.shape[1]
    toeplitz = torch.zeros(u.shape[2], length, length, dtype=u.dtype)
    for t in range(length):
        for s in range(length):
            if s <= t and t - s < kernel.shape[1]:
                toeplitz[:, t, s] = kernel[:, t - s]
            if s > t and reverse is not None and s - t - 1 < reverse.shape[1]:
                toeplitz[:, t, s] = reverse[:, s - t - 1]
    return torch.einsum("hts,bsh->bth", toeplitz, u)


def test_exact_values():
    u = torch.arange(1.0, 6.0, dtype=torch.float64).view(1, 5, 1)
    y = convolve(u, 0.5 ** torch.arange(5.0, dtype=torch.float64).view(1, 5))
    torch.testing.assert_close(y.flatten(), torch.tensor([1, 2.5, 4.25, 6.125, 8.0625], dtype=torch.float64))


def test_reverse_part_starts_at_lag_minus_one():
    u = torch.eye(4, dtype=torch.float64)[None, :, 2:3]
    kernel = torch.tensor([[10.0, 20.0, 30.0, 40.0]], dtype=torch.float64)
    y = convolve(u, kernel, torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64))
    torch.testing.assert_close(y.flatten(), torch.tensor([2.0, 1.0, 10.0, 20.0], dtype=torch.float64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("length", "lags", "reverse"),
    [(1, 1, None), (1, 3, 2), (2, 2, 2), (3, 3, None), (5, 9, 9), (31, 7, 31), (33, 33, 3), (64, 64, 64)]
    # Around the native sizes 4, 8, 24 (stages of 4, 2 and 3), 48 and 256 (the first of several blocks is 384).
    + [(4, 4, 4), (7, 9, 5), (8, 8, None), (23, 23, 23), (25, 25, 2), (48, 48, 48), (257, 257, 257)],
)
def test_against_the_direct_sum(backend, length, lags, reverse):
    torch.manual_seed(0)
    inputs = [torch.randn(3, length, 2, dtype=torch.float64), torch.randn(2, lags, dtype=torch.float64)]
    if reverse is not None:
        inputs.append(torch.randn(2, reverse, dtype=torch.float64))
    inputs = [tensor.requires_grad_() for tensor in inputs]
    y, wanted = convolve(*inputs, backend=backend), direct(*inputs)
    torch.testing.assert_close(y, wanted, rtol=1e-11, atol=1e-11)
    # A reverse kernel has no effect on a single position.
    used = [tensor for index, tensor in enumerate(inputs) if length > 1 or index < 2]
    weight = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, used, weight), torch.autograd.grad(wanted, used, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [1001, 8760])
def test_long_odd_lengths_against_a_slow_sum(backend, length):
    torch.manual_seed(0)
    u = torch.randn(1, length, 1, dtype=torch.float64)
    kernel = torch.randn(1, length, dtype=torch.float64)
    wanted = torch.nn.functional.conv1d(
        torch.nn.functional.pad(u.transpose(1, 2), (length - 1, 0)), kernel.flip(1)[:, None]
    )
    torch.testing.assert_close(convolve(u, kernel, None, backend), wanted.transpose(1, 2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("features", [1, 15, 16, 40])
@pytest.mark.parametrize("threads", [1, 2])
def test_native_rows_and_threads(features, threads):
    """Fewer features than a row, part of one, several; samples shared between threads where there is one row."""
    generator = torch.Generator().manual_seed(features)
    u = torch.randn(5, 700, features, dtype=torch.float64, generator=generator)
    kernels = torch.randn(2, features, 700, dtype=torch.float64, generator=generator)
    inputs = [tensor.requires_grad_() for tensor in (u, *kernels)]
    weight = torch.randn(u.shape, dtype=torch.float64, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, wanted = (
            (y := convolve(*inputs, backend=backend), *torch.autograd.grad(y, inputs, weight))
            for backend in ("native", "torch")
        )
    finally:
        torch.set_num_threads(before)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("length", [2048, 16384, 65537])
def test_native_error_in_single_precision(length):
    """At most 1.5 times that of torch's own transforms, both against double precision."""
    generator = torch.Generator().manual_seed(length)
    exact = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((1, length, 4), (4, length))]
    exact = [tensor.requires_grad_() for tensor in (*exact, exact[1].detach().flip(1).contiguous())]
    weight = torch.randn(1, length, 4, dtype=torch.float64, generator=generator)

    def run(inputs, backend):
        y = convolve(*inputs, backend=backend)
        return (y, *torch.autograd.grad(y, inputs, weight.to(y.dtype)))

    wanted = run(exact, "torch")
    single = [tensor.detach().float().requires_grad_() for tensor in exact]
    errors = [
        [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(run(single, backend), wanted, strict=True)]
        for backend in ("native", "torch")
    ]
    for ours, theirs in zip(*errors, strict=True):
        assert ours < max(1.5 * theirs, 4e-7)


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_native_gradients_of_a_part_of_the_inputs(needed):
    inputs = [torch.randn(2, 9, 5), torch.randn(5, 9)]
    for tensor, need in zip(inputs, needed, strict=True):
        tensor.requires_grad_(need)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found, expected = (
        torch.autograd.grad(convolve(*inputs, backend=backend).square().sum(), wanted) for backend in BACKENDS
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_native_reads_lazily_negated_tensors():
    negated = torch.randn(2, 9, 5, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    kernel = torch.randn(5, 9)
    torch.testing.assert_close(convolve(negated, kernel, backend="native"), convolve(negated.clone(), kernel))


def test_tiles_of_the_batch_give_the_same(monkeypatch):
    torch.manual_seed(0)
    u = torch.randn(5, 20, 3, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    whole = convolve(u, kernel, backend="torch")
    whole_gradients = torch.autograd.grad(whole.square().sum(), (u, kernel))
    monkeypatch.setattr(convolution, "_CPU_TILE", 2 * 3 * 40)
    tiled = convolve(u, kernel, backend="torch")
    torch.testing.assert_close(tiled, whole)
    for a, b in zip(torch.autograd.grad(tiled.square().sum(), (u, kernel)), whole_gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_derivatives_of_second_order():
    torch.manual_seed(0)
    u = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    kernels = [torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for backend in BACKENDS:
        run = partial(convolve, backend=backend)
        assert gradcheck(run, (u, *kernels))
        assert gradgradcheck(run, (u, *kernels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_computed_in_float32(dtype):
    torch.manual_seed(0)
    u, kernel = torch.randn(2, 1000, 3), torch.randn(3, 1000) * 0.99 ** torch.arange(1000)
    wanted = convolve(u, kernel)
    with torch.autocast("cpu", torch.bfloat16):
        assert convolve(u, kernel).dtype == torch.float32
        torch.testing.assert_close(convolve(u, kernel), wanted)
    y = convolve(u.to(dtype), kernel)
    assert y.dtype == dtype
    assert (y.float() - wanted).abs().max() < 2e-2 * wanted.abs().max()


def test_the_future_does_not_leak():
    u = torch.randn(1, 100, 1, generator=torch.Generator().manual_seed(0))
    kernel = torch.ones(1, 100)
    changed = u.clone()
    changed[0, 60] += 100.0
    difference = (convolve(changed, kernel) - convolve(u, kernel)).abs()
    assert difference[0, :60].max() < 1e-4
    assert difference[0, 60:].min() > 99.0


def test_strided_input():
    u = torch.randn(4, 30, 6, dtype=torch.float64)
    kernel = torch.randn(3, 15, dtype=torch.float64)
    part = u[:, ::2, ::2]
    torch.testing.assert_close(convolve(part, kernel), convolve(part.contiguous(), kernel))
    expanded = u[:1, :15, :3].expand(4, 15, 3)
    torch.testing.assert_close(convolve(expanded, kernel), convolve(expanded.contiguous(), kernel))


def test_sizes_are_smooth_and_large_enough():
    for n in (1, 2, 7, 11, 8191, 8193, 32767):
        size = good_fft_size(n)
        assert size >= n
        assert size % 2 == 0
        for prime in (2, 3, 5, 7):
            while size % prime == 0:
                size //= prime
        assert size == 1


def test_refusals():
    with pytest.raises(UsageError, match="convolve takes"):
        convolve(torch.ones(2, 5, 3), torch.ones(2, 5))
    with pytest.raises(UsageError, match="convolve takes"):
        convolve(torch.ones(2, 0, 3), torch.ones(3, 5))
    with pytest.raises(UsageError, match="Did you mean 'native'"):
        convolve(torch.ones(2, 5, 3), torch.ones(3, 5), backend="nativ")
    with pytest.raises(UsageError, match="it runs on a CPU only"):
        convolve(torch.ones(2, 5, 3, device="meta"), torch.ones(3, 5, device="meta"), backend="native")


def test_tensors_without_memory_go_through_torch():
    """As where somebody asks what a model would take: nothing is there that native code could read."""
    with FakeTensorMode():
        y = convolve(torch.empty(2, 5, 6, requires_grad=True), torch.empty(6, 5))
        y.sum().backward()
    assert y.shape == (2, 5, 6)


def test_without_numba_torch_is_used(monkeypatch):
    u, kernel = torch.randn(2, 5, 6), torch.randn(6, 5)
    wanted = convolve(u, kernel, backend="torch")
    monkeypatch.setattr(backends, "numba_obstacle", lambda: "Run: pip install numba")
    monkeypatch.setattr(convolution, "_native", lambda: pytest.fail("numba is not there"))
    assert torch.equal(convolve(u, kernel), wanted)
    with pytest.raises(UsageError, match="pip install numba"):
        convolve(u, kernel, backend="native")
