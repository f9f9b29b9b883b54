"""The entries of A(alpha) for the three fractional operators."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from fractal_ssm.hippo import operator
from scripts.figures import style

ALPHAS = (0.0, 0.3, 0.6, 0.9)
MEASURES = ("fractional", "fractional-tau", "fractional-galerkin")
N = 24


def draw() -> Figure:
    style.use()
    figure, axes = plt.subplots(3, 4, figsize=(style.WIDTH, 5.3), sharex=True, sharey=True)
    norm = SymLogNorm(linthresh=1.0, vmin=-1e3, vmax=1e3)
    for row, name in zip(axes, MEASURES, strict=True):
        for ax, alpha in zip(row, ALPHAS, strict=True):
            image = ax.imshow(operator(name, N, alpha=alpha).A, norm=norm, cmap="RdBu_r", interpolation="nearest")
            ax.grid(False)
            ax.spines[["top", "right"]].set_visible(True)
            ax.set(xticks=(0, 8, 16, 23), yticks=(0, 8, 16, 23))
            if name == MEASURES[0]:
                ax.set_title(rf"$\alpha = {alpha:g}$")
        row[0].set_ylabel(style.MEASURE_NAMES[name] + "\n$n$")
    for ax in axes[-1]:
        ax.set_xlabel("$k$")
    bar = figure.colorbar(image, ax=axes, shrink=0.6, extend="both", ticks=[-1e3, -1e2, -10, 0, 10, 1e2, 1e3])
    bar.set_label("$A_{nk}$")
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "structure"))
