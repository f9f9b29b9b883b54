"""Writes tables and figures of docs/powerlaw.md from the records of a comparison.

    python -m scripts.powerlaw runs/compare/powerlaw-predict [MORE FOLDERS ...]

Finished runs of powerlaw/* below the folders are added to docs/results/powerlaw.csv; their best checkpoints are read
for docs/results/powerlaw-details.csv (alphas, dampings, accuracy by delay, error by speed). The figures beside them and
the tables of docs/powerlaw.md are written from these two files; without folders, from the files as they are.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import records, tables
from . import details, excess, figures
from .rows import NAME, TASKS, finished, gather

PAGE = records.ROOT / "docs" / "powerlaw.md"


def groups(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows by task and settings of its data, in their order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["data"]), []).append(row)
    return found


def section(task: str, rows: list[dict[str, Any]]) -> str:
    """The text between the marks of a task: a table for each setting of its data, or "Not yet run."."""
    parts = []
    for (found, data), runs in groups(rows).items():
        if found == task:
            title = f"`{data}`" if data else "As the experiments have it"
            revisions = ", ".join(sorted({run["commit"][:10] for run in runs}))
            body = tables.markdown(excess.HEADER, excess.lines(runs))
            parts.append(f"{title} (revision {revisions}):\n\n{body}")
            parts += filter(None, [excess.verdict(runs)])
    return "\n\n".join(parts) or "Not yet run."


def rewritten(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with every section of results rewritten."""
    for task in TASKS:
        page = tables.replaced(page, f"powerlaw-{task}", section(task, rows))
    return page


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = finished(records.parse(parser).folders)
    rows, found = gather(runs), details.gather(runs)
    figures.draw_excess(groups(rows), records.RESULTS / f"{NAME}-excess.png")
    figures.draw_modes(found, records.RESULTS / f"{NAME}-modes.png")
    figures.draw_delays(found, records.RESULTS / f"{NAME}-delay.png")
    figures.draw_speeds(found, records.RESULTS / f"{NAME}-speed.png")
    PAGE.write_text(rewritten(PAGE.read_text(), rows))
    for task in TASKS:
        print(f"{task}\n{section(task, rows)}\n")


if __name__ == "__main__":
    main()
