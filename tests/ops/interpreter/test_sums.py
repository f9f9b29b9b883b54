"""The Vandermonde and Cauchy kernels in the interpreter against double precision: values, gradients, long lengths."""

import math

import pytest
import torch
from cauchy_cases import draw
from torch.autograd import gradcheck, gradgradcheck

from fractal_ssm import S4, S4D, UsageError
from fractal_ssm.ops.cauchy import dplr_response
from fractal_ssm.ops.vandermonde import triton as triton_vandermonde
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum


def modes(H, N, smallest=0.9, rows=2):
    generator = torch.Generator().manual_seed(H + N)
    radius = smallest + (1 - smallest) * torch.rand(H, N, dtype=torch.float64, generator=generator)
    phase = 6 * torch.rand(H, N, dtype=torch.float64, generator=generator)
    coefficient = torch.randn(rows, H, N, dtype=torch.complex128, generator=generator)
    return coefficient.requires_grad_(), torch.polar(radius, phase).requires_grad_()


def single(tensor):
    return tensor.detach().to(torch.complex64 if tensor.is_complex() else torch.float32).requires_grad_()


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def check_gradients(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 3 * tolerance * max(other.abs().max().item(), 1e-3)


# 16 is a row of the least tile, 17 modes are more than are joined at a time, 1,025 and 4,097 are more than a tile.
SIZES = [(1, 1, 1), (3, 5, 2), (1, 17, 15), (2, 3, 17), (1, 2, 257), (1, 1, 1025), (1, 1, 4097)]


@pytest.mark.parametrize(("H", "N", "length"), SIZES)
def test_vandermonde(H, N, length):
    coefficient, w = modes(H, N)
    powers = w[..., None] ** torch.arange(length)
    wanted = 2 * (coefficient[..., None] * powers).sum(-2).real
    weight = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (coefficient, w), weight)
    for C, tolerance in ((coefficient, 1e-11), (single(coefficient), 2e-6)):
        kernel = vandermonde(C, w, length, "triton")
        assert error(kernel, wanted) < tolerance
        check_gradients(torch.autograd.grad(kernel, (C, w), weight.to(kernel)), gradients, tolerance)


@pytest.mark.parametrize("newest_last", [False, True])
@pytest.mark.parametrize(("H", "N", "length"), SIZES)
def test_vandermonde_sum(H, N, length, newest_last):
    _, w = modes(H, N)
    sequence = torch.randn(2, H, length, dtype=torch.float64, requires_grad=True)
    ordered = sequence.flip(-1) if newest_last else sequence
    wanted = (ordered[..., None, :] * w[..., None] ** torch.arange(length)).sum(-1)
    weight = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (sequence, w), weight)
    for s, tolerance in ((sequence, 1e-11), (single(sequence), 2e-6)):
        found = vandermonde_sum(s, w, newest_last, "triton")
        assert error(found, wanted) < tolerance
        check_gradients(torch.autograd.grad(found, (s, w), weight.to(found)), gradients, tolerance)


def test_derivatives_of_second_order_and_a_mode_at_zero():
    coefficient, w = modes(1, 2, smallest=0.5, rows=1)
    w.data[0, 0] = 0.0
    assert gradcheck(lambda c, w: vandermonde(c, w, 5, "triton"), (coefficient, w), fast_mode=True)
    assert gradgradcheck(lambda c, w: vandermonde(c, w, 5, "triton"), (coefficient, w), fast_mode=True)


