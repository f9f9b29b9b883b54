"""Results of a comparison: the numbers and sentences that every form of report shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..training.metric import ACCURACY, Metric
from .plan import Plan
from .runs import Run, mixtures
from .statistics import Difference, Summary, corrected, difference, share_interval, summary
from .units import Units


@dataclass(frozen=True)
class ArmResult:
    """Summary of the finished runs of one arm; `summary` is None if there are none.

    ended: number of runs that finished or failed.
    majority: mean test accuracy of the best constant answer; nan for a task without classes.
    r2: mean share of the variance of the test targets that is predicted; nan for a task with classes.
    left_chance, chance_interval: number of ended runs that beat a trivial answer (`Run.left_chance`), with Wilson's
        95 % interval; a failed run counts as not having left chance.
    samples_to: (median over the runs that reached the plan's threshold, their number), or None.
    """

    name: str
    runs: Sequence[Run]
    planned: int
    summary: Summary | None
    majority: float
    r2: float
    ended: int
    left_chance: int
    chance_interval: tuple[float, float]
    parameters: int
    steps_per_second: float
    cpu_minutes: float
    peak_mib: float
    samples_to: tuple[int, int] | None

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.finished]


@dataclass(frozen=True)
class Results:
    """The contents of a report.

    Attributes:
        plan: the plan of the comparison.
        arms: results of the arms, in the order of the plan.
        differences: arm -> its paired difference from the baseline; only arms with a pair.
        notes: warnings to the reader: mixed conditions, failed and missing runs.
        units: text form of the values of the main metric.
        reference: scores of predictors that need no training, name -> mean over the finished runs.
    """

    plan: Plan
    arms: Sequence[ArmResult]
    differences: dict[str, Difference]
    notes: Sequence[str]
    units: Units
    reference: Mapping[str, float]

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]


def collect(plan: Plan, runs: Sequence[Run], allow_mixed: bool = False) -> Results:
    """Summarise the runs of a plan.

    Raises:
        UsageError: the runs differ in data, split, budget, code revision or settings within an arm, and `allow_mixed`
            is not set (if it is, each of these becomes a note of the results); the runs have different main metrics;
            or the plan's threshold is not a possible value of their metric.
    """
    mixed, metric = mixtures(runs), _metric(plan, runs)
    if mixed and not allow_mixed:
        raise UsageError(
            "These runs cannot be compared as they are:\n  "
            + "\n  ".join(mixed)
            + "\nRepeat the runs that differ, or say mixed=allow; the report then says so."
        )
    arms = [_arm(plan, name, [run for run in runs if run.arm == name]) for name in plan.arms]
    found = {arm.name: pairs for arm in arms if arm.name != plan.baseline and (pairs := _pairs(plan, runs, arm.name))}
    differences = corrected({name: difference(pairs) for name, pairs in found.items()})
    notes = [f"Mixed conditions, allowed by mixed=allow: {text}." for text in mixed]
    notes += [f"{run.arm}, seed {run.seed}, has no result: {run.reason}." for run in runs if not run.finished]
    absent = len(plan.arms) * len(plan.seeds) - len(runs)
    if absent and not plan.made_of_runs:
        notes.append(f"{absent} of {len(plan.arms) * len(plan.seeds)} runs have not been made yet.")
    return Results(plan, arms, differences, notes, Units(metric), _reference(runs))


def sentences(results: Results) -> list[str]:
    """The conclusions as sentences, one for each arm.

    A sentence states a claimed difference with its interval, or that none can be claimed and which size would have been
    detected.
    """
    differences = results.differences.items()
    said = [_said(name, found, results.plan.baseline, results.units) for name, found in differences]
    return said or ["There is no pair of finished runs yet, so nothing can be said."]


def _said(name: str, found: Difference, baseline: str, units: Units) -> str:
    if found.n < 2:
        return f"{name}: one pair of runs shows nothing; at least two are needed, five are usual."
    if math.isnan(found.mean):
        return f"{name}: the score of a run is not a number, so nothing can be said."
    mean, span = units.signed(found.mean), units.interval(found.low, found.high)
    if math.isnan(found.low):
        told = "the difference" if found.claimed else "no difference"
        return (
            f"{name}: {told} from {baseline} can be claimed at n = {found.n} ({mean} in every pair, "
            f"sign-flip test p {_relation(found.corrected_p)}); equal differences leave no interval."
        )
    if found.claimed:
        word = "above" if found.mean > 0 else "below"
        return (
            f"{name} lies {units.size(abs(found.mean))} {word} {baseline}{units.verdict(found.mean)} "
            f"(95 % interval {span}, n = {found.n}, p {_relation(found.corrected_p)} after correction)."
        )
    return (
        f"{name}: no difference from {baseline} can be claimed at n = {found.n} ({mean}, 95 % interval {span}, "
        f"p {_relation(found.corrected_p)} after correction); "
        f"{units.size(found.detectable)} would have been seen."
    )


def probability(value: float) -> str:
    """Two digits, or "< 0.001"."""
    return "-" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _relation(value: float) -> str:
    """A probability for a sentence: "= 0.020" or "< 0.001"."""
    text = probability(value)
    return text if text.startswith("<") else f"= {text}"


def _pairs(plan: Plan, runs: Sequence[Run], arm: str) -> list[tuple[float, float]]:
    scores = {(run.arm, run.seed): run.score() for run in runs if run.finished}
    both = [seed for seed in plan.seeds if (arm, seed) in scores and (plan.baseline, seed) in scores]
    return [(scores[plan.baseline, seed], scores[arm, seed]) for seed in both]


def _arm(plan: Plan, name: str, runs: list[Run]) -> ArmResult:
    finished = [run for run in runs if run.finished]
    left = sum(run.left_chance for run in finished)
    ended = sum(run.status in ("finished", "failed") for run in runs)
    samples = sorted(
        n for run in finished if plan.threshold is not None and (n := run.samples_to(plan.threshold)) is not None
    )
    return ArmResult(
        name,
        runs,
        len(runs) if plan.made_of_runs else len(plan.seeds),
        summary([run.score() for run in finished]) if finished else None,
        _mean([run.majority for run in finished]),
        _mean([float(run.facts["metrics"]["test"].get("r2", math.nan)) for run in finished]),
        ended,
        left,
        share_interval(left, max(ended, 1)),
        int(finished[0].facts["parameters"]) if finished else 0,
        _mean([run.steps_per_second for run in finished]),
        _mean([run.cpu_seconds / 60 for run in finished]),
        max((run.facts["peak_memory_bytes"] / 2**20 for run in finished), default=math.nan),
        (samples[len(samples) // 2], len(samples)) if samples else None,
    )


def check_threshold(threshold: float | None, metric: Metric) -> None:
    """Refuse a threshold that the main metric cannot have.

    Raises:
        UsageError: an accuracy above 1.
    """
    if threshold is not None and metric.is_share and threshold > 1:
        raise UsageError(f"threshold is an accuracy in (0, 1] for these runs, got {threshold:g}.")


def _metric(plan: Plan, runs: Sequence[Run]) -> Metric:
    """The main metric that all finished runs share."""
    metrics = list(dict.fromkeys(run.metric for run in runs if run.finished)) or [ACCURACY]
    if len(metrics) > 1:
        raise UsageError(
            f"These runs have different main metrics: {' and '.join(metric.name for metric in metrics)}. Compare runs "
            f"of one kind of task."
        )
    check_threshold(plan.threshold, metrics[0])
    return metrics[0]


def _reference(runs: Sequence[Run]) -> dict[str, float]:
    found = [run.facts.get("reference") or {} for run in runs if run.finished]
    names = dict.fromkeys(name for scores in found for name in scores)
    return {name: _mean([float(scores[name]) for scores in found if name in scores]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
