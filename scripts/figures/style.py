"""The common style of all figures, and the paths of figures and their tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
THEORY = ROOT / "docs" / "theory.md"
WIDTH = 7.2  # inches: two columns of a paper

# Colours that colour-blind readers can distinguish (after Okabe and Ito); one per measure, the same in all figures.
MEASURE_COLOURS = {
    "legs": "#000000",
    "legt": "#E69F00",
    "lagt": "#56B4E9",
    "fourier": "#8C6BB1",
    "random": "#999999",
    "fractional": "#D55E00",
    "fractional-tau": "#0072B2",
    "fractional-galerkin": "#009E73",
    "fractional-normal": "#CC79A7",
}
MEASURE_NAMES = {
    "legs": "LegS",
    "legt": "LegT",
    "lagt": "LagT",
    "fourier": "Fourier",
    "random": "random",
    "fractional": "fractional (paper)",
    "fractional-tau": "fractional-tau",
    "fractional-galerkin": "fractional-galerkin",
    "fractional-normal": "fractional-normal",
}


def use() -> None:
    """Set the style; call before making a figure."""
    plt.rcParams.update(
        {
            "figure.constrained_layout.use": True,
            "figure.dpi": 100,
            "savefig.dpi": 150,
            "font.size": 8.5,
            "axes.titlesize": 9,
            "axes.labelsize": 8.5,
            "legend.fontsize": 7.5,
            "legend.frameon": False,
            "xtick.labelsize": 7.5,
            "ytick.labelsize": 7.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.7,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e4e4e4",
            "grid.linewidth": 0.6,
            "lines.linewidth": 1.4,
            "mathtext.fontset": "dejavuserif",
        }
    )


def alpha_colour(alpha: float) -> tuple[float, float, float, float]:
    """Colour of a singularity index: dark for 0, bright for values near 1."""
    return plt.get_cmap("plasma")(0.05 + 0.83 * alpha)


def panel(ax: plt.Axes, letter: str, title: str) -> None:
    """Title of a panel with its letter."""
    ax.set_title(f"({letter})  {title}", loc="left")


def save(figure: Figure, name: str) -> Path:
    """Write docs/figures/<name>.png and close the figure."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{name}.png"
    # Without the version in the metadata the file changes only when the picture does.
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
    return path


def power(value: float) -> str:
    """A number of any size, short: 12.3, 4.5e-07, 1e+48."""
    if not np.isfinite(value):
        return "beyond float64"
    return f"{value:.3g}" if 1e-3 < abs(value) < 1e4 else f"{value:.1e}"
