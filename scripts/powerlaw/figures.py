"""Figures of docs/powerlaw.md, drawn only from the CSV files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
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


def colour(name: str) -> str:
    """The colour of a layer, the same for all its settings."""
    return f"C{LAYERS.index(name.split()[0])}"


def draw_excess(groups: dict[tuple[str, str], Sequence[dict[str, Any]]], target: Path) -> None:
    """Distance to the optimum: one panel per task and setting of its data, one point per run."""
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
        axes.set_yticks(range(len(found)), [one.name for one in found])
        axes.axvline(0.0, color="grey", lw=0.8)
        axes.invert_yaxis()
        unit = "%" if rows[0]["metric"] == "mse" else "points"
        axes.set(xlabel=f"distance to the optimum, {unit}", title=f"{task} {data}".strip().replace("dataset.", ""))
        axes.grid(alpha=0.3)
    _save(figure, target)


def draw_modes(details: Sequence[dict[str, Any]], target: Path) -> None:
    """Learned alphas, and dampings per step, over the true d, for runs of the prediction task."""
    shown = [row for row in details if "-predict" in row["experiment"] and "horizon" not in row["data"]]
    figure = Figure(figsize=(10, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = sorted({_arm(row) for row in shown}, key=lambda name: (LAYERS.index(name.split()[0]), name))
    for offset, name in enumerate(names):
        rows = [row for row in shown if _arm(row) == name]
        place = 0.008 * (offset - 0.5 * (len(names) - 1))
        alphas = [(memory(row["data"]) + place, float(row["value"])) for row in rows if row["kind"] == "alpha"]
        if alphas:
            left.plot(*zip(*alphas, strict=True), "o", color=colour(name), alpha=0.5, label=name)
        _draw_dampings(right, rows, name, place)
    left.set(xlabel="true d", ylabel="learned alpha", title="alphas (learn_alpha=true)", ylim=(0, 1))
    right.set(xlabel="true d", ylabel="damping a step", title="median over the modes, bar: 10 to 90 %", yscale="log")
    for axes in (left, right):
        axes.set_xlim(-0.5 if any(memory(row["data"]) < 0 for row in shown) else 0.0, 0.5)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    _save(figure, target)


def _draw_dampings(axes: Any, rows: Sequence[dict[str, Any]], name: str, place: float) -> None:
    found: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["kind"] == "damping":
            found[memory(row["data"])][row["where"].partition(".")[2]].append(float(row["value"]))
    label: str | None = name
    for d, shares in sorted(found.items()):
        low, middle, high = (float(np.median(shares[share])) for share in ("0.1", "0.5", "0.9"))
        axes.errorbar(
            d + place, middle, [[middle - low], [high - middle]], fmt="o", color=colour(name), capsize=3, label=label
        )
        label = None


def draw_curves(details: Sequence[dict[str, Any]], kind: str, target: Path) -> None:
    """Accuracy by delay (kind "delay"), or error by speed (kind "speed"): one line per layer, the mean over seeds."""
    found: dict[tuple[str, bool], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in details:
        if row["kind"] == kind:
            where, _, told = row["where"].partition(" ")
            found[_arm(row), told != "as trained"][float(where)].append(float(row["value"]))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, told), points in found.items():
        places = sorted(points)
        label = f"{name}, not told" if not told else name
        style = "-" if told else "--"
        axes.plot(places, [np.mean(points[p]) for p in places], style, marker="o", color=colour(name), label=label)
    axes.set_xscale("log", base=2)
    if kind == "delay":
        axes.set(xlabel="delay, steps", ylabel="accuracy")
    else:
        axes.set(xlabel="speed of the test, training 1", ylabel="squared error / optimum", yscale="log")
    axes.grid(alpha=0.3)
    if found:
        axes.legend(fontsize=7)
    _save(figure, target)


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
