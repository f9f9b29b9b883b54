"""Runs of a comparison: record, settings and curve of each, and whether they may be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..training.metric import Metric, recorded_metric
from ..training.record import Metrics, read_record, seconds
from ..training.resume import SAYS, WHERE

# Keys that do not affect results.
NEUTRAL = ("seed", *WHERE, *SAYS)
# Keys of the command line that other columns of a table show.
_TOLD = ("experiment", "budget", "seed", "trainer")


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        arm: name of the run's arm, "" until a plan sets it.
        folder: path of the run folder.
        status: "finished", "failed", "interrupted", "running" (or killed), "damaged" (no readable record) or
            "missing" (no record and no failure).
        facts: contents of record.json.
        settings: key -> value of config.yaml, flattened.
        curve: rows of metrics.csv.
    """

    folder: Path
    status: str
    facts: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    curve: Sequence[Mapping[str, Any]] = ()
    arm: str = ""

    @property
    def seed(self) -> int:
        return int(self.facts.get("seed", -1))

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def reason(self) -> str:
        """Why the run has no result, in one line."""
        return str(self.facts.get("error") or self.status).splitlines()[0]

    @property
    def label(self) -> str:
        """The experiment and the settings that the command line changed."""
        return " ".join(filter(None, (self.experiment, own_settings(self.facts))))

    @property
    def experiment(self) -> str:
        return self.facts.get("choices", {}).get("experiment") or f"{self.facts['layer']}-{self.facts['dataset']}"

    @property
    def metric(self) -> Metric:
        """The main metric of the run's task."""
        return recorded_metric(self.facts)

    def score(self, split: str = "test") -> float:
        """The main metric on a split, of the checkpoint with the best validation."""
        return float(self.facts["metrics"][split][self.metric.name])

    @property
    def majority(self) -> float:
        """Test accuracy of the best constant answer; nan for a task without classes."""
        return float(self.facts["metrics"]["test"].get("majority", math.nan))

    @property
    def left_chance(self) -> bool:
        """Whether the run beats a trivial answer.

        With classes, its accuracy must exceed that of the majority class by more than three standard errors of the
        latter; without classes, its squared error must be below the variance of the targets (r2 > 0).
        """
        result = self.facts["metrics"]["test"]
        if math.isnan(self.majority):
            return float(result.get("r2", 0.0)) > 0
        majority = self.majority
        return self.score() > majority + 3 * (majority * (1 - majority) / int(result["samples"])) ** 0.5

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the fit, including all parts of a resumed run."""
        return seconds(self.facts)[1]

    @property
    def steps_per_second(self) -> float:
        """Optimizer steps per second of wall-clock time of the fit."""
        return self.facts["steps"] / max(seconds(self.facts)[0], 1e-9)

    def validations(self) -> list[tuple[int, float, float]]:
        """(step, seconds, main metric) of every validation."""
        name = self.metric.name
        rows = [row for row in self.curve if row["split"] == "val" and name in row]
        return [(row["step"], row["seconds"], row[name]) for row in rows]

    def samples_to(self, threshold: float) -> int | None:
        """Training samples until the first validation at `threshold` or better; None if there was none."""
        batch = int(self.settings["training.batch_size"]) * int(self.facts.get("processes", 1))
        batch *= int(self.settings.get("trainer.accumulate_grad_batches", 1))
        reached = (step for step, _, value in self.validations() if self.metric.at_least(value, threshold))
        return next((step * batch for step in reached), None)


def own_settings(facts: Mapping[str, Any]) -> str:
    """The settings that the command line changed from the experiment, sorted, e.g. "model.d_model=32"."""
    told = {text: text.lstrip("+~").partition("=")[0] for text in facts.get("overrides", [])}
    neutral = (*_TOLD, *WHERE, *SAYS)
    kept = (text for text, key in told.items() if key not in neutral and not key.startswith("hydra."))
    return " ".join(sorted(map(_as_typed, kept)))


def _as_typed(text: str) -> str:
    """`key=true` for `key=True`, which hydra's sweeper writes, so that a setting has one spelling."""
    key, equals, value = text.partition("=")
    return key + equals + (value.lower() if value in ("True", "False", "None", "Null") else value)


