"""Figures of docs/powerlaw.md, drawn only from the CSV files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .excess import arms
from .rows import LAYERS, arm, parts

# Default d of `powerlaw-predict`.
_DEFAULT_MEMORY = 0.4
# Panels side by side.
_COLUMNS = 3
_STYLES = ("-", "--", ":", "-.")


def colour(name: str) -> str:
    """The colour of a layer, the same for all its settings."""
    return f"C{LAYERS.index(name.split()[0])}"


def label(name: str) -> str:
    """An arm as figures name it.

    >>> label("s5 model.layer.dt_max=1.6 model.layer.dt_min=0.002")
    's5 dt_max=1.6 dt_min=0.002'
    """
    return name.replace("model.layer.", "")


def draw_excess(groups: dict[tuple[str, str], Sequence[dict[str, Any]]], target: Path) -> None:
    """Distance to the optimum: one panel per task and setting of its data with several arms, one point per run."""
    groups = {key: rows for key, rows in groups.items() if len(arms(rows)) > 1}
    height, width = max(-(-len(groups) // _COLUMNS), 1), max(min(len(groups), _COLUMNS), 1)
    figure = Figure(figsize=(5.5 * width, 3.2 * height), layout="constrained")
    panels = figure.subplots(height, width, squeeze=False).ravel()
    for empty in panels[max(len(groups), 1) :]:
        empty.set_axis_off()
    # Without runs there is one empty panel.
    for axes, ((task, data), rows) in zip(panels, groups.items(), strict=False):
        found = arms(rows)
        for line, one in enumerate(found):
            values = list(one.distances.values())
            axes.plot(values, [line] * len(values), "o", color=colour(one.name), alpha=0.6)
            axes.plot(np.mean(values), line, "|", color="black", markersize=14)
        axes.set_yticks(range(len(found)), [label(one.name) for one in found], fontsize=7)
        axes.axvline(0.0, color="grey", lw=0.8)
        axes.invert_yaxis()
        unit = "%" if rows[0]["metric"] == "mse" else "points"
        axes.set(xlabel=f"distance to the optimum, {unit}", title=f"{task} {data}".strip().replace("dataset.", ""))
        axes.grid(alpha=0.3)
    _save(figure, target)


def draw_modes(details: Sequence[dict[str, Any]], target: Path) -> None:
    """Learned alphas, and dampings per step, over the true d, for runs of the prediction task."""
    shown = [row for row in details if "-predict" in row["experiment"] and "horizon" not in row["data"]]
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = sorted({_arm(row) for row in shown}, key=lambda name: (LAYERS.index(name.split()[0]), name))
    for offset, name in enumerate(names):
        rows = [row for row in shown if _arm(row) == name]
        place = 0.008 * (offset - 0.5 * (len(names) - 1))
        alphas = [(memory(row["data"]) + place, float(row["value"])) for row in rows if row["kind"] == "alpha"]
        if alphas:
            left.plot(*zip(*alphas, strict=True), "o", color=colour(name), alpha=0.5, label=label(name))
        _draw_dampings(right, rows, name, place)
    left.set(xlabel="true d", ylabel="learned alpha", title="alphas (learn_alpha=true)", ylim=(0, 1))
    right.set(xlabel="true d", ylabel="damping a step", title="median over the modes, bar: 10 to 90 %", yscale="log")
    for axes in (left, right):
        axes.set_xlim(-0.5 if any(memory(row["data"]) < 0 for row in shown) else 0.0, 0.5)
        axes.grid(alpha=0.3)
    _legend(figure, right)
    _save(figure, target)


def _draw_dampings(axes: Any, rows: Sequence[dict[str, Any]], name: str, place: float) -> None:
    found: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["kind"] == "damping":
            found[memory(row["data"])][row["where"].partition(".")[2]].append(float(row["value"]))
    legend: str | None = label(name)
    for d, shares in sorted(found.items()):
        low, middle, high = (float(np.median(shares[share])) for share in ("0.1", "0.5", "0.9"))
        axes.errorbar(
            d + place, middle, [[middle - low], [high - middle]], fmt="o", color=colour(name), capsize=3, label=legend
        )
        legend = None


def draw_delays(details: Sequence[dict[str, Any]], target: Path) -> None:
    """Accuracy of recall by delay: one line per arm, the mean over seeds."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    curves = _curves(details, "delay")
    styles = _styles(name for name, _ in curves)
    for (name, _), points in curves.items():
        axes.plot(*points, styles[name], marker="o", markersize=4, color=colour(name), label=label(name))
    axes.set_xscale("log", base=2)
    axes.set(xlabel="delay, steps", ylabel="accuracy")
    axes.grid(alpha=0.3)
    _legend(figure, axes)
    _save(figure, target)


def draw_speeds(details: Sequence[dict[str, Any]], target: Path) -> None:
    """Distance to the optimum by speed of the test: layers told the speed on the left, not told on the right."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    curves = _curves(details, "speed")
    styles = _styles(name for name, _ in curves)
    titles = ("told the speed (dt_scale)", "not told")
    for axes, title, told in zip(panels, titles, ("scaled", "as trained"), strict=True):
        for (name, how), (speeds, errors) in curves.items():
            # An LRU refuses a dt_scale; its one point at the speed of training is no curve.
            if how == told and len(speeds) > 1:
                distances = 100 * (np.array(errors) - 1)
                axes.plot(
                    speeds, distances, styles[name], marker="o", markersize=4, color=colour(name), label=label(name)
                )
        axes.set_xscale("log", base=2)
        axes.set(xlabel="speed of the test, training 1", yscale="log", title=title)
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("distance to the optimum, %")
    _legend(figure, panels[1])
    _save(figure, target)


def _curves(details: Sequence[dict[str, Any]], kind: str) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """(arm, how) -> places and the means over seeds there, of rows whose `where` is "PLACE HOW" or "PLACE"."""
    found: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in details:
        if row["kind"] == kind:
            where, _, how = row["where"].partition(" ")
            found[_arm(row), how][float(where)].append(float(row["value"]))
    ordered = sorted(found, key=lambda key: (LAYERS.index(key[0].split()[0]), key))
    return {key: (sorted(found[key]), [float(np.mean(found[key][p])) for p in sorted(found[key])]) for key in ordered}


def _styles(names: Iterable[str]) -> dict[str, str]:
    """A line style for each arm, which tells the arms of one layer apart: they share its colour."""
    used: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        used[colour(name)].append(name)
    return {name: _STYLES[place % len(_STYLES)] for own in used.values() for place, name in enumerate(own)}


def _legend(figure: Figure, axes: Any) -> None:
    """The lines of axes, outside and to the right of the figure."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, fontsize=7, loc="outside right upper")


def memory(data: str) -> float:
    """d in the settings of a dataset, or its default.

    >>> memory("dataset.d=0.2 dataset.horizon=4"), memory("")
    (0.2, 0.4)
    """
    named = re.search(r"\bdataset\.d=(\S+)", data)
    return float(named[1]) if named else _DEFAULT_MEMORY


def _arm(row: dict[str, Any]) -> str:
    return arm({"layer": parts(row["experiment"])[0], "settings": row["settings"]})


def _save(figure: Figure, target: Path) -> None:
    figure.savefig(target, dpi=120, metadata={"Software": None})
