"""Several kernels a feature, as in the published S4 and S4D: the convolution written out, channel by channel."""

import numpy as np
import pytest
import torch

from fractal_ssm import S4, S4D, UsageError, load_published
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.registry import layers
from scripts import layer_table

CHANNELS, H = 3, 2
LAYERS = {
    "s4d": lambda **options: S4D(H, 8, **options),
    "s4d-bilinear": lambda **options: S4D(H, 8, init="legs", discretization="bilinear", **options),
    "s4": lambda **options: S4(H, 8, **options),
    "s4-legt-folded": lambda **options: S4(H, 8, init="legt", fold_length=16, **options),
}
every_layer = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def published_arrays(channels, bidirectional, P=4):
    """Parameters named and shaped as the published S4D writes them, with bidirectional kernels after the others."""
    rng = np.random.default_rng(0)
    rows = channels * (2 if bidirectional else 1)
    return {
        "inv_dt": np.log(rng.uniform(0.01, 0.1, (H, 1))),
        "A_real": np.log(rng.uniform(0.3, 0.7, (1, P))),
        "A_imag": rng.uniform(1, 9, (1, P)),
        "B": rng.normal(size=(1, 1, P, 2)),
        "C": rng.normal(size=(rows, H, P, 2)),
        "D": rng.normal(size=(channels, H)),
    }


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_published_form_written_out(bidirectional):
    """K[s, c, h, l] = 2 Re sum_n C B (exp(dt A) - 1) / A exp(dt A l); channels are stacked before features, (c h)."""
    arrays = published_arrays(CHANNELS, bidirectional)
    layer = load_published(S4D(H, 8, n_ssm=1, channels=CHANNELS, bidirectional=bidirectional).double(), arrays)
    length, u = 9, draw(2, 9, H).numpy()
    A = -np.exp(arrays["A_real"]) - 1j * arrays["A_imag"]
    B, C = (arrays[name] @ [1, 1j] for name in ("B", "C"))
    z = np.exp(arrays["inv_dt"]) * A
    kernel = 2 * ((C * B * np.expm1(z) / A)[..., None] * np.exp(z[..., None] * np.arange(length))).sum(-2).real
    kernel = kernel.reshape(-1, CHANNELS, H, length)
    y = arrays["D"][None, None] * u[:, :, None]
    for t in range(length):
        for s in range(length):
            if s <= t:
                y[:, t] += kernel[0, :, :, t - s] * u[:, s, None]
            elif bidirectional:
                y[:, t] += kernel[1, :, :, s - t - 1] * u[:, s, None]
    found, _ = layer(torch.from_numpy(u))
    assert found.shape == (2, length, CHANNELS * H)
    np.testing.assert_allclose(found.detach().numpy(), y.reshape(2, length, -1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(layer.kernel(length).detach().numpy(), kernel.reshape(-1, H, length), atol=1e-12)


@every_layer
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_channel_is_a_layer_of_its_own(build, bidirectional):
    torch.manual_seed(0)
    layer, u = build(channels=CHANNELS, bidirectional=bidirectional).double(), draw(2, 20, H)
    assert layer.D.shape == (CHANNELS, H) and layer.d_output == CHANNELS * H
    y, state = layer(u)
    weight = draw(*y.shape, seed=2)
    (y * weight).sum().backward()
    total = {name: torch.zeros_like(value) for name, value in layer.named_parameters() if name not in ("C", "D")}
    for channel in range(CHANNELS):
        alone = build(bidirectional=bidirectional).double()
        weights = {**layer.state_dict(), "C": layer.C[channel::CHANNELS], "D": layer.D[channel]}
        alone.load_state_dict(weights)
        y_alone, state_alone = alone(u)
        part = slice(channel * H, (channel + 1) * H)
        torch.testing.assert_close(y_alone, y[..., part], rtol=1e-10, atol=1e-11)
        (y_alone * weight[..., part]).sum().backward()
        torch.testing.assert_close(alone.C.grad, layer.C.grad[channel::CHANNELS], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(alone.D.grad, layer.D.grad[channel], rtol=1e-8, atol=1e-10)
        for name in total:
            total[name] += alone.get_parameter(name).grad
        if not bidirectional:
            torch.testing.assert_close(state_alone, state, rtol=1e-10, atol=1e-11)
    for name, value in total.items():
        torch.testing.assert_close(value, layer.get_parameter(name).grad, rtol=1e-7, atol=1e-9)


@every_layer
@torch.no_grad()
def test_steps_and_chunks(build):
    torch.manual_seed(0)
    layer, u = build(channels=CHANNELS).double(), draw(2, 11, H)
    whole, last = layer(u)
    first, state = layer(u[:, :4])
    second, state = layer(u[:, 4:], state)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-11)
    state = layer.initial_state(2)
    for position in range(11):
        y, state = layer.step(u[:, position], state)
        torch.testing.assert_close(y, whole[:, position], rtol=1e-9, atol=1e-11)


def test_one_channel_keeps_its_shapes():
    assert S4D(H, 8).D.shape == (H,) and S4D(H, 8, channels=1).d_output == H


def test_published_arrays_of_other_channels_are_refused():
    with pytest.raises(UsageError, match=r"'C' has shape \(3, 2, 4, 2\)"):
        load_published(S4D(H, 8, n_ssm=1, channels=2), published_arrays(3, False))


@pytest.mark.parametrize("channels", [0, 1.5, True])
def test_impossible_channels(channels):
    for layer in (S4, S4D):
        with pytest.raises(UsageError, match="channels"):
            layer(H, 8, channels=channels)


@pytest.mark.parametrize(("mixer", "joins"), [("glu", 2), ("full_glu", 2), ("silu_gate", 1)])
def test_the_mixer_joins_the_channels(mixer, joins):
    def model(channels):
        torch.manual_seed(0)
        node = {"name": "s4d", "d_state": 8, "channels": channels}
        return SequenceModel(node, n_classes=4, d_input=1, d_model=H, n_layers=2, mixer=mixer)

    one, three = (sum(p.numel() for p in model(channels).parameters()) for channels in (1, 3))
    # A block's layer: D of H and C of H N more a channel; its mixer: H^2 more in each map that reads y.
    assert three - one == 2 * (3 - 1) * (H + H * 8 + joins * H * H)
    u = torch.randn(2, 7, 1)
    with torch.no_grad():
        built = model(3).eval()
        state = built.initial_state(2)
        for position in range(7):
            scores, state = built.step(u[:, position], state)
        torch.testing.assert_close(scores, built(u), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mixer", ["gelu", "half_glu1", "half_glu2", "mlp"])
def test_a_mixer_that_cannot_join_is_refused(mixer):
    with pytest.raises(UsageError, match="no linear map that joins"):
        SequenceModel({"name": "s4d", "channels": 2}, n_classes=4, d_input=1, d_model=4, n_layers=1, mixer=mixer)


@pytest.mark.parametrize("name", ["s4", "s4d"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_the_parameter_formula(name, channels):
    row = layer_table.LAYERS[name]
    for d in (1, 2):
        node = {"name": name, **row.node, "channels": channels, "bidirectional": d == 2}
        layer = layers.build(node, d_model=layer_table.H)
        symbols = {**row.symbols, "H": layer_table.H, "d": d, "c": channels}
        assert layer_table.n_parameters(layer) == layer_table.evaluate(row.formula, symbols)