def read(folder: Path, arm: str = "") -> Run:
    """Read the run of a folder, whatever its status."""
    if not (folder / "record.json").exists():
        failure = failure_file(folder)
        if failure.exists():
            return Run(folder, "failed", {"error": failure.read_text(), "seed": _seed(folder)}, arm=arm)
        return Run(folder, "missing", {"seed": _seed(folder)}, arm=arm)
    facts = read_record(folder)
    if facts is None or "status" not in facts:
        return Run(folder, "damaged", {"error": "record.json cannot be read", "seed": _seed(folder)}, arm=arm)
    curve = Metrics(folder / "metrics.csv", active=False, metric=recorded_metric(facts).name).rows
    return Run(folder, str(facts["status"]), facts, _settings(folder / "config.yaml"), curve, arm)


def failure_file(folder: Path) -> Path:
    """Path beside a run folder of the file with the reason why a run ended before it had a record."""
    return folder.with_name(f"{folder.name}.failed")


def find(folders: Iterable[Path]) -> list[Run]:
    """Read every run below the folders, each folder once, in the order of their paths."""
    paths = sorted({path.parent.resolve() for folder in folders for path in Path(folder).rglob("record.json")})
    return [read(path) for path in paths]


def flattened(node: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots.

    >>> flattened({"a": {"b": 1, "c": [2]}, "d": {}})
    {'a.b': 1, 'a.c': [2]}
    """
    if not isinstance(node, Mapping):
        return {prefix: node}
    found: dict[str, Any] = {}
    for key, value in node.items():
        found |= flattened(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def differing(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Key -> arm -> value of the settings that are not the same in all arms; a key that an arm lacks has no entry."""
    first = {run.arm: run.settings for run in reversed(runs)}
    keys = dict.fromkeys(key for settings in first.values() for key in settings if key not in NEUTRAL)
    table = {key: {arm: settings[key] for arm, settings in first.items() if key in settings} for key in keys}
    return {key: row for key, row in table.items() if len(row) < len(first) or len({repr(v) for v in row.values()}) > 1}


def conditions(run: Run) -> dict[str, Any]:
    """The conditions that must be equal in all runs of a fair comparison."""
    data = run.facts.get("data", {})
    return {
        "main metric": run.metric.name,
        "data": data.get("checksum"),
        "split": data.get("split_fingerprint"),
        "source of the data": data.get("source"),
        "budget": run.facts.get("choices", {}).get("budget"),
        "code revision": _revision(run.facts.get("commit")),
        "torch": run.facts.get("versions", {}).get("torch"),
    }


def _revision(commit: str | None) -> str | None:
    """The first twelve digits of a commit, and "-dirty" if the tree had uncommitted changes."""
    return commit and commit[:12] + ("-dirty" if commit.endswith("-dirty") else "")


def mixtures(runs: Sequence[Run]) -> list[str]:
    """One sentence for each condition that differs between finished runs, and each setting that differs in an arm."""
    runs = [run for run in runs if run.finished]
    found = []
    for name in conditions(runs[0]) if runs else ():
        values: dict[str, list[str]] = {}
        for run in runs:
            values.setdefault(str(conditions(run)[name]), []).append(f"{run.arm} seed {run.seed}")
        if len(values) > 1:
            told = "; ".join(f"{value} in {len(who)} runs ({who[0]}, ...)" for value, who in values.items())
            found.append(f"{name}: {told}")
    for arm in dict.fromkeys(run.arm for run in runs):
        found += _several_settings(arm, [run for run in runs if run.arm == arm])
    return found


def _several_settings(arm: str, runs: Sequence[Run]) -> list[str]:
    found = []
    for key in sorted({key for run in runs for key in run.settings} - set(NEUTRAL)):
        values = list(dict.fromkeys(repr(run.settings.get(key)) for run in runs))
        if len(values) > 1:
            found.append(f"settings of {arm}: {key} is {' and '.join(values)}")
    return found


def _seed(folder: Path) -> int:
    number = folder.name.removeprefix("seed")
    return int(number) if number.isdecimal() else -1


def _settings(path: Path) -> dict[str, Any]:
    try:
        return flattened(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError):
        return {}
