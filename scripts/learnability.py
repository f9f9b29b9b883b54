"""Which layers learn the proxies, over seeds: tables and curves of docs/proxies.md.

    python -m scripts.learnability runs/sweeps/proxy-recall [MORE FOLDERS ...]

Finished runs below the folders are added to docs/results/proxy.csv, their validations to docs/results/proxy-curves.csv;
docs/results/proxy.png and the tables of docs/proxies.md are written from these two files, without folders as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import binomtest

from . import report, tables

PAGE = report.ROOT / "docs" / "proxies.md"
# Test accuracy from which a run counts as having learned its task. The places of the discs tell 91 % on Pathfinder,
# 50 % on its pairs.
LEARNED = {"recall": 0.9, "adding": 0.9, "pathfinder": 0.85, "pathfinder-matched": 0.7}
LAYERS = ("fractal", "fractal-tau", "s5", "s4", "s4d", "lru", "s5-short", "fractal-normal", "fractal-conv")
HEADER = (
    *("layer", "seeds that learned", "95 % interval", "test accuracy, mean", "lowest", "highest"),
    *("steps, median", "CPU seconds, median", "parameters"),
)
CURVE_COLUMNS = ("experiment", "seed", "started", "step", "loss", "accuracy")


def curve_rows(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Every validation of the finished runs below `folders` that have the settings of their experiment."""
    rows = []
    for path in sorted(path for folder in folders for path in folder.rglob("record.json")):
        record = json.loads(path.read_text())
        if record["status"] != "finished" or report.settings(record):
            continue
        run = {"experiment": record["choices"]["experiment"], "seed": str(record["seed"]), "started": record["started"]}
        for row in report.read(path.with_name("metrics.csv")):
            if row["split"] == "val":
                rows.append({**run, **{key: row[key] for key in ("step", "loss", "accuracy")}})
    return rows


def gather_curves(name: str, folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Add the validations below `folders` to `docs/results/<name>.csv`; all its rows, each once, sorted."""
    target = report.RESULTS / f"{name}.csv"
    rows = (report.read(target) if target.exists() else []) + curve_rows(folders)
    unique = {(row["experiment"], int(row["seed"]), row["started"], int(row["step"])): row for row in rows}
    rows = [unique[key] for key in sorted(unique)]
    report.write(target, CURVE_COLUMNS, rows)
    return rows


def parts(experiment: str) -> tuple[str, str]:
    """Layer and task of `proxy/<layer>-<task>`.

    >>> parts("proxy/s5-pathfinder-matched")
    ('s5', 'pathfinder-matched')
    """
    name = experiment.removeprefix("proxy/")
    task = max((task for task in LEARNED if name.endswith(f"-{task}")), key=len)
    return name.removesuffix(f"-{task}"), task


def interval(learned: int, runs: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of seeds that learn.

    >>> [round(bound, 3) for bound in interval(5, 5)]
    [0.566, 1.0]
    """
    found = binomtest(learned, runs).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def lines(task: str, rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """One line per layer (and settings of its own) that was run on a task, over its seeds."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        layer, row_task = parts(row["experiment"])
        if row_task == task:
            groups[LAYERS.index(layer), row.get("settings") or ""].append(row)
    found = []
    for (index, settings), runs in sorted(groups.items()):
        tests = [float(run["test"]) for run in runs]
        learned = sum(test >= LEARNED[task] for test in tests)
        low, high = interval(learned, len(runs))
        found.append(
            [
                f"{LAYERS[index]} {settings}".strip(),
                f"{learned} of {len(runs)}",
                f"{100 * low:.0f} to {100 * high:.0f} %",
                *(f"{100 * value:.1f} %" for value in (statistics.mean(tests), min(tests), max(tests))),
                f"{statistics.median(int(run['steps']) for run in runs):.0f}",
                f"{statistics.median(float(run['fit_cpu_seconds']) for run in runs):.0f}",
                f"{int(runs[0]['parameters']):,}",
            ]
        )
    return found


def draw(curves: Iterable[dict[str, Any]], target: Path) -> None:
    """Validation accuracy against the step, one panel a task, one line a run, one colour a layer."""
    runs: dict[tuple[str, str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in curves:
        runs[row["experiment"], row["seed"], row["started"]].append((int(row["step"]), float(row["accuracy"])))
    # A task that nobody has run yet gets no panel.
    shown = {task: threshold for task, threshold in LEARNED.items() if any(parts(run[0])[1] == task for run in runs)}
    figure = Figure(figsize=(1 + 4 * len(shown), 4), layout="constrained")
    named = {}
    for axes, (task, threshold) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        for (experiment, *_), points in runs.items():
            layer, run_task = parts(experiment)
            if run_task != task:
                continue
            style = {"color": f"C{LAYERS.index(layer)}"} if layer != "s5-short" else {"color": "black", "ls": "--"}
            # All begin at chance.
            steps, accuracies = zip((0, 0.5), *sorted(points), strict=True)
            (named[layer],) = axes.plot(steps, accuracies, marker=".", lw=1, alpha=0.7, **style)
        axes.axhline(threshold, color="grey", lw=0.8, ls=":")
        axes.set(xlabel="step", title=task, ylim=(0.4, 1.02))
        axes.grid(alpha=0.3)
    order = sorted(named, key=LAYERS.index)
    figure.legend([named[layer] for layer in order], order, loc="outside right center")
    figure.axes[0].set_ylabel("validation accuracy")
    figure.savefig(target, dpi=120, metadata={"Software": None})


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folders = report.parse(parser).folders
    rows = report.gather("proxy", folders)
    draw(gather_curves("proxy-curves", folders), report.RESULTS / "proxy.png")
    for task in LEARNED:
        body = lines(task, rows)
        tables.write(PAGE, f"proxy-{task}", HEADER, body)
        print(f"{task}\n{tables.markdown(HEADER, body)}\n")


if __name__ == "__main__":
    main()
