"""The cost of diagonalising: cond(V) and the accuracy of B_tilde over the order."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from fractal_ssm import UsageError
from fractal_ssm.hippo import diagonalize, operator
from scripts import tables
from scripts.figures import style

ORDERS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TABLE = (8, 16, 32, 64, 128, 256)
CURVES = (
    ("fractional", {"alpha": 0.5}, "direct", "-"),
    ("fractional", {"alpha": 0.5}, "normal", (0, (4, 2))),
    ("fractional-tau", {"alpha": 0.5}, "direct", "-"),
    ("fractional-tau", {"alpha": 1e-6}, "direct", (0, (1, 1.2))),
    ("fractional-galerkin", {"alpha": 0.5}, "direct", "-"),
    ("fourier", {}, "direct", "-"),
)


def label(name: str, options: dict[str, float], method: str) -> str:
    alpha = rf", $\alpha = {options['alpha']:g}$".replace("1e-06", "10^{-6}") if options else ""
    return style.MEASURE_NAMES[name] + alpha + (", normal part" if method == "normal" else "")


def float64_error(N: int, alpha: float) -> float:
    """Relative error of B_tilde by numpy's eig and solve, against the closed form; modes matched by eigenvalue."""
    built = operator("fractional", N, alpha=alpha)
    eigenvalues, V = np.linalg.eig(built.A)
    order = np.argsort(eigenvalues.real)
    try:
        found = np.linalg.solve(V[:, order], built.B.astype(complex))
    except np.linalg.LinAlgError:
        return np.inf
    return float(np.abs(np.abs(found) / diagonalize(built).B_tilde.real - 1).max())


def draw() -> Figure:
    style.use()
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 3.5))
    columns = {}
    for name, options, method, dash in CURVES:
        points = {}
        for N in ORDERS:
            try:
                points[N] = diagonalize(operator(name, N, **options), method)
            except UsageError:
                # The curve ends where `diagonalize` refuses.
                continue
        text = label(name, options, method)
        left.loglog(
            list(points), [p.condition for p in points.values()], color=style.MEASURE_COLOURS[name], ls=dash, label=text
        )
        columns[text.replace("$", "").replace(r"\alpha", "alpha").replace("10^{-6}", "1e-6")] = points
    left.axhspan(1e16, 1e40, color="#f0f0f0", zorder=0)
    left.text(2.1, 2e17, "beyond float64", fontsize=7.5, color="#666666")
    left.set(xlabel="order $N$", ylabel="cond($V$), unit columns", ylim=(0.7, 1e24), xticks=(2, 8, 32, 128))
    left.set_xticks((2, 8, 32, 128), ("2", "8", "32", "128"))
    left.minorticks_off()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    style.panel(left, "a", "conditioning of the eigenvectors")

    small = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32)
    for alpha in (0.0, 0.5, 0.9):
        errors = [min(float64_error(N, alpha), 1e2) for N in small]
        text = rf"eig and solve, $\alpha = {alpha:g}$"
        right.semilogy(small, errors, "o-", ms=3, color=style.alpha_colour(alpha), label=text)
    right.axhline(1.0, color="#888888", lw=0.7)
    right.text(2, 1.6, "noise", fontsize=7.5, color="#666666")
    right.axhspan(1e-15, 1e-13, color="#f6d5c2", zorder=0)
    right.text(9.5, 2.2e-15, "closed form (against 60 digits)", fontsize=7.5, color="#a04000")
    right.set(xlabel="order $N$", ylabel=r"relative error of $\tilde B$", ylim=(1e-16, 3e2))
    right.legend(loc="lower right", bbox_to_anchor=(1.0, 0.16))
    style.panel(right, "b", "paper: float64 against closed form")

    header = ["N", *(f"cond(V), {text}" for text in columns), "largest B_tilde, fractional (paper), alpha = 0.5"]
    rows = []
    for N in TABLE:
        cells = [style.power(points[N].condition) if N in points else "refused" for points in columns.values()]
        rows.append([str(N), *cells, style.power(diagonalize(operator("fractional", N, alpha=0.5)).size)])
    tables.write(style.THEORY, "conditioning", header, rows)
    return figure


if __name__ == "__main__":
    print(style.save(draw(), "conditioning"))
