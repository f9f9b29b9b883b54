"""What the paper leaves open, as options of Fractal: one at a time, each against its formula."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fractal_ssm import Fractal, UsageError, hippo
from fractal_ssm.models.blocks.block import Block
from fractal_ssm.models.fractal.init import parse_measure
from fractal_ssm.registry import layers

GOLDEN = Path(__file__).parent.parent / "golden" / "fractal_start.npz"
# The cases of the golden file: what a seed gave before the readings became options.
STARTS = {
    "default": ("fractal", {}),
    "bidirectional": ("fractal", {"bidirectional": True}),
    "tau": ("fractal", {"measure": "fractional-tau", "dt": "calibrated"}),
    "legs": ("fractal", {"measure": "legs", "B_init": "random", "n_alphas": 1}),
    "normal": ("fractal", {"measure": "fractional-normal"}),
    "learned": ("fractal", {"learn_alpha": True}),
    "learned-tau": ("fractal", {"learn_alpha": True, "measure": "fractional-tau"}),
    "ltv": ("fractal", {"time": "ltv"}),
    "conv": ("fractal-conv", {}),
}
READINGS = {
    "constant": {"real": 0.5},
    "whole-state": {"real": "whole-state"},
    "unit-mean": {"real": "unit-mean"},
    "normal-part": {"real": "normal-part"},
    "exact-normal-part": {"real": "exact-normal-part"},
    "geometric": {"real": {"name": "geometric", "over": "modes"}},
    "random": {"real": {"name": "random"}},
    "a real a block": {"real": [0.1, "own"]},
    "B columns": {"B_scale": "columns"},
    "B diagonal": {"B_scale": "diagonal"},
    "B none": {"B_scale": "none"},
    "B mode": {"B_scale": "mode"},
    "B shared": {"B_init": "shared"},
    "D zero": {"D_init": "zero"},
    "D fixed": {"D_init": "fixed"},
    "dt block": {"dt_per": "block"},
    "dt scalar": {"dt_per": "scalar"},
    "order doubled": {"conj_sym": False},
    "both of a pair": {"conj_sym": False, "measure": "fractional-tau"},
    "features": {"bank": "features"},
    "features, learned": {"bank": "features", "learn_alpha": True},
    "mixed bank": {"measure": ["fractional", "fractional-normal"]},
    "mode damping": {"measure": "fractional-normal", "learn_alpha": "mode"},
    "frozen": {"frozen": ["A", "dt"]},
}
readings = pytest.mark.parametrize("options", READINGS.values(), ids=READINGS.keys())


def built(options, d_model=4, d_state=16, **more):
    torch.manual_seed(0)
    return Fractal(d_model, d_state=d_state, **{"n_alphas": 2, **options, **more})


@pytest.mark.parametrize("case", STARTS)
def test_defaults_start_and_compute_as_before(case):
    name, options = STARTS[case]
    torch.manual_seed(0)
    layer = layers.build({"name": name, "d_state": 16, "n_alphas": 2, **options}, d_model=4, l_max=32)
    u = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 32, 4)).astype(np.float32))
    with torch.no_grad():
        found = {**{key: value.numpy() for key, value in layer.state_dict().items()}, "y": layer(u)[0].numpy()}
    with np.load(GOLDEN) as data:
        expected = {key.removeprefix(f"{case}/"): data[key] for key in data.files if key.startswith(f"{case}/")}
    assert list(found) == list(expected)
    for key, value in expected.items():
        # Equal to the last bit where the file was made; LAPACK and libm may differ in it elsewhere.
        np.testing.assert_allclose(found[key], value, rtol=2e-6, atol=2e-6, err_msg=key)


@readings
def test_steps_equal_the_sequence(options):
    layer = built(options).double()
    u = torch.randn(2, 12, 4, dtype=torch.float64)
    y, last = layer(u)
    for grad in (True, False):
        state = layer.initial_state(2)
        with torch.set_grad_enabled(grad):
            for position in range(12):
                y_t, state = layer.step(u[:, position], state)
                torch.testing.assert_close(y_t, y[:, position], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-9)


@readings
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_by_finite_differences(options, bidirectional):
    layer = built(options, d_state=8, bidirectional=bidirectional).double()
    u = torch.randn(1, 6, 4, dtype=torch.float64)
    names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
    start = [layer.get_parameter(name).detach().clone().requires_grad_() for name in names]

    def outputs(*values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (u,))[0]

    assert torch.autograd.gradcheck(outputs, start, atol=1e-5, rtol=1e-4)


@readings
def test_state_dict_is_real_and_loads_into_another_layer(options):
    layer, other = built(options), Fractal(4, d_state=16, **{"n_alphas": 2, **options})
    weights = layer.state_dict()
    assert not any(value.is_complex() for value in weights.values())
    other.load_state_dict(weights)
    u = torch.randn(1, 9, 4)
    assert torch.equal(other(u)[0], layer(u)[0])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        # P = 8 modes, H = 4: 2 P of Lambda, P of dt, 2 P H of B, 2 P H of C, H of D.
        ({}, 16 + 8 + 64 + 64 + 4),
        ({"dt_per": "block"}, 16 + 2 + 64 + 64 + 4),
        ({"dt_per": "scalar"}, 16 + 1 + 64 + 64 + 4),
        ({"D_init": "fixed"}, 16 + 8 + 64 + 64),
        ({"bank": "features"}, 16 + 8 + 32 + 32 + 4),
        ({"conj_sym": False}, 32 + 16 + 128 + 128 + 4),
        ({"measure": "fractional-normal", "learn_alpha": "mode"}, 16 + 8 + 64 + 64 + 4),
        ({"real": 0.5, "B_scale": "mode", "B_init": "shared", "D_init": "zero"}, 16 + 8 + 64 + 64 + 4),
    ],
)
def test_parameters_are_as_many_as_the_docstring_says(options, count):
    assert sum(parameter.numel() for parameter in built(options).parameters()) == count


@pytest.mark.parametrize(
    ("real", "rates"),
    [
        ("own", [1, 2, 3, 4, 1, 2, 3, 4]),
        ("whole-state", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("unit-mean", [0.4, 0.8, 1.2, 1.6] * 2),
        ("constant", [0.5] * 8),
        (1, [1.0] * 8),
        ("normal-part", [0.5] * 4 + [0.95] * 4),
        ("exact-normal-part", [0.5] * 4 + [0.05] * 4),
        ({"name": "linear", "low": 0.1, "high": 0.4}, [0.1] * 4 + [0.4] * 4),
        ({"name": "linear", "low": 0.1, "high": 0.4, "over": "modes"}, [0.1, 0.2, 0.3, 0.4] * 2),
        ({"name": "geometric", "low": 0.1, "high": 0.8, "over": "modes"}, [0.1, 0.2, 0.4, 0.8] * 2),
        ([0.25, "whole-state"], [0.25] * 4 + [5, 6, 7, 8]),
    ],
)
def test_real_parts(real, rates):
    layer = built({"real": real})
    np.testing.assert_allclose(-layer.Lambda.real.detach(), rates, rtol=1e-6)
    np.testing.assert_allclose(layer.Lambda.imag.detach(), built({}).Lambda.imag.detach(), rtol=0)


@pytest.mark.parametrize(("over", "distinct"), [("blocks", 2), ("modes", 8)])
def test_random_real_parts_are_draws_between_the_bounds(over, distinct):
    rates = -built({"real": {"name": "random", "low": 0.1, "high": 0.2, "over": over}}).Lambda.real.detach()
    assert len(rates.unique()) == distinct
    assert ((rates >= 0.1) & (rates <= 0.2)).all()


def test_damping_without_a_measure():
    """The control: LegS frequencies, one damping, every mode driven alike; no alpha anywhere."""
    layer = built({"measure": "legs", "real": 0.1, "B_scale": "mode"}, d_model=4096)
    assert layer.alphas == ()
    frequencies = np.abs(hippo.diagonalize(hippo.operator("legs", 8), method="normal").Lambda.imag[:4])
    np.testing.assert_allclose(-layer.Lambda.detach().real, np.full(8, 0.1), rtol=1e-6)
    np.testing.assert_allclose(layer.Lambda.detach().imag.abs(), np.tile(frequencies, 2), rtol=1e-6)
    drive = layer.B_tilde.detach().abs().square().mean(dim=1).sqrt().numpy() * 64
    np.testing.assert_allclose(drive, np.ones(8), rtol=0.05)


def test_scales_of_B():
    measure, order = parse_measure("fractional", "lin"), 8
    diagonal = hippo.diagonalize(hippo.operator("fractional", order, alpha=0.0))
    closed = hippo.operator("fractional", order, alpha=0.0).eigensystem()
    columns, unit_diagonal = diagonal.B_tilde.real, np.exp(closed.log_B_tilde)
    weights = {scale: measure.block(order, 0.0, scale).B_tilde.real for scale in ("rms", "columns", "diagonal", "none")}
    np.testing.assert_allclose(weights["diagonal"], unit_diagonal, rtol=1e-12)
    np.testing.assert_allclose(weights["none"], columns, rtol=1e-12)
    np.testing.assert_allclose(weights["rms"], unit_diagonal / np.sqrt(np.mean(unit_diagonal**2)), rtol=1e-12)
    np.testing.assert_allclose(weights["columns"], columns / np.sqrt(np.mean(columns**2)), rtol=1e-12)
    np.testing.assert_allclose(measure.block(order, 0.0, "mode").B_tilde, np.ones(order), rtol=1e-12)
    # The figures of the table in drive.py.
    assert (weights["diagonal"].max(), weights["none"].max()) == pytest.approx((1.3e4, 1e5), rel=0.5)
    assert weights["diagonal"].min() == pytest.approx(1.0)


def test_one_row_of_B_a_block():
    B = built({"B_init": "shared", "B_scale": "mode"}).B_tilde.detach()
    assert torch.equal(B[0], B[3]) and torch.equal(B[4], B[7]) and not torch.equal(B[0], B[4])


def test_a_step_a_block_and_one_for_all():
    block, scalar = built({"dt_per": "block"}), built({"dt_per": "scalar"})
    assert block.log_dt.shape == (2,) and scalar.log_dt.shape == (1,)
    assert math.log(0.001) <= scalar.log_dt.item() <= math.log(0.1)
    calibrated = built({"dt_per": "block", "dt": "calibrated", "measure": ["fractional", "legs"]})
    scales = [
        measure.block(8 if measure.imag == "normal" else 4, alpha).time_scale
        for measure, alpha in zip(calibrated.measures, (calibrated.alphas[0], None), strict=True)
    ]
    uncalibrated = built({"dt_per": "block", "measure": ["fractional", "legs"]})
    np.testing.assert_allclose((calibrated.log_dt - uncalibrated.log_dt).detach(), np.log(scales), rtol=1e-5)


def test_a_bank_over_features_is_a_layer_for_each_group():
    layer = built({"bank": "features"}).double()
    y = layer(u := torch.randn(1, 20, 4, dtype=torch.float64))[0]
    for group in range(2):
        own = Fractal(2, d_state=8, n_alphas=1).double()
        rows = slice(4 * group, 4 * group + 4)
        with torch.no_grad():
            for name in ("Lambda_re", "Lambda_im", "log_dt", "B"):
                getattr(own, name).copy_(getattr(layer, name)[rows])
            own.C.copy_(layer.C[:, rows])
            own.D.copy_(layer.D[group::2])
        torch.testing.assert_close(own(u[..., group::2])[0], y[..., group::2])


def test_the_order_is_doubled_without_conjugate_pairs():
    assert built({}).n_modes == 8
    doubled = built({"conj_sym": False})
    np.testing.assert_allclose(-doubled.Lambda.real.detach(), [*range(1, 9)] * 2)
    both = built({"conj_sym": False, "measure": "fractional-normal"}).Lambda.detach().reshape(2, 8)
    assert torch.equal(both[:, 4:], both[:, :4].conj())
    # A read-out that is symmetric itself makes the two forms one.
    half = built({"measure": "fractional-tau"}).double()
    full = built({"measure": "fractional-tau", "conj_sym": False}).double()
    assert half.n_modes < full.n_modes == 16


def test_a_mixed_bank():
    layer = built({"measure": ["fractional", "fractional-normal"], "alpha": [0.2, 0.8]})
    Lambda = layer.Lambda.detach()
    np.testing.assert_allclose(-Lambda.real, [1, 2, 3, 4, 0.1, 0.1, 0.1, 0.1], rtol=1e-6)
    assert layer.alphas == (0.2, 0.8)
    assert "fractional, imag=lin + fractional-normal, imag=own" in repr(layer)
    assert [each.name for each in built({"measure": ["legt", "legs"], "n_alphas": 4}).measures] == ["legt", "legs"] * 2
    # alpha counts the blocks that have one; without it each measure has its own default bank.
    measures = ["legs", "fractional", "fractional", {"name": "legt", "theta": 2.0}]
    assert built({"measure": measures, "n_alphas": 4, "alpha": [0.2, 0.8]}).alphas == (0.2, 0.8)
    assert built({"measure": measures, "n_alphas": 4}).alphas == (0.0, 0.9)


def test_a_trained_damping_a_mode_stays_in_its_bounds():
    layer = built({"measure": "fractional-normal", "learn_alpha": "mode", "alpha": [0.0, 0.5]})
    assert "Lambda_re" not in dict(layer.named_parameters())
    assert layer.alphas == pytest.approx([0.0099] * 4 + [0.5] * 4, abs=1e-4)
    np.testing.assert_allclose(layer.Lambda.real.detach(), -(1 - np.array(layer.alphas)) / 2, rtol=1e-6)
    for value, damping in ((-1e4, 0.5), (1e4, 0.005)):
        with torch.no_grad():
            layer.alpha_logit.fill_(value)
        np.testing.assert_allclose(-layer.Lambda.real.detach(), np.full(8, damping), rtol=1e-4)
        assert torch.isfinite(layer(torch.randn(1, 50, 4))[0]).all()


def test_what_is_frozen_gets_no_gradient():
    layer = built({"frozen": ["A", "dt"]})
    assert not built({"frozen": "dt"}).log_dt.requires_grad
    trained = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    assert trained == {"B", "C", "D"}


def test_the_other_readings_leave_the_draws_of_B_C_and_dt_alone():
    # Arms of one seed then differ in the reading only.
    plain = built({}).state_dict()
    for options in ({"real": 0.5}, {"D_init": "zero"}, {"measure": "legs", "imag": "normal"}):
        other = built(options).state_dict()
        assert torch.equal(plain["C"], other["C"]) and torch.equal(plain["log_dt"], other["log_dt"])


@pytest.mark.parametrize(("mixer", "raw"), [("silu_gate", False), ("sigmoid_gate", False), ("raw_silu_gate", True)])
def test_what_the_gate_reads(mixer, raw):
    """sigma(W_gate z) of the normalised z, or of the block's input itself."""
    torch.manual_seed(0)
    options = {"dropout": 0.0, "mask_padding": False, "bn_momentum": 0.1, "framework": "flax"}
    block = Block(Fractal(4, d_state=8, n_alphas=1), mixer=mixer, norm="layer", prenorm=True, **options).eval()
    x = 3.0 + torch.randn(2, 5, 4)
    z = block.norm(x)
    y, gate = block.layer(z)[0], block.mixer.gate(x if raw else z)
    gate = gate.sigmoid() * (1 if mixer == "sigmoid_gate" else gate)
    torch.testing.assert_close(block(x)[0], x + block.mixer.out(y) * gate)
    state = block.layer.initial_state(2)
    torch.testing.assert_close(block.step(x[:, 0], state)[0], block(x)[0][:, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"real": "constnt"}, "Unknown real 'constnt'.*Did you mean 'constant'"),
        ({"real": {"name": "geometric", "lo": 1}}, "no option 'lo'.*Did you mean 'low'"),
        ({"real": {"value": 1}}, "a mapping with a name"),
        ({"real": True}, "real is a name"),
        ({"real": {"name": ["own"]}}, "Unknown real"),
        ({"real": [0.1, 0.2, 0.3]}, "real lists 3 entries for n_alphas=2 blocks"),
        ({"real": 0.0}, "between 0.0001"),
        ({"real": -1}, "decay rates down to -1"),
        ({"real": math.nan}, "finite"),
        ({"real": "normal-part", "measure": "legs"}, "computes rates from alpha"),
        ({"real": {"name": "random", "low": 2.0, "high": 1.0}}, "0 < low <= high"),
        ({"real": {"name": "random", "over": "layers"}}, "Unknown over 'layers'"),
        ({"B_scale": "unit"}, "Unknown B_scale"),
        ({"B_scale": "diagonal", "measure": "fractional-tau"}, "triangular eigenvectors"),
        ({"B_scale": "none", "d_state": 256}, "beyond what float32 trains with"),
        ({"B_scale": "mode", "B_init": "random"}, "would change nothing"),
        ({"B_init": "shard"}, "Did you mean 'shared'"),
        ({"D_init": "one"}, "Unknown D_init"),
        ({"dt_per": "feature"}, "fractal-conv"),
        ({"dt_per": "blocks"}, "Did you mean 'block'"),
        ({"dt_per": "scalar", "dt": "calibrated"}, "dt_per='block'"),
        ({"dt_per": "block", "time": "ltv"}, "dt_per=block"),
        ({"bank": "feature"}, "Did you mean 'features'"),
        ({"bank": "features", "n_alphas": 3, "d_state": 12}, "3 does not divide d_model=4"),
        ({"conj_sym": 1}, "conj_sym to be True or False"),
        ({"conj_sym": False, "d_state": 15}, "multiple of n_alphas = 2, got d_state=15"),
        ({"measure": []}, "measure lists 0 entries for n_alphas=2 blocks"),
        ({"measure": ["legs", "legz"]}, "Unknown measure 'legz'"),
        ({"measure": ["legs", "fractional"], "alpha": [0.1, 0.2]}, "gives 2 value"),
        ({"measure": ["legs", "lagt"], "alpha": 0.1}, "has no alpha"),
        ({"measure": ["legs", "fractional"], "learn_alpha": True}, "one measure for all blocks"),
        ({"learn_alpha": True, "real": 0.5}, "real=0.5 cannot"),
        ({"learn_alpha": True, "B_scale": "mode"}, "B_scale='mode' cannot"),
        ({"learn_alpha": True, "conj_sym": False, "measure": "fractional-tau"}, "conj_sym=true"),
        ({"learn_alpha": "mode"}, "measure=fractional-normal"),
        ({"learn_alpha": "block"}, "one a mode"),
        ({"learn_alpha": "mode", "measure": "fractional-normal", "alpha": 0.999}, r"alpha in \[0, 0.99\]"),
        ({"frozen": 1}, "frozen is a list"),
        ({"frozen": ["E"]}, "Unknown frozen 'E'"),
        ({"frozen": ["D"], "D_init": "fixed"}, "nothing to freeze"),
        ({"frozen": ["dt"], "time": "ltv"}, "nothing to freeze"),
    ],
)
def test_mistakes_are_refused_when_building(options, message):
    with pytest.raises(UsageError, match=message):
        Fractal(4, **{"d_state": 16, "n_alphas": 2, **options})
