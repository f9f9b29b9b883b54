"""Both directions in one operator against the two directions one by one, values and every gradient."""

import pytest
import torch
from ssm_cases import cut

from fractal_ssm import UsageError
from fractal_ssm.ops.ssm import bidirectional, bidirectional_ssm, ssm


def inputs(batch=3, length=17, features=4, modes=5, real=torch.float64, features_out=3):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, dtype=real.to_complex()):
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    phase = 6 * torch.rand(modes, generator=generator, dtype=real)
    a = torch.polar(torch.full((modes,), 0.95, dtype=real), phase).requires_grad_()
    C, C_backward = normal(features_out, modes), normal(features_out, modes)
    return [normal(batch, length, features, dtype=real), a, normal(modes, features), C, C_backward]


def one_by_one(u, a, B_bar, C, C_backward, backend="reference", **options):
    backward = ssm(u, a, B_bar, C_backward, reverse=True, backend=backend, **options)[0]
    return ssm(u, a, B_bar, C, backend=backend, **options)[0] + backward


def check(tensors, found, expected, tolerance=1e-11):
    seed = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=expected.dtype)
    gradients = [torch.autograd.grad(y, tensors, seed) for y in (found, expected)]
    for one, other in zip([found, *gradients[0]], [expected, *gradients[1]], strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert (one - other).abs().max().item() <= tolerance * other.abs().max().item()


# Modes in whole vectors of 16, in fours and one by one; lengths about the tile of 16 steps; one sample and several.
@pytest.mark.parametrize("modes", [1, 4, 16, 23])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 65, 200])
@pytest.mark.parametrize("batch", [1, 3])
def test_equals_the_two_directions(batch, length, modes):
    tensors = inputs(batch, length, modes=modes)
    check(tensors, bidirectional_ssm(*tensors), one_by_one(*tensors))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_runs_as_one_operator_here(monkeypatch, checkpoint):
    """The tests above would pass on two operators too."""
    monkeypatch.setattr(bidirectional, "ssm", None)
    assert bidirectional_ssm(*inputs(), checkpoint=checkpoint).shape == (3, 17, 3)


def test_operator_contract():
    u, a, *rest = inputs(features_out=4)
    D, gamma = torch.randn(4, dtype=torch.float64).requires_grad_(), torch.rand(1, 17, 5).to(a.dtype).requires_grad_()
    a = a.detach()[None, None].requires_grad_()
    B, C, C_backward = rest
    arguments = (u, a, B, C, D, gamma, None, None, False, 2.0, "native", False, C_backward)
    torch.library.opcheck(torch.ops.fractal_ssm.bidirectional_ssm.default, arguments)


def test_on_several_threads():
    """Enough work that the scans start them."""
    tensors = inputs(4, 1000, modes=32, real=torch.float32)
    check(tensors, bidirectional_ssm(*tensors), one_by_one(*tensors, backend="native"), tolerance=1e-4)


@pytest.mark.parametrize("features", [1, 2])
def test_one_feature(features):
    """Where slices of the gradients are contiguous, they must not share memory."""
    tensors = inputs(features=features, features_out=1)
    check(tensors, bidirectional_ssm(*tensors), one_by_one(*tensors))


def test_without_conjugate_pairs():
    tensors = inputs()
    check(tensors, bidirectional_ssm(*tensors, conj_sym=False), one_by_one(*tensors, conj_sym=False))


# Two samples and one, single samples, and samples too long for states of both directions at a time.
@pytest.mark.parametrize("most", [34, 17, 6])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("gain", [None, (3, 1, 5), (17, 5), (3, 17, 5)])
def test_gain_feedthrough_and_recomputation_piece_by_piece(monkeypatch, most, checkpoint, gain):
    tensors, D = inputs(features_out=4), torch.randn(4, dtype=torch.float64).requires_grad_()
    gamma = None if gain is None else torch.randn(gain, dtype=torch.complex128).requires_grad_()
    cut(monkeypatch, most)
    found = bidirectional_ssm(*tensors, input_gain=gamma, checkpoint=checkpoint, D=D)
    expected = one_by_one(*tensors, input_gain=gamma) + D * tensors[0]
    check([*tensors, D, *([] if gain is None else [gamma])], found, expected)


