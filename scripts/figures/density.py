"""Memory densities of the measures, on the past [0, t] and in a time-invariant layer."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fractal_ssm.hippo import operator
from scripts.figures import style

ALPHAS = (0.2, 0.5, 0.8)


def draw() -> Figure:
    style.use()
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 2.9))
    x = np.linspace(0, 1, 2000, endpoint=False)
    legs, legt, lagt = operator("legs", 1), operator("legt", 1, theta=0.4), operator("lagt", 1)
    left.plot(x, legs.density(x), color=style.MEASURE_COLOURS["legs"], label="LegS")
    window = np.where(x > 0.6, legt.density(x) / 0.4, 0.0)
    left.plot(x, window, color=style.MEASURE_COLOURS["legt"], label=r"LegT, $\theta = 0.4$")
    # The time constant of LagT is a fifth of the axis, so that its decay is visible.
    left.plot(x, 5 * lagt.density(5 * (1 - x)), color=style.MEASURE_COLOURS["lagt"], label="LagT")
    for alpha in ALPHAS:
        built = operator("fractional", 1, alpha=alpha)
        left.plot(x, built.density(x), color=style.alpha_colour(alpha), label=rf"fractional, $\alpha = {alpha}$")
    left.set(xlabel="time $x$  (now: $t = 1$)", ylabel="density", ylim=(0, 5.4), xlim=(0, 1.0))
    left.legend(loc="upper left")
    style.panel(left, "a", "on the past $[0, t]$")

    lag = np.geomspace(1e-3, 8, 400)
    s = np.exp(-lag)
    right.loglog(lag, s, color=style.MEASURE_COLOURS["legs"], label="LegS")
    for alpha in ALPHAS:
        built = operator("fractional", 1, alpha=alpha)
        right.loglog(lag, built.density(s) * s, color=style.alpha_colour(alpha), label=rf"$\alpha = {alpha}$")
    right.loglog(lag, lagt.density(lag), color=style.MEASURE_COLOURS["lagt"], ls=(0, (4, 3)), label="LagT")
    right.set(xlabel=r"lag $\tau$  (unit: $1 / \Delta$ positions)", ylabel="density", ylim=(3e-4, 60))
    right.legend(loc="lower left")
    style.panel(right, "b", r"in a layer without $1/t$: $s = e^{-\tau}$")
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "density"))
