"""Eigenvalues Lambda of the diagonal systems of each measure and method, one of each conjugate pair."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from fractal_ssm.hippo import conjugate_half, diagonalize, imaginary_parts, operator
from scripts.figures import style

ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
N = 64
PANELS = (
    ("fractional", "direct", "paper, direct"),
    ("fractional", "normal", "paper, normal part"),
    ("fractional-galerkin", "direct", "fractional-galerkin, direct"),
    ("fractional-tau", "direct", "fractional-tau, direct"),
    ("fractional-normal", "direct", "fractional-normal"),
)


def draw() -> Figure:
    style.use()
    figure, axes = plt.subplots(2, 3, figsize=(style.WIDTH, 4.4), sharex=True, sharey=True)
    for ax, letter, (name, method, title) in zip(axes.flat, "abcde", PANELS, strict=False):
        s4d = imaginary_parts("lin", N // 2)
        ax.plot([0.5] * len(s4d), s4d, "|", color="#b0b0b0", ms=5, label="S4D-Lin" if letter == "a" else None)
        for size, alpha in zip((34, 26, 19, 13, 8), ALPHAS, strict=True):
            Lambda = conjugate_half(diagonalize(operator(name, N, alpha=alpha), method))[0]
            ax.scatter(
                -Lambda.real,
                -Lambda.imag,
                s=size,
                facecolors="none",
                edgecolors=[style.alpha_colour(alpha)],
                linewidths=1.0,
                label=rf"$\alpha = {alpha}$" if letter == "a" else None,
            )
        ax.set_xscale("log")
        ax.set_yscale("symlog", linthresh=0.3)
        style.panel(ax, letter, title)
    axes[0, 0].text(8, 0.06, "every $\\alpha$: $1, 2, .., N$", ha="center", fontsize=7.5)
    # The sixth panel holds the legend.
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center left")
    axes[1, 2].set_axis_off()
    axes[0, 2].tick_params(labelbottom=True)
    for ax in axes[:, 0]:
        ax.set_ylabel(r"frequency $|\mathrm{Im}\,\Lambda|$")
    for ax in (axes[1, 0], axes[1, 1], axes[0, 2]):
        ax.set_xlabel(r"decay rate $-\mathrm{Re}\,\Lambda$")
    axes[0, 0].set(ylim=(-0.05, 5e4), xlim=(0.03, 2e5))
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "spectra"))
