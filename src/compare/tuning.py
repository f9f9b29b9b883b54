"""Equal tuning: the same number of trials for every arm, over declared ranges, judged by validation only.

The first trial of an arm has its own settings, so tuning does not lower its validation score. The other trials use the
same points of a scrambled Sobol sequence in all arms, so no arm gains from a luckier search, and all trials can run at
the same time. They use a seed that the comparison does not use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import qmc

from ..config import compose
from ..errors import UsageError
from ..registry import import_plugins, layers
from .plan import Plan
from .runs import Run

SEED = 100


@dataclass(frozen=True)
class Range:
    """Range of one key, uniform in [low, high], or in the logarithm if `log`."""

    low: float
    high: float
    log: bool = False

    def at(self, share: float) -> float:
        """The value at a share of the range from low to high, to three digits.

        >>> Range(0.001, 0.1, log=True).at(0.5)
        0.01
        """
        if self.log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return float(f"{value:.3g}")


def read_ranges(path: str | Path | None = None) -> dict[str, Range]:
    """Read the ranges of a YAML file, key -> {low, high, log}; None is the packaged `configs/tuning/default.yaml`.

    Raises:
        UsageError: no such file, or an invalid range.
    """
    source = resources.files("fractal_ssm.configs") / "tuning" / "default.yaml" if path is None else Path(path)
    if not source.is_file():
        raise UsageError(f"There is no file of ranges {source}. Leave ranges=... out for the packaged ones.")
    try:
        found = {str(key): Range(**node) for key, node in yaml.safe_load(source.read_text()).items()}
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise UsageError(f"{source}: each line is key: {{low: 0.001, high: 0.1, log: true}}. {error}") from error
    for key, values in found.items():
        numbers = all(isinstance(v, (int, float)) and math.isfinite(v) for v in (values.low, values.high))
        if not numbers or values.low > values.high or (values.log and values.low <= 0):
            raise UsageError(f"{source}: {key} needs finite low <= high (low > 0 with log), got {values}.")
    return found


def points(ranges: Mapping[str, Range], n: int) -> list[list[str]]:
    """Settings of n trials, key=value in the order of the ranges; the first is empty. A larger n only adds trials."""
    shares = qmc.Sobol(len(ranges), scramble=True, rng=0).random_base2(math.ceil(math.log2(max(1, n - 1))))[: n - 1]
    spread = [[f"{key}={ranges[key].at(share)}" for key, share in zip(ranges, row, strict=True)] for row in shares]
    return [[], *spread]


def trial_plan(plan: Plan, ranges: Mapping[str, Range], n: int) -> Plan:
    """The trials as a plan with one seed: "<arm>, trial 0" has the arm's settings, "<arm>, trial 3" the third point.

    Keys that are not options of an arm's layer (an LRU has no dt_min) are left out of its points.
    """
    if SEED in plan.seeds:
        raise UsageError(f"Seed {SEED} belongs to the tuning; choose other seeds for the comparison.")
    arms = {}
    for arm, settings in plan.arms.items():
        missing = _not_of(plan, arm, ranges)
        for number, point in enumerate(points(ranges, n)):
            own = [text for text in point if text.partition("=")[0] not in missing]
            arms[trial_name(arm, number)] = [*settings, *own]
    first = trial_name(plan.baseline, 0)
    return Plan(f"{plan.name}, tuning", "Which settings suit each arm?", arms, first, [SEED], plan.common)


def tuned(plan: Plan, trials: Plan, runs: Sequence[Run], ranges: Mapping[str, Range], n: int) -> Plan:
    """The plan with each arm at its best trial by the main metric in validation (the first of equal trials).

    Raises:
        UsageError: no trial of an arm finished.
    """
    scores = {run.arm: _merit(run) for run in runs if run.finished}
    metric = next((run.metric.name for run in runs if run.finished), "")
    arms = {}
    for arm in plan.arms:
        names = [name for number in range(n) if (name := trial_name(arm, number)) in scores]
        if not names:
            raise UsageError(f"No trial of '{arm}' finished, so it cannot be tuned; the logs are beside their folders.")
        arms[arm] = list(trials.arms[max(names, key=lambda name: scores[name])])
    told = "; ".join(f"{key} {r.low:g} to {r.high:g}{' (log)' if r.log else ''}" for key, r in ranges.items())
    sentence = (
        f"each arm at its best of {n} trials, its own settings and {n - 1} points that all arms share, "
        f"by validation {metric} on seed {SEED}: {told}"
    )
    return replace(plan, arms=arms, tuning=sentence)


def table(plan: Plan, runs: Sequence[Run], n: int) -> tuple[list[str], list[list[str]]]:
    """One row for each trial: arm, number, its settings, and its validation score or why there is none."""
    by_arm = {run.arm: run for run in runs}
    rows = []
    for arm, settings in plan.arms.items():
        for number in range(n):
            run = by_arm.get(trial_name(arm, number))
            if run is not None:
                own = " ".join(text for text in run.facts.get("overrides", []) if text not in settings)
                score = run.metric.shown(run.score("val")) if run.finished else run.reason
                rows.append([arm, str(number), own, score])
    metric = next((run.metric.name for run in runs if run.finished), "score")
    return ["arm", "trial", "settings", f"validation {metric}"], rows


def _merit(run: Run) -> float:
    """Score by which trials are ranked, higher is better; -inf if the metric is nan."""
    gain = run.metric.gain(run.score("val"), 0.0)
    return -math.inf if math.isnan(gain) else gain


def trial_name(arm: str, number: int) -> str:
    """Name of a trial's arm."""
    return f"{arm}, trial {number}"


def _not_of(plan: Plan, arm: str, ranges: Mapping[str, Any]) -> set[str]:
    """Keys model.layer.X of the ranges for which the arm's layer has no option X."""
    config = compose(plan.overrides(arm, SEED))
    import_plugins(config.imports)
    options = layers.options(config.model["layer"]["name"])
    prefix = "model.layer."
    return {key for key in ranges if key.startswith(prefix) and key.removeprefix(prefix).split(".")[0] not in options}
