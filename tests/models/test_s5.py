"""S5 against the published code's own output, and its initial distribution against the published recipe."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fractal_ssm import S5, UsageError

GOLDEN = Path(__file__).parent.parent / "golden" / "s5.npz"
CASES = {
    "s5_zoh": dict(d_model=4, d_state=8, blocks=1),
    "s5_bilinear_bidir": dict(d_model=3, d_state=16, blocks=2, bidirectional=True, discretization="bilinear"),
    "s5_full_complex": dict(d_model=2, d_state=6, blocks=1, conj_sym=False),
}
OURS = {"C1": "C", "C2": "C_backward", "log_step": "log_dt"}


def golden(case):
    with np.load(GOLDEN) as data:
        return {key.split("/")[1]: data[key] for key in data.files if key.startswith(case + "/")}


def published(case):
    """The layer of a golden case with the published parameters, in float64, and the case's arrays."""
    arrays = golden(case)
    layer = S5(**CASES[case]).double()
    own = dict(layer.named_parameters())
    with torch.no_grad():
        for name, value in arrays.items():
            if name not in ("u", "y", "loss") and not name.startswith("grad_"):
                parameter = own[OURS.get(name, name)]
                parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))
    return layer, arrays


@pytest.mark.parametrize("case", CASES)
def test_equals_the_published_code(case):
    layer, arrays = published(case)
    y, _ = layer(torch.from_numpy(arrays["u"])[None])
    np.testing.assert_allclose(y[0].detach().numpy(), arrays["y"], atol=1e-12, rtol=1e-10)
    loss = (y**2).sum()
    assert loss.item() == pytest.approx(float(arrays["loss"]), rel=1e-12)
    loss.backward()
    compared = 0
    for name, value in arrays.items():
        if name.startswith("grad_"):
            parameter = dict(layer.named_parameters())[OURS.get(name[5:], name[5:])]
            np.testing.assert_allclose(parameter.grad.numpy().reshape(value.shape), value, rtol=1e-9, atol=1e-11)
            compared += 1
    assert compared == len(list(layer.parameters()))


def test_eigenvalues_are_those_of_the_normal_part_of_legs():
    torch.manual_seed(0)
    layer = S5(d_model=2, d_state=12, blocks=3)
    Lambda = layer.Lambda.detach().numpy().reshape(3, 2)
    np.testing.assert_allclose(Lambda.real, -0.5, atol=1e-6)
    np.testing.assert_allclose(np.sort(Lambda.imag, axis=1), 3 * [[-4.60329301, -0.55650112]], rtol=1e-6)
    paired = S5(d_model=2, d_state=3, blocks=1, conj_sym=False).Lambda.detach().numpy()
    np.testing.assert_allclose(np.sort(paired.imag), -np.sort(paired.imag)[::-1], atol=1e-6)


@pytest.mark.parametrize("conj_sym", [True, False])
def test_initial_distribution(conj_sym):
    torch.manual_seed(0)
    H, N, blocks = 64, 128, 4
    P = N // 2 if conj_sym else N
    layers = {
        name: S5(H, N, blocks, conj_sym=conj_sym, C_init=name)
        for name in ("lecun_normal", "trunc_standard_normal", "complex_normal")
    }
    # V is unitary: it keeps the mean square of what is drawn in the real basis.
    mean_square = {"lecun_normal": 2 / (H * N), "trunc_standard_normal": 2 / N, "complex_normal": 1.0}
    for name, layer in layers.items():
        assert layer.B.shape == (P, H, 2)
        assert layer.C.shape == (H, P, 2)
        assert layer.C_tilde.abs().pow(2).mean().item() == pytest.approx(mean_square[name], rel=0.05)
        assert layer.B_tilde.abs().pow(2).mean().item() == pytest.approx(1 / N, rel=0.05)
    layer = layers["lecun_normal"]
    assert layer.D.std().item() == pytest.approx(1, rel=0.4)
    log_dt = layer.log_dt.detach()
    assert math.log(0.001) <= log_dt.min() < -6.5
    assert -2.8 < log_dt.max() <= math.log(0.1)


def test_lecun_normal_is_cut_off_at_two_deviations():
    from fractal_ssm.models.ssm_init import lecun_normal

    torch.manual_seed(0)
    draws = lecun_normal((200, 500), fan_in=4)
    assert draws.std().item() == pytest.approx(0.5, rel=0.01)
    assert draws.abs().max().item() == pytest.approx(2 * 0.5 / 0.87962566, rel=1e-3)


def test_the_product_of_B_and_C_is_real_at_initialisation():
    """B_tilde = V^H B and C_tilde = C V, so with every mode kept C_tilde B_tilde = C B; only Im C survives."""
    torch.manual_seed(0)
    layer = S5(3, 8, 2, conj_sym=False).double()
    half = S5(3, 8, 2)
    assert half.B.shape[0] * 2 == layer.B.shape[0]
    pairs = layer.B_tilde[layer.Lambda_im < 0].conj(), layer.B_tilde[layer.Lambda_im > 0]
    # Conjugate eigenvalues carry conjugate inputs up to the phase of their eigenvector.
    torch.testing.assert_close(pairs[0].abs().sort(0).values, pairs[1].abs().sort(0).values, rtol=1e-5, atol=1e-6)


def test_clip_eigs_bounds_the_real_part_on_every_use():
    torch.manual_seed(0)
    layer, free = (S5(2, 4, 1, clip_eigs=clip) for clip in (True, False))
    with torch.no_grad():
        for one in (layer, free):
            one.Lambda_re.fill_(0.5)
    assert (layer.Lambda.real == -1e-4).all()
    assert (free.Lambda.real == 0.5).all()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_number_of_parameters(bidirectional):
    H, P = 128, 8
    layer = S5(H, 2 * P, 8, bidirectional=bidirectional)
    directions = 2 if bidirectional else 1
    assert sum(p.numel() for p in layer.parameters()) == 3 * P + 2 * P * H + 2 * P * H * directions + H


