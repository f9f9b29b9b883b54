"""Write docs/experiments.md, and the line `# Measured:` of every experiment file.

    python -m scripts.experiment_table

Published figures come from the headers of the files, measured ones from the comparisons in docs/results and from
powerlaw.csv. A run counts if it changes only settings of the data, which the line then names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from fractal_ssm.compare import plan as plans
from fractal_ssm.compare.runs import Run, own_settings
from fractal_ssm.compare.statistics import summary
from fractal_ssm.compare.units import Units

from . import tables
from .powerlaw import excess
from .records import RESULTS, ROOT, read

EXPERIMENTS = ROOT / "configs" / "experiment"
PAGE = ROOT / "docs" / "experiments.md"
TASKS = ("listops", "imdb", "aan", "cifar", "pathfinder", "pathx")


def header_field(path: Path, field: str) -> str:
    """The text after `# Field:` in the header of an experiment file, or a dash."""
    found = re.search(rf"^# {field}: (.*)$", path.read_text(), flags=re.M)
    return found[1].strip() if found else "-"


def conditions(run: Run) -> str | None:
    """Budget and data settings under which an experiment was run; None if other settings were changed.

    Lifting the time limit does not count as a change, since it does not affect a run that finished.
    """
    said = [text for text in own_settings(run.facts).split() if text != "training.max_minutes=null"]
    if not all(text.startswith("dataset.") for text in said):
        return None
    note = "" if run.facts["data"]["lra"] else " (not the LRA set)"
    return " ".join([f"budget={run.facts['choices']['budget']}", *said]) + note


def measured() -> dict[str, list[str]]:
    """Experiment -> one short text for each combination of budget and data settings that was run."""
    found = defaultdict(list)
    for source in sorted(RESULTS.glob("*/plan.json")):
        groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
        plan = plans.load(source.parent)
        for run in plan.runs(source.parent) if plan else ():
            under = conditions(run) if run.finished else None
            if under is not None:
                groups[run.experiment, under].append(run)
        for (experiment, under), runs in groups.items():
            score = summary([run.score() for run in runs])
            text = Units(runs[0].metric).mean(score.mean, score.deviation)
            found[experiment].append(f"{text} over {score.n} seeds at {under}")
    powerlaw = RESULTS / "powerlaw.csv"
    for experiment, text in excess.measured(read(powerlaw)).items() if powerlaw.exists() else ():
        found[experiment].append(text)
    return found


def order(path: Path) -> tuple[str, int, str]:
    """Sort key: folder, then task in the order of the benchmark, then name."""
    task = path.stem.rsplit("-", 1)[-1]
    return path.parent.name, TASKS.index(task) if task in TASKS else len(TASKS), path.stem


def rows() -> list[list[str]]:
    """One line per experiment file: name, published, measured."""
    runs = measured()
    lines = []
    for path in sorted(EXPERIMENTS.rglob("*.yaml"), key=order):
        name = f"{path.parent.name}/{path.stem}"
        lines.append([name, header_field(path, "Published"), "; ".join(runs[name]) or "not yet run"])
    return lines


def set_measured(name: str, text: str) -> None:
    """Put `text` after `# Measured:` in the header of an experiment."""
    path = EXPERIMENTS / f"{name}.yaml"
    path.write_text(re.sub(r"^# Measured: .*$", lambda _: f"# Measured: {text}", path.read_text(), flags=re.M))


if __name__ == "__main__":
    found = rows()
    for name, _, text in found:
        set_measured(name, text)
    lines = [[f"`{name}`", published, text] for name, published, text in found]
    tables.write(PAGE, "experiments", ["experiment", "published", "measured"], lines)
    print(f"wrote {PAGE}")
