"""Write docs/experiments.md, and the line `# Measured:` of every experiment file.

    python -m scripts.experiment_table

Published figures come from the files' own headers, measured ones from the rows of docs/results/*.csv.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from . import tables
from .powerlaw import excess
from .powerlaw import rows as powerlaw
from .report import RESULTS, ROOT, read, summary

EXPERIMENTS = ROOT / "configs" / "experiment"
PAGE = ROOT / "docs" / "experiments.md"
TASKS = ("listops", "imdb", "aan", "cifar", "pathfinder", "pathx")


def header_field(path: Path, field: str) -> str:
    """What follows `# Field:` in the header of an experiment file, or a dash."""
    found = re.search(rf"^# {field}: (.*)$", path.read_text(), flags=re.M)
    return found[1].strip() if found else "-"


def measured() -> dict[str, list[str]]:
    """Experiment -> one short text per budget that was run, from all CSV files of results."""
    found = defaultdict(list)
    for source in sorted(RESULTS.glob("*.csv")):
        rows = read(source)
        if source.stem == powerlaw.NAME:
            for experiment, text in excess.measured(rows).items():
                found[experiment].append(text)
            continue
        rows = [row for row in rows if {"experiment", "test", "majority"} <= row.keys()]
        for experiment, budget, data, accuracy, *_ in summary(rows):
            note = "" if data in ("generated", "release") else f" ({data})"
            found[experiment].append(f"{accuracy} at budget={budget}{note}")
    return found


def order(path: Path) -> tuple[str, int, str]:
    """Folder, then task as the benchmark lists them, then name."""
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
    """Put `text` behind `# Measured:` in the header of an experiment."""
    path = EXPERIMENTS / f"{name}.yaml"
    path.write_text(re.sub(r"^# Measured: .*$", lambda _: f"# Measured: {text}", path.read_text(), flags=re.M))


if __name__ == "__main__":
    found = rows()
    for name, _, text in found:
        set_measured(name, text)
    lines = [[f"`{name}`", published, text] for name, published, text in found]
    tables.write(PAGE, "experiments", ["experiment", "published", "measured"], lines)
    print(f"wrote {PAGE}")
