"""The scan kernels: exact values, derivatives, views, half precision, and the function that they combine maps with."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import errors, make, oracle, run

from fractal_ssm import scan
from fractal_ssm.ops.runtime import backends
from fractal_ssm.ops.scan import triton_kernels
from fractal_ssm.ops.ssm import ssm


def test_the_kernels_really_are_interpreted():
    assert backends.interpreting()
    assert type(triton_kernels.scan_kernel).__name__ == "InterpretedFunction"


def test_double_precision_passes_gradcheck(tiny):
    case = make("constant", torch.complex128, 9, batch=1, modes=1)
    assert torch.autograd.gradcheck(lambda *t: scan(*t, backend="triton"), case.inputs(), fast_mode=True)


@pytest.mark.parametrize("x0", [None, 2.0])
@pytest.mark.parametrize("reverse", [False, True])
def test_exact_values(tiny, x0, reverse):
    a = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])[:, None]
    b = torch.tensor([1.0, -2.0, 3.0, -1.0, 2.0, 5.0, -4.0])[None, :, None]
    start = None if x0 is None else torch.tensor([[x0]])
    x = scan(a, b, start, reverse, backend="triton").flatten()
    torch.testing.assert_close(x, scan(a, b, start, reverse, backend="reference").flatten())
    if x0 is None:
        expected = [1.97488, 1.0832, 3.854, 1.22, 3.7, 3.4, -4] if reverse else [
            1, -1.2, 2.16, 0.296, 2.148, 5.8592, -2.24224,
        ]  # fmt: skip
        torch.testing.assert_close(x, torch.tensor(expected))


def test_half_precision_input_is_cast_before_the_kernel():
    """The interpreter computes garbage on bfloat16, so none may reach it: 0.5 * 1 + 2.5 = 3."""
    b = torch.tensor([1.0, 2.5], dtype=torch.bfloat16)[None, :, None]
    x = scan(torch.full((1,), 0.5, dtype=torch.bfloat16), b, backend="triton")
    assert x.flatten().tolist() == [1.0, 3.0]


def test_views_and_more_modes_than_a_block(tiny):
    case = make("constant", torch.complex64, 10, batch=2, modes=9)
    case.b = case.b.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    assert max(errors(run(case, scan, backend="triton"), oracle(case))) < 2e-6


@pytest.mark.parametrize("checkpoint", [False, True])
def test_fused_ssm(tiny, checkpoint):
    case = make("constant", torch.complex64, 9, batch=2, modes=3)
    u, seed = torch.randn(2, 9, 4, requires_grad=True), torch.randn(2, 9, 4)
    B_bar = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
    C = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
    tensors = [u, case.a, B_bar, C, case.x0]
    found, expected = (
        torch.autograd.grad(ssm(*tensors, backend=backend, checkpoint=checkpoint)[0], tensors, seed)
        for backend in ("triton", "torch")
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


element = st.floats(-2, 2, width=32)
maps = st.tuples(*[element] * 4)


def then(first, second):
    """`combine` itself: the map `first` followed by the map `second`, each (a_re, a_im, b_re, b_im)."""
    return triton_kernels.combine.fn(*first, *second)


@given(maps, maps, maps)
@settings(max_examples=200, deadline=None)
def test_the_combine_function_is_associative(f, g, h):
    """Tested on its own: the interpreter scans in sequence, so a wrong one would pass every other test here."""
    left, right = then(then(f, g), h), then(f, then(g, h))
    assert left == pytest.approx(right, rel=1e-9, abs=1e-9)


@given(maps, maps, st.complex_numbers(max_magnitude=2))
@settings(max_examples=100, deadline=None)
def test_the_combine_function_composes_in_the_right_order(f, g, x):
    def apply(m, value):
        return complex(m[0], m[1]) * value + complex(m[2], m[3])

    assert apply(then(f, g), x) == pytest.approx(apply(g, apply(f, x)), rel=1e-9, abs=1e-9)


@given(maps)
def test_padding_is_the_identity(f):
    identity = (1.0, 0.0, 0.0, 0.0)
    assert then(f, identity) == pytest.approx(f) and then(identity, f) == pytest.approx(f)
