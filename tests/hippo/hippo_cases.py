"""What the hippo tests share: orders, alphas, the golden arrays and every measure with a few settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fractal_ssm.hippo import operator

GOLDEN = Path(__file__).parent.parent / "golden"
ORDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
ALPHAS = (0.0, 0.1, 0.5, 0.9, 0.99)
FRACTIONAL = ("fractional", "fractional-tau", "fractional-galerkin")
SETTINGS = [(name, {"alpha": alpha}) for name in FRACTIONAL for alpha in ALPHAS] + [
    *[("fractional-normal", {"alpha": alpha}) for alpha in ALPHAS],
    ("legs", {}),
    ("legt", {}),
    ("legt", {"theta": 3.0}),
    ("lagt", {}),
    ("fourier", {}),
    ("fourier", {"theta": 3.0}),
    ("random", {}),
    ("random", {"seed": 7}),
]
# Those whose state is a projection, which has a basis and a density.
PROJECTIONS = [setting for setting in SETTINGS if setting[0] != "fractional-normal"]


def setting_id(setting: tuple[str, dict[str, float]]) -> str:
    name, options = setting
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def build(setting: tuple[str, dict[str, float]], N: int):
    name, options = setting
    return operator(name, N, **options)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Largest error of a as a share of the largest entry of b."""
    return float(np.abs(np.asarray(a) - b).max() / np.abs(b).max())
