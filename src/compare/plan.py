"""A plan: the arms to compare, the seeds, and the run folder of each arm and seed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ..errors import UsageError, did_you_mean, unknown
from ..files import write_text
from ..run_folder import make_writable
from .runs import Run, find, read

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Plan:
    """The arms, seeds and settings of a comparison.

    Attributes:
        name: name of the comparison; a heading and the default folder.
        question: one sentence that the result answers.
        arms: name -> settings of `python -m train` (experiment=..., key=value).
        baseline: the arm that the others are compared with.
        seeds: seeds of the runs; runs of two arms with the same seed make a pair.
        common: settings of every arm, such as budget=cpu.
        tuning: how the settings of the arms were chosen, a phrase for the report.
        threshold: value of the main metric in validation for the column "samples to", or None.
        made_of_runs: whether the plan only describes existing runs, so that none is missing.
    """

    name: str
    question: str
    arms: Mapping[str, list[str]]
    baseline: str
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    common: Sequence[str] = field(default_factory=list)
    tuning: str = "the settings of the experiments as they are"
    threshold: float | None = None
    made_of_runs: bool = False

    def __post_init__(self) -> None:
        if self.baseline not in self.arms:
            raise unknown("baseline arm", self.baseline, self.arms)
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds:
            raise UsageError(f"seeds are different whole numbers, at least one, got {list(self.seeds)}.")

    def folder(self, results: Path, arm: str, seed: int) -> Path:
        """Folder of the run of an arm and a seed."""
        return results / re.sub(r"[^\w.=-]+", "_", arm) / f"seed{seed}"

    def overrides(self, arm: str, seed: int) -> list[str]:
        """The settings of one run."""
        return [*self.arms[arm], *self.common, f"seed={seed}"]

    def runs(self, results: Path) -> list[Run]:
        """The existing runs, in the order of the plan, each with the name of its arm."""
        runs = [read(self.folder(results, arm, seed), arm) for arm in self.arms for seed in self.seeds]
        return [run for run in runs if run.status != "missing"]

    def check_folder(self, results: Path) -> None:
        """Refuse a results folder whose runs are not those of this plan.

        Raises:
            UsageError: the folder holds a plan with other arms, common settings or baseline.
        """
        before = load(results)
        if before is not None:
            for what in ("arms", "common", "baseline"):
                if getattr(before, what) != getattr(self, what):
                    raise UsageError(
                        f"{results} holds a comparison with other {what}: {getattr(before, what)} there, "
                        f"{getattr(self, what)} now. Name another folder: results=..."
                    )

    def save(self, results: Path) -> None:
        """Write plan.json into the results folder.

        Raises:
            UsageError: the folder cannot be created or written to, or see `check_folder`.
        """
        self.check_folder(results)
        make_writable("results", str(results))
        write_text(results / PLAN_FILE, json.dumps(asdict(self), indent=2) + "\n")


def load(results: Path) -> Plan | None:
    """The plan of a results folder, or None if there is none.

    Raises:
        UsageError: a file that is not a plan.
    """
    path = results / PLAN_FILE
    if not path.exists():
        return None
    try:
        return Plan(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is not a plan of a comparison ({error}). Remove it, or name another folder."
        ) from error


def from_runs(name: str, folders: Sequence[Path], baseline: str | None = None) -> tuple[Plan, list[Run]]:
    """A plan of existing runs: one arm for each experiment and its changed settings; the first is the baseline.

    Raises:
        UsageError: no run below the folders.
    """
    found = find(folders)
    if not found:
        raise UsageError(
            f"There is no run below {', '.join(map(str, folders))}: no record.json. "
            f"Name the folder of a sweep, or of a comparison."
        )
    runs = [replace(run, arm=run.label) for run in found if run.status != "damaged"]
    arms = {run.arm: [f"experiment={run.experiment}"] for run in runs}
    seeds = sorted({run.seed for run in runs})
    first = baseline or next(iter(arms))
    return Plan(name, "", arms, first, seeds, tuning="as the runs were made", made_of_runs=True), runs


def ablation(name: str, task: str | None = None, folders: Sequence[Path] = ()) -> dict[str, Any]:
    """Read a named ablation and fill in its task: question, baseline, arms, optional settings and threshold.

    Args:
        name: `configs/ablation/<name>.yaml`, of the package or of one of the `folders`, or the path of a YAML file.
        task: a task of `experiment/lra`, such as "listops", or of the folder before the slash, such as "proxy/adding".
            The folder replaces "{suite}" in the arms, the task "{task}"; None takes the `task` of the file.
        folders: the user's folders (`--config-dir`), searched first.
    Raises:
        UsageError: an unknown ablation, or a file that is not an ablation.
    """
    node = _read(name, folders)
    missing = {"question", "baseline", "arms"} - node.keys()
    extra = node.keys() - {"question", "baseline", "arms", "task", "tasks", "settings", "threshold"}
    if missing or extra:
        raise UsageError(
            f"The ablation '{name}' needs question, baseline and arms, and may have task, tasks, settings, threshold. "
            f"Missing: {', '.join(sorted(missing)) or 'nothing'}; unknown: {', '.join(sorted(extra)) or 'nothing'}."
        )
    chosen = task or node.get("task", "listops")
    tasks = node.get("tasks", [])
    if tasks and chosen not in tasks:
        raise unknown(f"task of the ablation '{name}'", chosen, tasks)
    suite, slash, last = chosen.rpartition("/")
    names = {"{suite}": suite if slash else "lra", "{task}": last}
    arms = {arm: [_filled(str(text), names) for text in texts] for arm, texts in node["arms"].items()}
    return node | {"arms": arms, "task": chosen}


def _filled(text: str, names: Mapping[str, str]) -> str:
    for mark, name in names.items():
        text = text.replace(mark, name)
    return text


def known_ablations(folders: Sequence[Path] = ()) -> list[str]:
    """Names of all ablations in the package and in the user's folders."""
    places = [folder / "ablation" for folder in folders] + [_packaged()]
    return sorted({path.name.removesuffix(".yaml") for place in places if place.is_dir() for path in place.iterdir()})


def _read(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    places = [folder / "ablation" / f"{name}.yaml" for folder in folders] + [_packaged() / f"{name}.yaml", Path(name)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        known = known_ablations(folders)
        raise UsageError(f"Unknown ablation '{name}'. Known: {', '.join(known)}.{did_you_mean(name, known)}")
    try:
        node = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(node, dict) or not isinstance(node.get("arms"), dict):
        raise UsageError(f"{path} is not an ablation: it has no mapping 'arms' of name -> list of settings.")
    return node


def _packaged() -> Any:
    return resources.files("fractal_ssm.configs") / "ablation"
