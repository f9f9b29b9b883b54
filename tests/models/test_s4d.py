"""S4D and fractal-conv: published starts, discretisations, exact numbers, extremes of the parameters, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fractal_ssm import S4D, UsageError, hippo
from fractal_ssm.models.fractal import FractalConv
from fractal_ssm.models.s4d.init import PUBLISHED, initial_modes

GOLDEN = Path(__file__).parents[1] / "golden"


def one_mode(discretization, **options):
    """A layer with the single mode lambda = -1/2 + i pi, dt = 0.1, B = C = 1, D = 0."""
    layer = S4D(1, 2, discretization=discretization, **options).double()
    with torch.no_grad():
        layer.inv_dt.fill_(math.log(0.1))
        layer.A_real.fill_(math.log(0.5))
        layer.A_imag.fill_(-math.pi)
        layer.B.copy_(torch.tensor([1.0, 0.0]))
        layer.C.copy_(torch.tensor([1.0, 0.0]))
        layer.D.zero_()
    return layer


@pytest.mark.parametrize(
    ("discretization", "kernel"),
    [
        ("zoh", [0.191928907, 0.164773162, 0.124467186, 0.076111269, 0.025089044]),
        ("bilinear", [0.190644647, 0.164273425, 0.124894939, 0.077424726, 0.027082704]),
    ],
)
def test_the_named_discretisation_is_the_one_computed(discretization, kernel):
    # Values computed in float64 from the two formulas.
    found = one_mode(discretization).kernel(5).flatten()
    torch.testing.assert_close(found, torch.tensor(kernel, dtype=torch.float64), rtol=0, atol=1e-9)


def test_dss_is_a_softmax_over_l_max():
    layer = one_mode("dss", l_max=6)
    Lambda = torch.tensor(complex(-0.5, math.pi), dtype=torch.complex128)
    weights = torch.exp(0.1 * Lambda * torch.arange(6))
    wanted = (weights / weights.sum() / Lambda).real
    torch.testing.assert_close(layer.kernel(4).flatten(), wanted[:4], rtol=1e-5, atol=0)


def test_lin_matches_the_published_kernel_values():
    # N/2 = 2, B = C = 1, dt = 0.1, lowest frequency exactly 0: computed in float64.
    layer = S4D(1, 4).double()
    with torch.no_grad():
        layer.inv_dt.fill_(math.log(0.1))
        layer.A_imag[:, 0] = 0.0
        layer.C.copy_(torch.tensor([1.0, 0.0]))
    wanted = torch.tensor([0.387011, 0.350341, 0.300985, 0.244020], dtype=torch.float64)
    torch.testing.assert_close(layer.kernel(4).flatten(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("init", PUBLISHED)
def test_published_starts(init):
    torch.manual_seed(0)
    Lambda, B = initial_modes(init, 8)
    assert Lambda.shape == B.shape == (4,)
    assert (Lambda.real < 0).all()
    assert (Lambda.imag <= -1e-4).all()
    expected = {"lin": math.pi, "inv": 4.2441, "inv2": 7.6394, "quad": 9 / math.pi, "legs": 5.3542, "real": 1e-4}
    if init in expected:
        assert -Lambda.imag[1].item() == pytest.approx(expected[init], rel=1e-4)
    assert Lambda.real.tolist() == ([-1.0, -2.0, -3.0, -4.0] if init == "real" else [-0.5] * 4)


def test_legs_starts_where_the_published_code_does():
    with np.load(GOLDEN / "s4.npz") as arrays:
        recorded = arrays["s4d_legs_bilinear/B"][0, 0] @ [1, 1j]
        imag = arrays["s4d_legs_bilinear/A_imag"][0]
    Lambda, B = (value.numpy() for value in initial_modes("legs", 8))
    np.testing.assert_allclose(-Lambda.imag, imag, rtol=1e-6)
    # LAPACK leaves the sign of an eigenvector open.
    np.testing.assert_allclose(np.minimum(abs(B - recorded), abs(B + recorded)), 0, atol=1e-6)


@pytest.mark.parametrize(
    ("init", "method"),
    [
        ("lagt", "normal"),
        ({"name": "legs"}, "normal"),
        ({"name": "fractional", "alpha": 0.5}, "direct"),
        ({"name": "fractional-tau", "alpha": 0.3}, "direct"),
        ("fractional-galerkin", "normal"),
    ],
)
def test_a_measure_keeps_its_impulse_response(init, method):
    # sum_n V_kn exp(Lambda_n t) B_n over kept modes, twice its real part, is the state of the diagonalised system.
    node = {"name": init} if isinstance(init, str) else dict(init)
    diagonal = hippo.diagonalize(hippo.operator(**{"N": 8, **node}), method=method)
    Lambda, B = initial_modes(init, 8, method)
    _, V, _, _ = hippo.conjugate_half(diagonal)
    t = np.array([0.0, 0.3, 1.0])
    whole = diagonal.V @ (diagonal.B_tilde[:, None] * np.exp(diagonal.Lambda[:, None] * t))
    kept = 2 * (V @ (B.numpy()[:, None] * np.exp(Lambda.numpy()[:, None] * t))).real
    scale = np.vdot(kept, whole.real) / np.vdot(kept, kept)
    np.testing.assert_allclose(scale * kept, whole.real, atol=1e-7 * np.abs(whole).max())


def test_direct_legs_of_order_64_is_finite():
    layer = S4D(2, 64, init={"name": "legs"}, method="direct")
    assert layer.kernel(100).isfinite().all()


def test_copies_are_dealt_out_in_turn():
    layer = S4D(6, 4, n_ssm=2).double()
    with torch.no_grad():
        layer.A_real[1] += 1.0
        layer.inv_dt.fill_(-3.0)
        layer.C.copy_(layer.C[:, :1].expand_as(layer.C))
    kernel = layer.kernel(5)[0]
    assert torch.equal(kernel[0], kernel[2])
    assert torch.equal(kernel[1], kernel[5])
    assert not torch.equal(kernel[0], kernel[1])


def test_steps_are_log_uniform_in_their_range():
    for transform in ("exp", "softplus"):
        torch.manual_seed(0)
        dt = S4D(4000, 2, dt_transform=transform, dt_min=0.001, dt_max=0.1).dt
        assert 0.000999 < dt.min() < 0.00101
        assert 0.099 < dt.max() < 0.1001
        assert dt.log().mean().item() == pytest.approx(math.log(0.01), abs=0.05)


def test_a_sequence_longer_than_any_before_is_not_cut():
    layer = one_mode("zoh")
    with torch.no_grad():
        layer.A_real.fill_(math.log(0.01))
        layer.A_imag.zero_()
    impulse = torch.zeros(1, 128, 1, dtype=torch.float64)
    impulse[0, 0] = 1.0
    y, _ = layer(impulse)
    assert (y[0, 64] / y[0, 0]).item() == pytest.approx(0.999**64, rel=1e-4)


@pytest.mark.parametrize("name", ["inv_dt", "A_real"])
@pytest.mark.parametrize("value", [-20.0, 0.0, 10.0])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_extremes_stay_finite(name, value, discretization):
    layer = S4D(2, 8, discretization=discretization)
    torch.nn.init.constant_(getattr(layer, name), value)
    y, _ = layer(torch.randn(2, 50, 2, generator=torch.Generator().manual_seed(0)))
    y.square().mean().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_float32_step_and_convolution_agree_over_path_x_length():
    torch.manual_seed(0)
    layer = S4D(2, 8, dt_min=0.001, dt_max=0.01)
    u = torch.randn(1, 16384, 2)
    with torch.no_grad():
        y, _ = layer(u)
        state, stepped = layer.initial_state(1), []
        for t in range(u.shape[1]):
            y_t, state = layer.step(u[:, t], state)
            stepped.append(y_t)
    assert (torch.stack(stepped, 1) - y).abs().max() < 1e-3 * y.abs().max()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"init": "legss"}, "Did you mean 'legs'"),
        ({"init": {"alpha": 0.5}}, "needs a 'name'"),
        ({"init": {"name": "legs", "N": 8}}, "no option 'N'"),
        ({"d_state": 7}, "even"),
        ({"n_ssm": 3}, "3 does not divide 4"),
        ({"discretization": "zho"}, "Did you mean 'zoh'"),
        ({"discretization": "dss"}, "l_max"),
        ({"dt_transform": "log"}, "exp, softplus"),
        ({"dt_min": 0.2}, "dt_min"),
        ({"backend": "cuda"}, "keops"),
        ({"init": "fourier", "method": "normal"}, "low-rank"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(UsageError, match=words):
        S4D(**{"d_model": 4, "d_state": 8, **options})


def test_a_step_per_position_is_refused():
    layer = S4D(2, 4)
    with pytest.raises(UsageError, match="S5 or Fractal"):
        layer(torch.ones(2, 5, 2), dt_scale=torch.ones(2, 5))


def test_fractal_conv_gives_each_group_its_alpha():
    torch.manual_seed(0)
    layer = FractalConv(8, 16, n_alphas=4).double()
    assert layer.alphas == pytest.approx((0.0, 0.3, 0.6, 0.9))
    assert layer.B.shape == (4, 8, 2)
    # S4D with the same modes in the same groups is the same layer.
    twin = S4D(8, 16, n_ssm=4).double()
    twin.load_state_dict(layer.state_dict())
    u = torch.randn(2, 20, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(u)[0], twin(u)[0], rtol=0, atol=0)


@pytest.mark.parametrize("measure", ["fractional-tau", "fractional-galerkin", "legs", "legt", "lagt", "fourier"])
@pytest.mark.parametrize("d_state", [8, 15])
def test_fractal_conv_from_every_measure(measure, d_state):
    layer = FractalConv(8, d_state, measure=measure, dt="calibrated" if measure != "fourier" else "range")
    y, _ = layer(torch.randn(1, 30, 8))
    assert y.isfinite().all()


def test_fractal_conv_refusals():
    with pytest.raises(UsageError, match="does not divide d_model=6"):
        FractalConv(6, 16, n_alphas=4)
    with pytest.raises(UsageError, match="B_init"):
        FractalConv(8, 16, B_init="one")
