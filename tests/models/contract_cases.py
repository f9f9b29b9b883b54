"""The layers that the contract is tested on, and what its tests share.

Each registered layer is built with its defaults, bidirectionally where it has that option, and in the variants below.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils._pytree import tree_flatten

from fractal_ssm.registry import layers

D_MODEL = 4
L_MAX = 4097
# Facts that a layer is built with at run time rather than through its options.
RUNTIME = {"d_model": D_MODEL, "l_max": L_MAX}

# Options without which a layer's defaults do not fit so few features.
FITTING = {"transformer": {"n_heads": 2}}

VARIANTS = [
    ("s5", {"d_state": 16, "blocks": 2, "conj_sym": False, "discretization": "bilinear"}),
    ("s5", {"d_state": 16, "blocks": 2, "clip_eigs": True, "C_init": "complex_normal"}),
    ("lru", {"d_state": 8, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "measure": "fractional-tau", "dt": "calibrated"}),
    ("fractal", {"d_state": 16, "n_alphas": 1, "measure": "legs", "B_init": "random"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "time": "ltv"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "learn_alpha": True}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "learn_alpha": True, "measure": "fractional-tau"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "measure": "fractional-normal"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "learn_alpha": True, "measure": "fractional-normal"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "bank": "features", "dt_per": "block", "D_init": "fixed"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "bank": "features", "bidirectional": True}),
    ("fractal", {"d_state": 8, "n_alphas": 2, "conj_sym": False, "dt_per": "scalar", "B_scale": "mode"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "measure": ["fractional", "legs"], "real": ["own", 0.1]}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "measure": "fractional-normal", "learn_alpha": "mode"}),
    ("fractal-conv", {"d_state": 16, "n_alphas": 2, "measure": "fractional-tau"}),
    ("s4", {"d_state": 8, "init": "legt", "n_ssm": 2, "dt_transform": "exp"}),
    ("s4", {"d_state": 8, "init": "fourier"}),
    ("s4", {"d_state": 8, "channels": 2}),
    ("s4d", {"d_state": 8, "init": "inv", "discretization": "bilinear", "n_ssm": 1}),
    ("s4d", {"d_state": 8, "channels": 3, "bidirectional": True}),
    ("s4", {"d_state": 8, "channels": 2, "bidirectional": True, "backward_lag": 0}),
    ("dss", {"d_state": 8, "bidirectional": True, "backward_lag": 0}),
]


def cases():
    found = []
    for name in layers.names():
        fitting = FITTING.get(name, {})
        found.append((name, fitting))
        if "bidirectional" in layers.options(name):
            found.append((name, {**fitting, "bidirectional": True}))
    return found + VARIANTS


def label(case):
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def build(case, dtype=torch.float64, seed=0, **runtime):
    name, options = case
    torch.manual_seed(seed)
    return layers.build({"name": name, **options}, **{**RUNTIME, **runtime}).to(dtype).eval()


def draw(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative_error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def assert_same_gradients(found, expected, tolerance=1e-8):
    # A gradient that is zero in exact arithmetic has only rounding to show; it is measured by the others.
    floor = 1e-3 * max(gradient.abs().max().item() for gradient in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * max(other.abs().max().item(), floor)


def leaves(state):
    return tree_flatten(state)[0]


def run_in_chunks(layer, u, sizes):
    state, outputs = layer.initial_state(u.shape[0]), []
    for chunk in u.split(sizes, dim=1):
        y, state = layer(chunk, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def run_in_steps(layer, u):
    state, outputs = layer.initial_state(u.shape[0]), []
    for position in range(u.shape[1]):
        y, state = layer.step(u[:, position], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


def is_bidirectional(case):
    name, options = case
    option = inspect.signature(layers.get(name)).parameters.get("bidirectional")
    return options.get("bidirectional", False if option is None else option.default)


every_layer = pytest.mark.parametrize("case", cases(), ids=label)
every_causal_layer = pytest.mark.parametrize("case", [c for c in cases() if not is_bidirectional(c)], ids=label)
every_bidirectional_layer = pytest.mark.parametrize("case", [c for c in cases() if is_bidirectional(c)], ids=label)
