"""Vandermonde sums against the direct complex128 form: values, gradients, precision, refusals."""

import math
import shutil

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from fractal_ssm.errors import UsageError
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum

LENGTHS = [1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 1000]


def direct(coefficient, w, length):
    powers = w[..., None] ** torch.arange(length)
    return 2 * (coefficient[..., None] * powers).sum(-2).real


def modes(H, P, seed=0, smallest=0.0):
    generator = torch.Generator().manual_seed(seed)
    radius = smallest + (1 - smallest) * torch.rand(H, P, dtype=torch.float64, generator=generator)
    phase = 6 * torch.rand(H, P, dtype=torch.float64, generator=generator)
    w = torch.polar(radius, phase)
    coefficient = torch.randn(2, H, P, dtype=torch.complex128, generator=generator)
    return coefficient.requires_grad_(), w.requires_grad_()


@pytest.mark.parametrize("length", LENGTHS)
def test_kernel_and_gradients(length):
    coefficient, w = modes(3, 5, smallest=0.9)
    fast, slow = vandermonde(coefficient, w, length), direct(coefficient, w, length)
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-11)
    weight = torch.randn_like(slow)
    for ours, theirs in zip(
        torch.autograd.grad(fast, (coefficient, w), weight),
        torch.autograd.grad(slow, (coefficient, w), weight),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("newest_last", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_sum_and_gradients(length, newest_last):
    _, w = modes(3, 5, smallest=0.9)
    sequence = torch.randn(2, 3, length, dtype=torch.float64, requires_grad=True)
    fast = vandermonde_sum(sequence, w, newest_last)
    ordered = sequence.flip(-1) if newest_last else sequence
    slow = (ordered[..., None, :] * w[..., None] ** torch.arange(length)).sum(-1)
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-11)
    weight = torch.randn_like(slow)
    for ours, theirs in zip(
        torch.autograd.grad(fast, (sequence, w), weight), torch.autograd.grad(slow, (sequence, w), weight), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_derivatives_of_second_order():
    coefficient, w = modes(2, 3, smallest=0.5)
    assert gradcheck(lambda c, w: vandermonde(c, w, 6), (coefficient, w))
    assert gradgradcheck(lambda c, w: vandermonde(c, w, 6), (coefficient, w))
    sequence = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(vandermonde_sum, (sequence, w))


def test_a_mode_at_zero_has_a_finite_gradient():
    w = torch.zeros(1, 1, dtype=torch.complex128, requires_grad=True)
    coefficient = torch.full((1, 1), 1.5 + 0j, dtype=torch.complex128)
    kernel = vandermonde(coefficient, w, 5)
    assert kernel.tolist() == [[3.0, 0.0, 0.0, 0.0, 0.0]]
    kernel[0, 1].backward()
    assert w.grad.item() == 3.0


def test_phase_at_path_x_length():
    # lambda dt = 0.1 (-0.01 + 31 pi i) at L = 16,384: a float32 exponent is off by 1e-2 at the end.
    w = torch.exp(torch.tensor([[0.1 * complex(-0.01, 31 * math.pi)]], dtype=torch.complex128))
    coefficient = torch.ones(1, 1, dtype=torch.complex64)
    exact = vandermonde(coefficient.to(torch.complex128), w, 16384)
    single = vandermonde(coefficient, w, 16384)
    assert single.dtype == torch.float32
    assert ((single - exact).abs().max() / exact.abs().max()).item() < 2e-6


def test_float32_error_against_float64():
    coefficient, w = modes(8, 32, smallest=0.99)
    grad = torch.randn(2, 8, 4096, dtype=torch.float64)
    exact = vandermonde(coefficient, w, 4096)
    single = vandermonde(coefficient.to(torch.complex64), w, 4096)
    assert (single - exact).abs().max() < 2e-6 * exact.abs().max()
    wanted = torch.autograd.grad(exact, (coefficient, w), grad)
    given = torch.autograd.grad(single, (coefficient, w), grad.float())
    for a, b in zip(given, wanted, strict=True):
        assert (a - b).abs().max() < 1e-5 * b.abs().max()


def test_strong_decay_leaves_no_denormal_tables():
    from fractal_ssm.ops.vandermonde.interface import _tables

    w = torch.full((1, 1), 0.9 + 0j, dtype=torch.complex128)
    for table in _tables(w, 4096, 1, torch.complex64):
        parts = torch.view_as_real(table).abs()
        assert not ((parts > 0) & (parts < 1e-19)).any()


@pytest.mark.parametrize("arguments", [(3, 4, 5, "triton"), (3, 4, 0, "auto"), (2, 4, 5, "auto")])
def test_refusals(arguments):
    H, P, length, backend = arguments
    with pytest.raises(UsageError):
        vandermonde(torch.ones(3, 4, dtype=torch.complex64), torch.ones(H, P, dtype=torch.complex128), length, backend)
    with pytest.raises(UsageError, match="vandermonde_sum takes"):
        vandermonde_sum(torch.ones(3), torch.ones(3, 4, dtype=torch.complex128))


C = torch.ones(3, 4, dtype=torch.complex64)


@pytest.mark.parametrize("length", [2.5, 5.0, True, None, "5", -1])
def test_a_length_is_a_whole_number(length):
    with pytest.raises(UsageError, match="a whole number >= 1"):
        vandermonde(C, C, length)


def test_a_length_of_numpy_counts_too():
    assert torch.equal(vandermonde(C, C, np.int64(5)), vandermonde(C, C, 5))


@pytest.mark.parametrize(
    ("coefficient", "w"),
    [(C[:0], C[:0]), (C[:, :0], C[:, :0]), (C.real, C), (C, C.real), (C.to_sparse(), C), ([1j], C), (C.to("meta"), C)],
)
def test_coefficients_that_do_not_fit(coefficient, w):
    with pytest.raises(UsageError, match="vandermonde (takes|needs its tensors on one device)"):
        vandermonde(coefficient, w, 5)


@pytest.mark.parametrize(
    ("sequence", "w"),
    [
        (torch.ones(3, 5, dtype=torch.int64), C),
        (torch.ones(3, 5, dtype=torch.bfloat16), C),
        (torch.ones(3, 5, dtype=torch.complex64), C),
        (torch.ones(3, 5), C.real),
        (torch.ones(0, 5), C[:0]),
        (torch.ones(3, 5), C[:, :0]),
        (torch.ones(3, 5), [1j]),
        (torch.ones(3, 5), C.to_sparse()),
    ],
)
def test_sequences_that_do_not_fit(sequence, w):
    with pytest.raises(UsageError, match="vandermonde_sum takes"):
        vandermonde_sum(sequence, w)


def test_keops_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"g\+\+"):
        vandermonde(torch.ones(1, 1, dtype=torch.complex64), torch.ones(1, 1, dtype=torch.complex128), 4, "keops")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="KeOps compiles with g++")
def test_keops_gives_the_same(capfd):
    coefficient, w = modes(2, 3, smallest=0.5)
    kernel = vandermonde(coefficient, w, 9, "keops")
    torch.testing.assert_close(kernel, direct(coefficient, w, 9), rtol=1e-10, atol=1e-10)
    w.data[0, 0] = 0.0
    results = [vandermonde(coefficient, w.requires_grad_(), 9, backend) for backend in ("keops", "torch")]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(k.sum(), w)[0] for k in results), rtol=1e-8, atol=1e-8)
    assert capfd.readouterr().out == ""
