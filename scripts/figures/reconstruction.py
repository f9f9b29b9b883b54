"""One signal, reconstructed from the state of every measure, with its error and the least possible error.

The table also has `fractional-normal`. It has no basis, so its state is read in the basis of fractional-tau, whose
normal part it is.
"""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fractal_ssm.hippo import Operator, operator, project, reconstruct, true_projection
from fractal_ssm.hippo.projection import coordinate
from scripts import tables
from scripts.figures import style

N = 32
LENGTH = 1500
PANELS = (
    ("legs", {}),
    ("legt", {"theta": 0.5}),
    ("lagt", {}),
    ("fourier", {"theta": 0.5}),
    ("fractional", {"alpha": 0.5}),
    ("fractional-tau", {"alpha": 0.5}),
    ("fractional-galerkin", {"alpha": 0.5}),
    ("random", {}),
)


NORMAL_ALPHAS = (0.1, 0.5, 0.9)


def signal() -> tuple[np.ndarray, np.ndarray]:
    """Band-limited noise of up to eleven periods on [0, 1], from seed 4; samples and times."""
    generator = np.random.default_rng(4)
    t = np.arange(1, LENGTH + 1) / LENGTH
    periods = np.arange(1, 12)
    phases, sizes = generator.uniform(0, 2 * np.pi, 11), generator.standard_normal(11)
    return (sizes[:, None] * np.sin(2 * np.pi * np.outer(periods, t) + phases[:, None])).sum(0) / 2.5, t


def read_back(built: Operator, unit: float) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """The samples that the measure sees, the curve from its state, and the errors of this and of the best curve."""
    u, t = signal()
    clock = unit * t
    state = project(u, clock, built)[-1]
    best = true_projection(u, clock, built, at=[-1])[0]
    seen = t > 1 - built.options.get("theta", 1.0)
    form = "ltv" if built.kind == "scaled" else "lti"
    # Weight each sample by the density at the middle of its interval, where it is finite.
    density = built.density(coordinate(built, clock[seen] - 0.5 * unit / LENGTH, clock[-1], form))
    curves = [reconstruct(x, clock[seen], clock[-1], built) for x in (state, best)]
    miss = [np.sqrt((density * (c - u[seen]) ** 2).sum() / (density * u[seen] ** 2).sum()) for c in curves]
    return seen, curves[0], miss


def normal_part(alpha: float) -> Operator:
    """fractional-normal in the coordinates of fractional-tau, x = D^-1 z, with tau's basis to read it in."""
    tau, normal = (operator(name, N, alpha=alpha) for name in ("fractional-tau", "fractional-normal"))
    scale = tau.normal_form.scale
    return replace(tau, name="fractional-normal", A=normal.A * scale[None, :] / scale[:, None], B=normal.B / scale)


def draw() -> Figure:
    style.use()
    figure, axes = plt.subplots(4, 2, figsize=(style.WIDTH, 6.4), sharex=True, sharey=True)
    u, t = signal()
    rows = []
    for ax, letter, (name, options) in zip(axes.flat, "abcdefgh", PANELS, strict=True):
        # The time unit of LagT is a tenth of the axis.
        seen, curve, miss = read_back(operator(name, N, **options), unit={"lagt": 10.0}.get(name, 1.0))
        rows.append(line(style.MEASURE_NAMES[name], options, miss))
        ax.plot(t, u, color="#bdbdbd", lw=2.6, label="signal")
        ax.plot(t[seen], curve, color=style.MEASURE_COLOURS[name], lw=1.2)
        detail = "".join(rf", $\{key} = {value}$" for key, value in options.items())
        style.panel(ax, letter, style.MEASURE_NAMES[name] + detail)
        ax.text(
            0.01,
            0.03,
            f"error {miss[0]:.1%}, least possible {miss[1]:.1%}",
            transform=ax.transAxes,
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axes[0, 0].set(xlim=(0, 1), ylim=(-2.6, 2.2))
    for ax in axes[-1]:
        ax.set_xlabel("time (now: 1)")
    for alpha in NORMAL_ALPHAS:
        rows.append(line("fractional-normal", {"alpha": alpha}, read_back(normal_part(alpha), 1.0)[2]))
    tables.write(style.THEORY, "reconstruction", ["measure", "error of its state", "least possible"], rows)
    return figure


def line(name: str, options: dict[str, float], miss: list[float]) -> list[str]:
    """A row of the table: relative errors, weighted by the measure."""
    return [", ".join([name, *(f"{key} = {value:g}" for key, value in options.items())]), *(f"{e:.1%}" for e in miss)]


if __name__ == "__main__":
    print(style.save(draw(), "reconstruction"))