def test_the_backward_direction_takes_the_step_of_each_position():
    torch.manual_seed(0)
    layer = S5(3, 8, 1, bidirectional=True).double()
    forward, backward = S5(3, 8, 1).double(), S5(3, 8, 1).double()
    shared = {name: value for name, value in layer.state_dict().items() if name != "C_backward"}
    forward.load_state_dict(shared)
    backward.load_state_dict({**shared, "C": layer.C_backward.detach()})
    u, dt_scale = torch.randn(2, 20, 3, dtype=torch.float64), torch.rand(2, 20, dtype=torch.float64) + 0.5
    reversed_y = backward(u.flip(1), dt_scale=dt_scale.flip(1))[0].flip(1)
    expected = forward(u, dt_scale=dt_scale)[0] + reversed_y - layer.D * u
    torch.testing.assert_close(layer(u, dt_scale=dt_scale)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_a_step_of_another_dtype_does_not_change_the_layers(dtype):
    layer, u = S5(3, 8, 1), torch.randn(2, 20, 3)
    y, state = layer(u, dt_scale=torch.full((2, 20), 2, dtype=dtype))
    assert y.dtype == torch.float32
    assert state.dtype == torch.complex64
    torch.testing.assert_close(y, layer(u, dt_scale=2.0)[0])


def test_half_the_rate_on_a_slow_sine():
    torch.manual_seed(0)
    layer = S5(1, 32, 2).double()
    u = torch.sin(torch.arange(2000, dtype=torch.float64) * 0.01)[None, :, None]
    fine, coarse = layer(u)[0][:, 1::2], layer(u[:, 1::2], dt_scale=2.0)[0]
    assert (fine - coarse).abs().max() / fine.abs().max() < 0.02


def test_phase_is_kept_over_the_length_of_pathx():
    """One mode with lambda dt = 0.1 (-0.01 + 31 pi i): the float32 impulse response against float64."""
    layer = S5(1, 2, 1)
    with torch.no_grad():
        for name, value in dict(Lambda_re=-0.01, Lambda_im=31 * math.pi, log_dt=math.log(0.1), D=0.0).items():
            layer.get_parameter(name).fill_(value)
        impulse = torch.zeros(1, 16384, 1)
        impulse[0, 0] = 1.0
        single = layer(impulse)[0]
        exact = layer.double()(impulse.double())[0]
    assert (single - exact).abs().max() / exact.abs().max() < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [False, True])
def test_float32_over_the_length_of_pathx(bidirectional):
    torch.manual_seed(0)
    layer = S5(16, 64, 4, bidirectional=bidirectional)
    u = torch.randn(1, 16384, 16)
    with torch.no_grad():
        single = layer(u)[0]
        if not bidirectional:
            state, outputs = layer.initial_state(1), []
            for position in range(16384):
                y, state = layer.step(u[:, position], state)
                outputs.append(y)
            assert (torch.stack(outputs, 1) - single).abs().max() / single.abs().max() < 1e-3
        exact = layer.double()(u.double())[0]
    assert (single - exact).abs().max() / exact.abs().max() < 1e-4


def test_parameters_frozen_without_no_grad_keep_their_step_parts():
    layer = S5(3, 8, 1).requires_grad_(False)
    u, state = torch.randn(2, 3), layer.initial_state(2)
    layer.step(u, state)
    assert layer._step_parts(None) is layer._step_parts(None)
    x = state.clone().requires_grad_()
    assert torch.autograd.grad(layer.step(u, x)[0].sum(), x)[0].abs().sum() > 0


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "discretization", "bilinear"),
        lambda layer: setattr(layer, "conj_sym", False),
        lambda layer: setattr(layer, "Lambda_re", layer.log_dt),
        lambda layer: layer._parameters.update(Lambda_re=layer.Lambda_im, Lambda_im=layer.Lambda_re),
    ],
    ids=["option", "switch", "shared parameter", "swapped parameters"],
)
def test_steps_follow_whatever_is_set_on_the_layer(change):
    layer = S5(3, 8, 1)
    u, state = torch.randn(2, 1, 3), layer.initial_state(2) + 1
    before, _ = layer.step(u[:, 0], state)
    assert layer._step_parts(None) is layer._step_parts(None)
    change(layer)
    after, _ = layer.step(u[:, 0], state)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, layer(u, state)[0][:, 0])


def test_inputs_of_another_precision_are_refused():
    with pytest.raises(UsageError, match="float32 parameters and got u of torch.float64"):
        S5(3, 8, 1)(torch.randn(2, 5, 3, dtype=torch.float64))


@pytest.mark.parametrize("lengths", [[0, 5], [3, 6]])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(UsageError, match=r"1\.\.5"):
        S5(3, 8, 1)(torch.randn(2, 5, 3), lengths=torch.tensor(lengths))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_state=10, blocks=4), "4 does not divide 10"),
        (dict(d_state=6, blocks=2), "6 / 2 = 3"),
        (dict(C_init="lecun"), "Did you mean 'lecun_normal'"),
        (dict(discretization="ZOH"), "Known: bilinear, zoh"),
        (dict(dt_min=0.1, dt_max=0.01), "dt_min=0.1, dt_max=0.01"),
        (dict(d_state=0), "d_state"),
        (dict(d_model=2.0), "d_model"),
    ],
)
def test_mistakes_are_refused_when_building(options, message):
    with pytest.raises(UsageError, match=message):
        S5(**{"d_model": 4, "d_state": 16, "blocks": 2, **options})
