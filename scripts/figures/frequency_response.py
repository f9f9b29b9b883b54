"""Frequency responses at initialisation: is a block with low alpha low-pass and one with high alpha high-pass?"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fractal_ssm.hippo import Operator, operator
from fractal_ssm.models.fractal.init import parse_measure
from scripts import tables
from scripts.figures import style

ALPHAS = (0.0, 0.3, 0.6, 0.9)
PANELS = (
    ("fractional", "fractional (paper)"),
    ("layer", "(paper) as the layer starts it"),
    ("fractional-tau", "fractional-tau"),
    ("fractional-galerkin", "fractional-galerkin"),
)
N = 16
OMEGA = np.geomspace(1e-2, 1e6, 1601)


def gain(built: Operator, omega: np.ndarray) -> np.ndarray:
    """|(i omega + A)^-1 B|: up to a constant, the root mean square gain over random C in the basis of the measure."""
    shifted = 1j * omega[:, None, None] * np.eye(built.N) + built.A
    return np.linalg.norm(np.linalg.solve(shifted, built.B[:, None].astype(complex))[..., 0], axis=1)


def gain_of_layer(alpha: float, omega: np.ndarray) -> np.ndarray:
    """`gain` of a block as the layer initialises it: Lambda = -(1 .. R) +- i pi j, B_tilde = V^-1 B."""
    block = parse_measure("fractional", "auto").block(N // 2, alpha)
    pair = (block.Lambda, block.Lambda.conj())
    power = sum(np.abs(block.B_tilde / (1j * omega[:, None] - Lambda)) ** 2 for Lambda in pair)
    return np.sqrt(power.sum(axis=1))


def summary(found: np.ndarray) -> dict[str, float]:
    """Gain at frequency 0; the peak and its frequency; the -3 dB frequency above the peak; the slope far above it."""
    peak = int(found.argmax())
    beyond = np.flatnonzero((found < found[peak] / np.sqrt(2)) & (np.arange(len(found)) > peak))[0]
    slope = np.log10(found[-1] / found[-201])
    return {
        "rest": found[0],
        "peak": found[peak],
        "at": OMEGA[peak],
        "cutoff": OMEGA[beyond],
        "slope": slope,
    }


def draw() -> Figure:
    style.use()
    figure, axes = plt.subplots(2, 2, figsize=(style.WIDTH, 4.6), sharex=True, sharey=True)
    rows = []
    for ax, letter, (name, title) in zip(axes.flat, "abcd", PANELS, strict=True):
        for alpha in ALPHAS:
            curve = gain_of_layer(alpha, OMEGA) if name == "layer" else gain(operator(name, N, alpha=alpha), OMEGA)
            ax.loglog(OMEGA, curve / curve[0], color=style.alpha_colour(alpha), label=rf"$\alpha = {alpha:g}$")
            numbers = summary(curve)
            rows.append(
                [
                    title,
                    f"{alpha:g}",
                    style.power(numbers["rest"]),
                    style.power(numbers["peak"] / numbers["rest"]),
                    style.power(numbers["at"]),
                    style.power(numbers["cutoff"]),
                    f"{numbers['slope']:.2f}",
                ]
            )
        ax.axhline(1, color="#888888", lw=0.6)
        ax.set(ylim=(1e-3, 30), xlim=(1e-2, 1e5))
        style.panel(ax, letter, title)
    for ax in axes[:, 0]:
        ax.set_ylabel("gain relative to rest")
    for ax in axes[1]:
        ax.set_xlabel(r"frequency $\omega$  (radian per unit of time)")
    axes[0, 0].legend(loc="lower left")
    header = ["measure", "alpha", "gain at rest", "peak / rest", "peak at", "cut-off (-3 dB of peak)", "slope beyond"]
    tables.write(style.THEORY, "frequency response", header, rows)
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "frequency_response"))
