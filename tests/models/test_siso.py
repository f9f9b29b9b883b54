"""What the convolution layers share: steps that scale, padding, precision, the cached system of a step."""

import pytest
import torch

from fractal_ssm import DSS, S4, S4D, UsageError
from fractal_ssm.models.siso import System

BUILDERS = {
    "s4d": lambda **options: S4D(3, 8, **options),
    "s4": lambda **options: S4(3, 8, **options),
    "dss": lambda **options: DSS(3, 4, l_max=50, **options),
}
every_layer = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_layer
def test_a_scale_per_sample_is_differentiable_and_its_own(build):
    torch.manual_seed(0)
    layer, u = build().double(), draw(3, 10, 3)
    scale = torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    y, state = layer(u, dt_scale=scale)
    weight = draw(*y.shape, seed=2)
    (grad,) = torch.autograd.grad((y * weight).sum(), scale)
    for index in range(3):
        alone = scale[index].detach().requires_grad_()
        y_alone, state_alone = layer(u[index : index + 1], dt_scale=alone)
        torch.testing.assert_close(y[index], y_alone[0])
        torch.testing.assert_close(state[index], state_alone[0])
        (wanted,) = torch.autograd.grad((y_alone[0] * weight[index]).sum(), alone)
        torch.testing.assert_close(grad[index], wanted)
    torch.testing.assert_close(layer(u, dt_scale=scale.detach())[0], y.detach())


@every_layer
def test_a_state_that_is_not_asked_for_is_not_computed(build, monkeypatch):
    layer, u = build(), draw(2, 6, 3).float()
    wanted, _ = layer(u, layer.initial_state(2), dt_scale=torch.tensor([1.0, 2.0]))
    monkeypatch.setattr(System, "last_state", lambda *_: pytest.fail("a state was computed"))
    for dt_scale in (1.0, torch.tensor([1.0, 2.0])):
        y, state = layer(u, layer.initial_state(2), dt_scale=dt_scale, return_state=False)
        assert state is None
    torch.testing.assert_close(y, wanted)
    with pytest.raises(pytest.fail.Exception, match="a state was computed"):
        layer(u)


@every_layer
def test_what_lies_in_the_padding_does_not_matter_even_nan(build):
    torch.manual_seed(0)
    lengths = torch.tensor([4, 9])
    for bidirectional in (False, True):
        layer = build(bidirectional=bidirectional).double()
        u = draw(2, 9, 3)
        dirty = u.clone()
        dirty[0, 4:] = float("nan")
        clean = layer(u[:1, :4])
        y, state = layer(dirty, lengths=lengths)
        torch.testing.assert_close(y[:1, :4], clean[0])
        if not bidirectional:
            torch.testing.assert_close(state[:1], clean[1])


@every_layer
def test_sixteen_bits_in_the_input_only(build):
    torch.manual_seed(0)
    layer = build()
    u = draw(2, 20, 3).float()
    wanted = layer(u)[0]
    half = layer.bfloat16()(u.bfloat16())
    assert half[0].dtype == torch.bfloat16
    assert half[1].dtype == torch.complex64
    assert all(parameter.dtype == torch.float32 for parameter in layer.parameters())
    assert (half[0].float() - wanted).abs().max() < 2e-2 * wanted.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(u)[0], wanted)


@every_layer
def test_a_step_follows_its_parameters(build):
    torch.manual_seed(0)
    layer, u = build().double(), draw(1, 3)
    with torch.no_grad():
        state = layer.initial_state(1)
        first = layer.step(u, state)[0]
        assert torch.equal(layer.step(u, state)[0], first)
        layer.C.mul_(2.0)
        second = layer.step(u, state)[0]
        assert not torch.allclose(second, first)
        layer.D.data.zero_()
        assert not torch.allclose(layer.step(u, state)[0], second)
        torch.testing.assert_close(layer.step(u, state)[0], layer(u[:, None])[0][:, 0])


@every_layer
def test_mistakes_are_named(build):
    layer = build()
    with pytest.raises(UsageError, match=r"state of shape \(2, 3, 4\)"):
        layer(torch.ones(2, 5, 3), torch.zeros(2, 4, dtype=torch.complex64))
    with pytest.raises(UsageError, match="Convert the input"):
        layer(torch.ones(2, 5, 3, dtype=torch.float64))
    with pytest.raises(UsageError, match="needs a state"):
        layer.step(torch.ones(2, 3), None)
    with pytest.raises(UsageError, match="u_t of shape"):
        layer.step(torch.ones(2, 1, 3), layer.initial_state(2))
    with pytest.raises(UsageError, match="bidirectional=False"):
        build(bidirectional=True).initial_state(2)
    with pytest.raises(UsageError, match="positive"):
        layer(torch.ones(2, 5, 3), dt_scale=-1.0)
