"""The fused SSM against a loop over time: values, every gradient, final state, lengths, recomputation, memory."""

from functools import partial

import pytest
import torch
from ssm_cases import H_OUT, SHAPES, B, H, L, P, check, inputs, loop

from fractal_ssm import UsageError
from fractal_ssm.ops.ssm import ssm


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_equals_the_loop(backend, mode, reverse, checkpoint):
    tensors = inputs(mode)
    ours = ssm(*tensors, reverse, backend=backend, checkpoint=checkpoint)
    check(tensors, ours, loop(*tensors, reverse))


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("gain", ["per_sample", "shared", "full"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_gain_per_step(backend, gain, checkpoint):
    tensors = inputs("full")
    gamma = torch.rand(SHAPES[gain], dtype=torch.float64).requires_grad_()
    ours = ssm(*tensors, backend=backend, input_gain=gamma, checkpoint=checkpoint)
    check([*tensors, gamma], ours, loop(*tensors, gamma=gamma))


@pytest.mark.parametrize("gain", [False, True])
def test_state_after_each_sample_s_own_last_step(gain):
    tensors, lengths = inputs(), torch.tensor([17, 1, 9])
    gamma = torch.rand(L, P, dtype=torch.float64) if gain else None
    check(tensors, ssm(*tensors, input_gain=gamma, lengths=lengths), loop(*tensors, gamma=gamma, lengths=lengths))


def test_without_conjugate_pairs():
    tensors = inputs()
    check(tensors, ssm(*tensors, conj_sym=False), loop(*tensors, factor=1.0))


def test_starts_from_rest_without_an_initial_state():
    *tensors, x0 = inputs()
    check(tensors, ssm(*tensors), loop(*tensors, torch.zeros_like(x0)))


@pytest.mark.parametrize("which", ["y", "x_last"])
def test_gradient_of_one_output_alone(which):
    tensors = inputs()
    pick = 0 if which == "y" else 1
    ours, expected = ssm(*tensors)[pick], loop(*tensors)[pick]
    seed = torch.randn_like(expected)
    found = torch.autograd.grad(ours, tensors, seed, allow_unused=True)
    wanted = torch.autograd.grad(expected, tensors, seed, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        one = torch.zeros_like(seed) if one is None else one
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_chunks_with_the_state_carried_equal_one_call():
    u, a, B_bar, C, x0 = inputs()
    whole, last = ssm(u, a, B_bar, C, x0)
    state, parts = x0, []
    for piece in u.split([1, 6, 2, 8], dim=1):
        y, state = ssm(piece, a, B_bar, C, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


def test_first_and_second_derivatives():
    small = [t.detach()[..., :2].clone().requires_grad_() for t in inputs()]
    small[0] = small[0].detach()[:, :3].clone().requires_grad_()
    small[2] = small[2].detach()[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(ssm, small)
    assert torch.autograd.gradgradcheck(ssm, small)


def test_first_and_second_derivatives_with_gain_and_feedthrough():
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 2), (2,), (2, 2), (2, 2), (2, 2), (3, 2), (2,)]
    u, a, B_bar, C, x0, gamma, D = (
        torch.randn(shape, generator=generator, dtype=torch.float64 if i in (0, 6) else torch.complex128)
        for i, shape in enumerate(shapes)
    )
    tensors = [t.requires_grad_() for t in (u, a, B_bar, C, x0, gamma, D)]
    function = lambda *parts: ssm(*parts[:5], input_gain=parts[5], D=parts[6])
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("which", [[0], [1], [0, 1]])
def test_second_derivatives_when_only_the_output_matrix_has_any(which):
    """The last state does not depend on C, but counts as if it did."""
    *fixed, C, x0 = (t.detach() for t in inputs())
    C.requires_grad_()

    def derivatives(function):
        outputs = function(*fixed, C, x0)
        total = sum(outputs[i].abs().square().sum() for i in which) + 0 * C.abs().sum()
        first = torch.autograd.grad(total, C, create_graph=True)[0]
        second = torch.autograd.grad(first.abs().square().sum(), C, allow_unused=True)[0]
        return [first, torch.zeros_like(C) if second is None else second]

    found, expected = derivatives(ssm), derivatives(loop)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    # Only y has derivatives by C; of their squares' sum the second one is not zero.
    assert all(bool(one.abs().max() > 0) == (0 in which) for one in expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_computed_in_single(dtype):
    tensors = inputs(real=torch.float32)
    half = tensors[0].detach().to(dtype)
    y, last = ssm(half, *tensors[1:])
    expected, state = ssm(half.float(), *tensors[1:])
    assert y.dtype == dtype and last.dtype == torch.complex64
    torch.testing.assert_close(y, expected.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(last, state, rtol=0, atol=0)


@pytest.mark.parametrize("gain", [False, True])
def test_autocast_does_not_touch_the_state(gain):
    tensors = inputs(real=torch.float32)
    gamma = torch.ones(L, P) if gain else None
    expected = ssm(*tensors, input_gain=gamma)
    with torch.autocast("cpu", torch.bfloat16):
        found = ssm(*tensors, input_gain=gamma)
    gradients = torch.autograd.grad(found[0].sum(), tensors)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected[0].sum(), tensors), rtol=0, atol=0)


def test_compiled_gradients_equal_eager_ones():
    def function(*real):
        u, *others = real[0], *(torch.view_as_complex(t) for t in real[1:])
        y, last = ssm(u, *others)
        return y, torch.view_as_real(last)

    tensors = inputs(real=torch.float32)
    real = [t.detach() if t.dtype == torch.float32 else torch.view_as_real(t.detach()) for t in tensors]
    real = [t.clone().requires_grad_() for t in real]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    check(real, compiled(*real), function(*real), tolerance=1e-5)


@pytest.mark.parametrize(("length", "draws"), [(1025, 4), pytest.param(65537, 2, marks=pytest.mark.slow)])
def test_gradients_near_the_unit_circle_lose_no_more_than_plain_torch(length, draws):
    """|a| up to 1 - 1e-5, the error of each result at most 3 times that of the loop in the same precision.

    One draw can be lucky for one of them, so errors are summed over a few.
    """
    radius = torch.tensor([1 - 1e-5, 0.9999, 0.999, 0.99, 0.95])
    variants = [(backend, checkpoint) for backend in ("torch", "native") for checkpoint in (False, True)]
    plain, ours = 0.0, dict.fromkeys(variants, 0.0)
    for draw in range(draws):
        torch.manual_seed(draw)
        tensors = inputs(real=torch.float32, length=length)
        with torch.no_grad():
            tensors[0].normal_()
            tensors[1].copy_(torch.polar(radius, 6 * torch.rand(P)))
        seed = torch.randn(B, length, H_OUT)
        wide = [t.detach().to(torch.promote_types(t.dtype, torch.float64)).requires_grad_() for t in tensors]
        exact = results(loop, wide, seed)
        plain = plain + errors(results(loop, tensors, seed), exact)
        for backend, checkpoint in variants:
            found = results(partial(ssm, backend=backend, checkpoint=checkpoint), tensors, seed)
            ours[backend, checkpoint] = ours[backend, checkpoint] + errors(found, exact)
    for variant, error in ours.items():
        assert (error <= 3 * plain).all(), f"{variant}: {(error / plain).tolist()}"


def results(function, tensors, seed):
    y, last = function(*tensors)
    return [y.detach(), last.detach(), *torch.autograd.grad(y, tensors, seed.to(y.dtype))]


def errors(found, exact):
    """Of each result, the largest deviation over the largest entry."""
    return torch.stack([(one - other).abs().max() / other.abs().max() for one, other in zip(found, exact, strict=True)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: torch.zeros(B, 0, H)}, "L >= 1"),
        ({0: torch.zeros(B, L, H, dtype=torch.complex64)}, "real u"),
        ({2: torch.zeros(P, H + 1)}, r"B of shape \(P, H\) = \(5, 4\), got \(5, 5\)"),
        ({3: torch.zeros(P, H)}, "C of shape"),
        ({1: torch.zeros(B, P)}, "Lambda_bar of shape"),
        ({1: torch.tensor(0.5)}, "got a single number"),
        ({1: torch.ones(P, dtype=torch.bool)}, "Lambda_bar as real or complex numbers, got torch.bool"),
        ({2: torch.ones(P, H, dtype=torch.int64)}, "B as real or complex numbers, got torch.int64"),
        ({4: torch.zeros(P)}, r"x0 of shape \(3, 5\), got \(5,\)"),
        ({11: torch.zeros(H)}, r"real D of shape \(H,\) = \(4,\) and as many outputs; got torch.float32 \(4,\) and C"),
        ({3: torch.zeros(H, P), 11: torch.zeros(H_OUT)}, r"got torch.float32 \(3,\) and C of shape \(4, 5\)"),
    ],
)
def test_shapes_that_do_not_fit(change, says):
    with torch.no_grad():
        defaults = [*inputs(), False, True, "auto", None, None, False, None]
        arguments = [change.get(i, t) for i, t in enumerate(defaults)]
    with pytest.raises(UsageError, match=says):
        ssm(*arguments)


def test_lengths_make_no_sense_in_reverse():
    with pytest.raises(UsageError, match="without reverse"):
        ssm(*inputs(), reverse=True, lengths=torch.ones(B, dtype=torch.int64))


@pytest.mark.parametrize("lengths", [torch.ones(B, dtype=torch.bool), torch.ones(B + 1).long(), torch.ones(B)])
def test_lengths_are_whole_numbers_one_a_sample(lengths):
    with pytest.raises(UsageError, match="ssm takes lengths as int64"):
        ssm(*inputs()[:4], lengths=lengths)
