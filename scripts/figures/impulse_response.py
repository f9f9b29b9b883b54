"""Impulse responses exp(-tau A) B of the three fractional operators, compared with those of the exact projection."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from scipy.linalg import expm

from fractal_ssm.hippo import operator
from scripts.figures import style

ALPHAS = (0.2, 0.8)
MEASURES = ("fractional", "fractional-tau", "fractional-galerkin")
N = 64
STATES = (0, 1, 2, 4)
COLOURS = ("#440154", "#31688e", "#35b779", "#d8a800")


def draw() -> Figure:
    style.use()
    figure, axes = plt.subplots(2, 3, figsize=(style.WIDTH, 4.4), sharex=True, sharey="row")
    lag = np.geomspace(0.02, 6, 160)
    s = np.exp(-lag)
    for row, alpha in zip(axes, ALPHAS, strict=True):
        for ax, name in zip(row, MEASURES, strict=True):
            built = operator(name, N, alpha=alpha)
            exact = built.basis(s) * built.density(s) * s
            response = np.stack([expm(-tau * built.A) @ built.B for tau in lag], axis=1)
            for n, colour in zip(STATES, COLOURS, strict=True):
                ax.plot(lag, response[n], color=colour, label=f"$n = {n}$")
                ax.plot(lag, exact[n], color="black", lw=0.8, ls=(0, (3, 2)), label="exact" if n == 4 else None)
            ax.set_xscale("log")
            if alpha == ALPHAS[0]:
                ax.set_title(style.MEASURE_NAMES[name])
        row[0].set_ylabel(rf"$\alpha = {alpha}$" + "\nimpulse response")
    axes[0, 0].set_ylim(-2.0, 3.6)
    axes[1, 0].set_ylim(-2.6, 6.6)
    axes[0, 0].legend(loc="upper right", ncols=2)
    for ax in axes[-1]:
        ax.set_xlabel(r"lag $\tau$")
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "impulse_response"))
