"""The "dss" discretisation of S4D, derived: a softmax over positions, its limits, and zoh in other coordinates."""

import pytest
import torch

from fractal_ssm import DSS, S4D

S = 48


def build(discretization="dss", **options):
    torch.manual_seed(0)
    l_max = S if discretization == "dss" else None
    return S4D(3, 8, discretization=discretization, l_max=l_max, dt_min=0.05, **options).double()


def complex_parts(layer):
    """C B and Lambda, each (H, P), and z = Lambda dt."""
    copies = layer.d_model // len(layer.Lambda)
    Lambda = layer.Lambda.repeat(copies, 1)
    B = torch.view_as_complex(layer.B.detach()).repeat(copies, 1)
    return torch.view_as_complex(layer.C.detach())[0] * B, Lambda.detach(), (Lambda * layer.dt[:, None]).detach()


@torch.no_grad()
@pytest.mark.parametrize("n_ssm", [None, 1])
def test_the_row_softmax_written_out(n_ssm):
    layer = build(n_ssm=n_ssm)
    CB, Lambda, z = complex_parts(layer)
    powers = torch.exp(z[..., None] * torch.arange(S))
    wanted = ((CB / Lambda)[..., None] * powers / powers.sum(-1, keepdim=True)).sum(1).real
    assert (layer.kernel(S)[0] - wanted).abs().max() < 1e-5 * wanted.abs().max()


@torch.no_grad()
def test_it_is_zoh_with_another_C():
    """softmax_l(z l) = (exp(z) - 1) / (exp(z S) - 1) exp(z l): C_dss = 2 C_zoh (exp(z S) - 1) gives zoh's kernel."""
    dss, zoh = build(), build("zoh")
    zoh.load_state_dict({name: value for name, value in dss.state_dict().items() if name != "softmax_length"})
    C = torch.view_as_complex(zoh.C) * 2 * torch.expm1(complex_parts(dss)[2] * S)
    dss.C.copy_(torch.view_as_real(C))
    for length in (1, 7, S, 2 * S):
        kernel, wanted = dss.kernel(length), zoh.kernel(length)
        assert (kernel - wanted).abs().max() < 1e-5 * wanted.abs().max()


@torch.no_grad()
def test_the_sum_over_the_positions_is_the_sum_of_the_weights():
    layer = build()
    CB, Lambda, _ = complex_parts(layer)
    torch.testing.assert_close(layer.kernel(S)[0].sum(-1), (CB / Lambda).sum(-1).real, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_time_and_length_in_proportion():
    """K depends on Lambda, dt and C / Lambda only through z = Lambda dt and the weight: (k Lambda, dt / k, k C)."""
    one, other = build(), build()
    other.load_state_dict(one.state_dict())
    other.A_real += torch.log(torch.tensor(3.0))
    other.A_imag *= 3.0
    other.inv_dt -= torch.log(torch.tensor(3.0))
    other.C *= 3.0
    torch.testing.assert_close(other.kernel(S), one.kernel(S), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_limits():
    slow, fast = build(), build()
    # A mode that hardly decays or turns weighs every position alike; one that dies at once is all at lag 0.
    for layer, log_rate in ((slow, -4.0), (fast, 5.0)):
        layer.A_real.fill_(log_rate)
        layer.A_imag.zero_()
        layer.inv_dt.fill_(-1.0)
    CB, Lambda, _ = complex_parts(slow)
    # A rate of 0.018 at a step of 0.37: over 48 positions the weights fall by 27 per cent.
    kernel, weight = slow.kernel(S)[0], (CB / Lambda).sum(-1).real
    assert ((kernel * S / weight[:, None] - 1).abs() < 0.2).all()
    CB, Lambda, _ = complex_parts(fast)
    kernel = fast.kernel(S)[0]
    torch.testing.assert_close(kernel[:, 0], (CB / Lambda).sum(-1).real, rtol=1e-3, atol=1e-6)
    assert kernel[:, 1:].abs().max() < 1e-6


@torch.no_grad()
def test_it_is_the_kernel_of_the_dss_layer():
    """The DSS layer has the same form with B = 1, one Lambda for all features and a free sign of its real part."""
    layer = build(n_ssm=1)
    layer.B.copy_(torch.view_as_real(torch.ones(1, 4, dtype=torch.complex128)))
    dss = DSS(3, 4, l_max=S).double()
    dss.Lambda_re.copy_(layer.Lambda.real[0])
    dss.Lambda_im.copy_(layer.Lambda.imag[0])
    dss.log_dt.copy_(layer.inv_dt)
    dss.C.copy_(layer.C)
    torch.testing.assert_close(dss.kernel(S), layer.kernel(S), rtol=1e-9, atol=1e-11)
