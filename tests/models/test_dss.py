"""DSS: the softmax kernel in its own words, growing modes, and when it may carry a state."""

import pytest
import torch

from fractal_ssm import DSS, UsageError


def softmax_kernel(layer, length, positions):
    """Re sum_n C / Lambda softmax_l(dt Lambda l), written out, with the largest exponent taken out of the softmax."""
    Lambda = torch.complex(layer.Lambda_re, layer.Lambda_im)
    exponent = (Lambda * torch.exp(layer.log_dt)[:, None])[..., None] * torch.arange(positions)
    exponent = exponent - exponent.real.amax(-1, keepdim=True).detach()
    softmax = exponent.exp() / exponent.exp().sum(-1, keepdim=True)
    weight = torch.view_as_complex(layer.C) / Lambda
    return torch.einsum("chn,hnl->chl", weight, softmax).real[..., :length]


def build(growing=False, **options):
    torch.manual_seed(0)
    layer = DSS(3, 6, dt_min=0.05, **options).double()
    if growing:
        with torch.no_grad():
            layer.Lambda_re[1], layer.Lambda_re[4] = 0.3, 4.0
    return layer


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize(("l_max", "length", "positions"), [(64, 64, 64), (64, 30, 64), (None, 30, 30)])
def test_kernel_and_gradients(growing, l_max, length, positions):
    layer = build(growing, l_max=l_max)
    kernel, wanted = layer.kernel(length), softmax_kernel(layer, length, positions)
    # The published reciprocal adds 1e-7 under the fraction.
    assert (kernel - wanted).abs().max() < 1e-5 * wanted.abs().max()
    weight = torch.randn_like(wanted)
    parameters = [parameter for name, parameter in layer.named_parameters() if name != "D"]
    for ours, theirs in zip(
        torch.autograd.grad(kernel, parameters, weight), torch.autograd.grad(wanted, parameters, weight), strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-3 * theirs.abs().max()


def test_strong_growth_stays_finite():
    layer = build(l_max=1000)
    with torch.no_grad():
        layer.Lambda_re.fill_(50.0)
    layer = layer.float()
    y, _ = layer(torch.randn(1, 1000, 3))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_start():
    layer = DSS(2000, 4)
    torch.testing.assert_close(layer.Lambda_re, torch.full((4,), -0.5))
    expected = torch.tensor([19.8574, 5.3542, 1.9578, 0.4275])
    torch.testing.assert_close(layer.Lambda_im, expected, rtol=1e-4, atol=0)
    assert layer.C.std().item() == pytest.approx(1.0, abs=0.05)


def test_a_state_needs_a_fixed_softmax():
    free = build()
    assert not free.causal
    assert free(torch.randn(1, 9, 3, dtype=torch.float64))[1] is None
    with pytest.raises(UsageError, match="build it with l_max"):
        free.initial_state(1)
    assert build(l_max=9).causal


def test_a_growing_mode_cannot_be_carried():
    layer = build(growing=True, l_max=16)
    y, state = layer(torch.randn(1, 9, 3, dtype=torch.float64))
    assert y.isfinite().all()
    with pytest.raises(UsageError, match="growing mode"):
        layer.step(y[:, 0], state)
    with pytest.raises(UsageError, match="growing mode"):
        layer(y, state)


def test_the_softmax_length_is_part_of_the_weights():
    trained, other = build(l_max=20), build(l_max=500)
    other.load_state_dict(trained.state_dict())
    assert other.l_max == 20
    assert torch.equal(other.kernel(30), trained.kernel(30))
    free = build()
    free.load_state_dict(trained.state_dict())
    assert free.causal


@pytest.mark.parametrize(
    ("options", "words"), [({"d_state": 0}, "d_state"), ({"l_max": 0}, "l_max"), ({"dt_min": 1.0}, "dt_min")]
)
def test_refusals(options, words):
    with pytest.raises(UsageError, match=words):
        DSS(**{"d_model": 4, **options})