def test_powers_of_65537_positions_lose_no_digits():
    """|w| of 1, 1 - 1e-5 and 1 - 1e-3 with phases up to the fastest: an exponent l log w in float32 is off by 1e-2."""
    length = 65537
    w = torch.polar(
        torch.tensor([[1.0, 1 - 1e-5, 1 - 1e-5, 1 - 1e-3]], dtype=torch.float64),
        torch.tensor([[0.1, 3.1, 2.0, math.pi * 0.7]], dtype=torch.float64),
    ).requires_grad_()
    coefficient = torch.ones(1, 4, dtype=torch.complex64, requires_grad=True)
    double = coefficient.detach().to(torch.complex128).requires_grad_()
    found, exact = vandermonde(coefficient, w, length, "triton"), vandermonde(double, w, length, "torch")
    assert error(found, exact) < 1e-6
    assert error(found[:, -100:], exact[:, -100:]) < 1e-6
    weight = torch.randn(exact.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = torch.autograd.grad(found, (coefficient, w), weight.float())
    theirs = torch.autograd.grad(exact, (double, w), weight)
    # A sum of 65,537 terms of either sign: relative to the root of the sum of squares, which is what rounding sees.
    for one, other in zip(ours, theirs, strict=True):
        assert ((one - other).abs() / other.abs().max()).max() < 2e-6


def test_an_exponent_in_single_precision_would_not_pass():
    w = torch.polar(torch.tensor([[1.0]]), torch.tensor([[3.1]]))
    position = torch.arange(65537)
    naive = torch.cos(3.1 * position.float())
    exact = vandermonde(torch.full((1, 1), 0.5 + 0j, dtype=torch.complex128), w.to(torch.complex128), 65537)
    assert error(naive, exact[0]) > 1e-3


# Two directions of rank 1 have 12 rows of weights, four of rank 2 have 36: more than a block of 16.
@pytest.mark.parametrize(
    ("rank", "directions", "H", "N", "length"),
    [(1, 1, 2, 3, 1), (1, 2, 1, 17, 9), (2, 4, 1, 3, 33), (1, 1, 1, 2, 2100)],
)
def test_cauchy(rank, directions, H, N, length):
    values = draw(rank, directions, H, N, seed=rank + directions)
    wanted = dplr_response(*values, length, backend="torch")
    weight = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, values, weight)
    for low, tolerance in ((False, 1e-11), (True, 2e-5)):
        given = [single(value) for value in values] if low else values
        found = dplr_response(*given, length, backend="triton")
        assert error(found, wanted) < tolerance
        # At length 1 the step cancels out of the response.
        floor = 0.1 * max(gradient.abs().max().item() for gradient in gradients)
        for one, other in zip(torch.autograd.grad(found, given, weight.to(found)), gradients, strict=True):
            assert (one - other).abs().max() < 5 * tolerance * max(other.abs().max().item(), floor)


def test_cauchy_is_as_exact_as_the_plain_form():
    torch.manual_seed(0)
    values = [value.detach() for value in draw(1, 1, 1, 4, seed=2)]
    values[0] = torch.tensor([[-0.5 + 1j, -0.5 + 30j, -0.5 + 200j, -0.5 + 1300j]], dtype=torch.complex128)
    values[5] = torch.tensor([0.001], dtype=torch.float64)
    exact = dplr_response(*values, 16384, backend="torch")
    low = [value.to(torch.complex64 if value.is_complex() else torch.float32) for value in values]
    ours, plain = (error(dplr_response(*low, 16384, backend=name), exact) for name in ("triton", "torch"))
    assert ours < 2 * plain < 1e-3


@pytest.mark.parametrize("build", [lambda **o: S4D(2, 4, **o), lambda **o: S4(2, 4, fold_length=24, **o)])
def test_layers(build):
    torch.manual_seed(0)
    layer, u = build(backend="triton"), torch.randn(2, 20, 2)
    results = []
    for backend in ("triton", "cauchy" if isinstance(layer, S4) else "torch"):
        layer.backend = backend
        y, state = layer(u[:, :9])
        y_2, state = layer(u[:, 9:], state)
        out = torch.cat((y, y_2), 1)
        gradients = torch.autograd.grad(out.square().sum() + state.abs().square().sum(), list(layer.parameters()))
        results.append((out, state, *gradients))
    for one, other in zip(*results, strict=True):
        assert error(one, other) < 1e-5


def test_tiles_cover_every_position():
    for length in (1, 16, 17, 64, 1024, 1025, 65537):
        for collapsing in (False, True):
            cut = triton_vandermonde.tile(length, collapsing)
            assert triton_vandermonde._tiles(length, cut) * (cut["BLOCK_Q"] << cut["LOG_J"]) >= length


def test_a_wrong_backend_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'triton'"):
        vandermonde(torch.ones(1, 1, dtype=torch.complex64), torch.ones(1, 1, dtype=torch.complex128), 3, "tritn")