def test_real_gain():
    tensors, gamma = inputs(), torch.rand(17, 5, dtype=torch.float64).requires_grad_()
    check([*tensors, gamma], bidirectional_ssm(*tensors, input_gain=gamma), one_by_one(*tensors, input_gain=gamma))


def test_recomputation_keeps_no_states():
    tensors, kept = inputs(length=1000), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.shape), t)[1], lambda t: t):
        bidirectional_ssm(*tensors, checkpoint=True)
    assert (3, 0, 10) in kept and (3, 1000, 10) not in kept


@pytest.mark.parametrize("shape", [(3, 1, 5), (17, 5), (3, 17, 5)])
def test_gates_that_vary(shape):
    u, a, *rest = inputs()
    tensors = [u, (a.detach() * torch.rand(shape, dtype=torch.float64)).requires_grad_(), *rest]
    check(tensors, bidirectional_ssm(*tensors), one_by_one(*tensors))


def test_wrong_shape_is_refused():
    *tensors, C_backward = inputs()
    with pytest.raises(UsageError, match="ssm takes C of shape"):
        bidirectional_ssm(*tensors, C_backward[:, 1:])


@pytest.mark.parametrize("extras", [False, True])
def test_first_and_second_derivatives(extras):
    tensors = inputs(1, 3, 2, 2, features_out=2)
    function = bidirectional_ssm
    if extras:
        gamma = torch.randn(3, 2, dtype=torch.complex128).requires_grad_()
        tensors += [torch.randn(2, dtype=torch.float64).requires_grad_(), gamma]
        function = lambda *parts: bidirectional_ssm(*parts[:5], D=parts[5], input_gain=parts[6])
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_gradient_of_some_inputs_only():
    tensors = inputs()
    expected = torch.autograd.grad(one_by_one(*tensors).sum(), tensors)
    for index in range(5):
        alone = [t.detach() for t in tensors]
        alone[index].requires_grad_()
        found = torch.autograd.grad(bidirectional_ssm(*alone).sum(), alone[index])[0]
        torch.testing.assert_close(found, expected[index], rtol=1e-10, atol=1e-10)


def test_conjugated_views_and_strided_input():
    u, a, B_bar, C, C_backward = inputs()
    u, B_bar = u.transpose(0, 1).contiguous().transpose(0, 1), B_bar.t().contiguous().t()
    tensors = [t.detach().requires_grad_() for t in (u, a.conj(), B_bar, C.conj(), C_backward)]
    check(tensors, bidirectional_ssm(*tensors), one_by_one(*tensors))


def test_autocast_and_half_precision_do_not_touch_the_state():
    tensors = inputs(real=torch.float32)
    expected = bidirectional_ssm(*tensors)
    with torch.autocast("cpu", torch.bfloat16):
        found = bidirectional_ssm(*tensors)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    u = tensors[0].bfloat16()
    half = bidirectional_ssm(u, *tensors[1:])
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), bidirectional_ssm(u.float(), *tensors[1:]), rtol=1e-2, atol=1e-5)


def test_compiled_without_a_graph_break():
    tensors = inputs()
    compiled = torch.compile(bidirectional_ssm, fullgraph=True, backend="aot_eager")
    check(tensors, compiled(*tensors), bidirectional_ssm(*tensors))


# torch's own rules for forward mode are compiled on first use.
@pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning")
def test_forward_mode_follows_the_reference():
    u, *rest = (t.detach() for t in inputs())
    tangent = torch.randn_like(u)
    _, found = torch.func.jvp(lambda u: bidirectional_ssm(u, *rest), (u,), (tangent,))
    torch.testing.assert_close(found, bidirectional_ssm(tangent, *rest), rtol=1e-10, atol=1e-10)
