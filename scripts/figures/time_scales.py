"""The mean lag that each measure remembers, over its order: the unit of `dt=calibrated`."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from fractal_ssm.hippo import diagonalize, operator, time_scale
from scripts import tables
from scripts.figures import style

ORDERS = (2, 4, 8, 16, 32, 64, 128)
CURVES = (
    ("legs", {}, "spectrum", "LegS = fractional (paper), every $\\alpha$", "-"),
    ("legs", {}, "normal", "LegS, normal part (S4D-LegS, S5)", (0, (4, 2))),
    ("fractional", {"alpha": 0.9}, "normal", r"fractional (paper), normal part, $\alpha = 0.9$", (0, (4, 2))),
    ("fractional-tau", {"alpha": 0.5}, "spectrum", r"fractional-tau, $\alpha = 0.5$", "-"),
    ("fractional-galerkin", {"alpha": 0.5}, "spectrum", r"fractional-galerkin, $\alpha = 0.5$", "-"),
    ("fractional-normal", {"alpha": 0.5}, "spectrum", r"fractional-normal, $\alpha = 0.5$", "-"),
    ("fractional-normal", {"alpha": 0.9}, "spectrum", r"fractional-normal, $\alpha = 0.9$", (0, (4, 2))),
    ("legt", {}, "spectrum", r"LegT, $\theta = 1$", "-"),
    ("fourier", {}, "spectrum", r"Fourier, $\theta = 1$", "-"),
    ("lagt", {}, "spectrum", "LagT", "-"),
)


def draw() -> Figure:
    style.use()
    figure, ax = plt.subplots(figsize=(0.72 * style.WIDTH, 3.0))
    rows = []
    for name, options, method, text, dash in CURVES:
        values = []
        for N in ORDERS:
            built = operator(name, N, **options)
            # The time scale depends only on eigenvalues, so LegT and LagT need no eigenvectors here.
            values.append(time_scale(diagonalize(built, "normal") if method == "normal" else built))
        ax.loglog(ORDERS, values, "o", ls=dash, ms=3, color=style.MEASURE_COLOURS[name], label=text)
        rows.append([text.replace("$", "").replace("\\", ""), *(f"{value:.3f}" for value in values)])
    ax.set(xlabel="order $N$", ylabel="mean lag remembered", ylim=(0.2, 100))
    ax.set_xticks(ORDERS, [str(N) for N in ORDERS])
    ax.minorticks_off()
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    tables.write(style.THEORY, "time scales", ["mean lag at N =", *(str(N) for N in ORDERS)], rows)
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "time_scales"))
