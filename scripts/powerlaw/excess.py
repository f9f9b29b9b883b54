"""Distances of runs from the optimum, over seeds: the lines of the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from fractal_ssm.compare import statistics

from .rows import BASELINE, arm

HEADER = (
    *("layer", "seeds", "test", "distance to the optimum", "95 % interval", "against s5", "95 % interval", "p, Holm"),
    *("parameters", "CPU seconds"),
)


@dataclass(frozen=True)
class Arm:
    """The runs of one line.

    Attributes:
        tests: seed -> main metric on the test split.
        distances: seed -> distance to the optimum (`distance`).
    """

    name: str
    tests: dict[int, float]
    distances: dict[int, float]
    parameters: int
    cpu_seconds: float


def distance(metric: str, value: float, optimum: float) -> float:
    """Distance to the optimal predictor on the same test split: percent above its squared error, or points of accuracy
    below it.

    >>> distance("mse", 0.75, 0.5), distance("accuracy", 0.75, 1.0)
    (50.0, 25.0)
    """
    return 100 * (value / optimum - 1) if metric == "mse" else 100 * (optimum - value)


def arms(rows: Sequence[dict[str, Any]]) -> list[Arm]:
    """The runs of one task and one setting of its data, grouped into lines, in the order of the rows."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(arm(row), []).append(row)
    return [_arm(name, runs) for name, runs in grouped.items()]


def _arm(name: str, runs: Sequence[dict[str, Any]]) -> Arm:
    tests = {int(run["seed"]): float(run["test"]) for run in runs}
    optima = {int(run["seed"]): json.loads(run["reference"])["optimal"] for run in runs}
    metric = runs[0]["metric"]
    return Arm(
        name,
        tests,
        {seed: distance(metric, test, optima[seed]) for seed, test in tests.items()},
        int(runs[0]["parameters"]),
        sum(float(run["fit_cpu_seconds"]) for run in runs) / len(runs),
    )


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean; nan for one value."""
    found = statistics.summary(values)
    if found.n < 2:
        return math.nan, math.nan
    half = float(stats.t.ppf(0.975, found.n - 1)) * found.deviation / math.sqrt(found.n)
    return found.mean - half, found.mean + half


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each layer, then one for each reference predictor."""
    found, against = arms(rows), differences(rows)
    return [_line(one, against.get(one.name), rows[0]["metric"]) for one in found] + reference_lines(rows)


def differences(rows: Sequence[dict[str, Any]]) -> dict[str, statistics.Difference]:
    """Line -> its distance minus that of the baseline on the same seeds, corrected over the lines by Holm's method."""
    found = arms(rows)
    base = next((one for one in found if one.name == BASELINE), None)
    pairs = {one.name: _paired(base, one) for one in found if base is not None and one is not base}
    return statistics.corrected({name: pair for name, pair in pairs.items() if pair is not None})


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """The conclusion from the table: which lines differ from the baseline at 5 %, and which do not."""
    found = differences(rows)
    closer = [name for name, pair in found.items() if pair.claimed and pair.mean < 0]
    further = [name for name, pair in found.items() if pair.claimed and pair.mean > 0]
    rest = [name for name in found if name not in (*closer, *further)]
    said = [
        f"{what} than {BASELINE}, at 5 % after the correction: {', '.join(f'`{name}`' for name in names)}."
        for what, names in (("Closer to the optimum", closer), ("Further from the optimum", further))
        if names
    ]
    said += [f"Not told apart from {BASELINE} by these seeds: {', '.join(f'`{name}`' for name in rest)}."] * bool(rest)
    return " ".join(said)


def _paired(base: Arm, other: Arm) -> statistics.Difference | None:
    seeds = sorted(base.distances.keys() & other.distances.keys())
    pairs = [(base.distances[seed], other.distances[seed]) for seed in seeds]
    return statistics.difference(pairs) if pairs else None


def _line(one: Arm, pair: statistics.Difference | None, metric: str) -> list[str]:
    values = list(one.distances.values())
    return [
        one.name,
        str(len(values)),
        f"{sum(one.tests.values()) / len(values):.4f}",
        _signed(sum(values) / len(values), metric),
        _between(*interval(values)),
        "" if pair is None else _signed(pair.mean, metric),
        "" if pair is None else _between(pair.low, pair.high),
        "" if pair is None or math.isnan(pair.corrected_p) else f"{pair.corrected_p:.2g}",
        f"{one.parameters:,}",
        f"{one.cpu_seconds:.0f}",
    ]


def reference_lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Lines of the reference predictors, which need no training, in italics; all seeds share the test split.

    Expected values are compared with the expected optimum, since neither depends on the sample in the test split.
    """
    reference, metric = json.loads(rows[0]["reference"]), rows[0]["metric"]
    lines = []
    for name, value in reference.items():
        optimum = reference["optimal, expected" if name.endswith("expected") else "optimal"]
        lines.append([f"*{name}*", "", f"{value:.4f}", _signed(distance(metric, value, optimum), metric), *[""] * 6])
    return lines


def _signed(value: float, metric: str) -> str:
    return f"{value:+.2f} {'%' if metric == 'mse' else 'points'}"


def _between(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{low:+.2f} to {high:+.2f}"


def measured(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Experiment -> the result of its runs without other settings, for the header of its file."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not row["data"] and not row["settings"]:
            grouped.setdefault(row["experiment"], []).append(row)
    found = {}
    for experiment, runs in grouped.items():
        (one,), metric = arms(runs), runs[0]["metric"]
        score, apart = statistics.summary(list(one.tests.values())), statistics.summary(list(one.distances.values()))
        spread = "" if apart.n < 2 else f" ± {apart.deviation:.2f}"
        away = f"{apart.mean:+.2f}{spread} {'%' if metric == 'mse' else 'points'}"
        found[experiment] = (
            f"{metric} {score.mean:.4f}, {away} from the optimum over {apart.n} seed{'s' * (apart.n > 1)}"
        )
    return found
