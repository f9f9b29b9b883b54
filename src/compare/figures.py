"""Figures of a report: learning curves with bands, scores against processor time, a forest plot of differences.

Drawn by matplotlib as SVG on a transparent background, in colours that are legible on white and on black.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import ArmResult, Results

# Text and axes: a grey with a contrast of at least 4.5 to white and to black.
_INK = "#767676"
_STYLE = {
    "font.size": 9,
    "svg.hashsalt": "fractal_ssm",  # the same picture from the same records
    "svg.fonttype": "none",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _INK,
    "grid.alpha": 0.25,
}
_COLOURS = ("#3b7dd8", "#d9541e", "#2e9e5b", "#a55fc4", "#b8860b", "#c2405f", "#1f9aa3", "#7a7a2a")


def curves(results: Results) -> str:
    """SVG of the mean validation score against the step, with the range over the seeds as a band."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for colour, arm in _coloured(results):
            steps, low, mean, high = band(arm, results.units.scale)
            if len(steps):
                axes.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
                axes.plot(steps, mean, color=colour, marker="." if len(steps) < 30 else None, label=wrapped(arm.name))
        _finish(axes, "step", f"validation {results.units.axis}")
        return _svg(figure)


def cost(results: Results) -> str:
    """SVG of the test score of every run against the processor time of its fit, with reference scores as lines."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.subplots()
        for colour, arm in _coloured(results):
            minutes = [run.cpu_seconds / 60 for run in arm.finished]
            axes.plot(
                minutes,
                [results.units.scale * run.score() for run in arm.finished],
                "o",
                color=colour,
                alpha=0.8,
                label=wrapped(arm.name),
            )
        for name, value in results.reference.items():
            axes.axhline(results.units.scale * value, color=_INK, lw=1, ls="--")
            axes.annotate(
                name, (0, results.units.scale * value), xycoords=("axes fraction", "data"), va="bottom", size=8
            )
        _finish(axes, "processor time of the fit, minutes", f"test {results.units.axis}")
        return _svg(figure)


def forest(results: Results) -> str:
    """SVG of each arm's paired difference with its 95 % interval, and the difference of each seed as a tick."""
    names, scale = [name for name, found in results.differences.items() if found.n >= 2], results.units.scale
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 0.9 + 0.42 * max(len(names), 1)), layout="constrained")
        axes = figure.subplots()
        colours = {arm.name: colour for colour, arm in _coloured(results)}
        axes.axvline(0, color=_INK, lw=1)
        for row, name in enumerate(reversed(names)):
            found = results.differences[name]
            axes.plot([scale * found.low, scale * found.high], [row, row], color=colours[name], lw=2)
            axes.plot(scale * found.mean, row, "s" if found.claimed else "o", color=colours[name], ms=6)
            each = [scale * d for d in seed_differences(results, name)]
            axes.plot(each, [row + 0.22] * len(each), "|", color=colours[name], ms=6, alpha=0.8)
        axes.set_yticks(range(len(names)), [wrapped(name) for name in reversed(names)])
        axes.set_ylim(-0.6, len(names) - 0.3)
        axes.set_xlabel(_compared(results))
        axes.grid(axis="x")
        return _svg(figure)


def wrapped(name: str) -> str:
    """A name broken into lines of at most 32 characters."""
    return textwrap.fill(name, 32)


def _compared(results: Results) -> str:
    metric, baseline = results.units.metric, results.plan.baseline
    if metric.is_share:
        return f"points of test {metric.name} above {baseline}"
    better = "right" if metric.higher_is_better else "left"
    return f"test {metric.name} minus that of {baseline}; {better} of 0 is better"


def band(arm: ArmResult, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps at which every finished run was validated, and the lowest, mean and highest score there, times `scale`."""
    tables = [{step: scale * value for step, _, value in run.validations()} for run in arm.finished]
    steps = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    values = np.array([[table[step] for step in steps] for table in tables]).reshape(len(tables), len(steps))
    if not len(values):
        return (np.empty(0),) * 4
    return np.array(steps), values.min(axis=0), values.mean(axis=0), values.max(axis=0)


def seed_differences(results: Results, arm: str) -> list[float]:
    """The paired difference from the baseline for every seed that both arms have."""
    scores = {(run.arm, run.seed): run.score() for run in results.runs if run.finished}
    base = results.plan.baseline
    both = [seed for seed in results.plan.seeds if (arm, seed) in scores and (base, seed) in scores]
    return [scores[arm, seed] - scores[base, seed] for seed in both]


def _coloured(results: Results) -> Sequence[tuple[str, ArmResult]]:
    return [(_COLOURS[index % len(_COLOURS)], arm) for index, arm in enumerate(results.arms)]


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.grid()
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = math.ceil(len(labels) / 12)
        axes.figure.legend(handles, labels, loc="outside right center", frameon=False, ncols=columns)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # Without the XML header, for use inside a page.
    return text.getvalue()[text.getvalue().index("<svg") :]
