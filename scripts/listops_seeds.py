"""Does every layer train on ListOps without a number that is not finite? The table of docs/proxies.md, from short runs.

    python -m scripts.listops_seeds runs/sweeps/listops-seeds [MORE FOLDERS ...]

Each run below the folders that finished or failed becomes a row of docs/results/listops-seeds.csv: status, steps, the
mean training loss of its first and its last ten steps, and whether every loss was finite. The runs must log every step
(trainer.log_every_n_steps=1). Without folders only the table is written.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import report, tables

PAGE = report.ROOT / "docs" / "proxies.md"
COLUMNS = (
    *("layer", "config", "seed", "status", "steps", "planned_steps", "finite", "first_loss", "last_loss"),
    *("fit_cpu_seconds", "parameters", "device", "torch", "commit", "data_checksum", "started"),
)
HEADER = (
    *("layer", "runs finished, all losses finite", "steps", "first loss", "last loss, mean", "lowest", "highest"),
    "CPU seconds, median",
)
# Steps that the first and the last loss are means of.
_MEAN_OF = 10


def row_of(path: Path) -> dict[str, Any]:
    """The run of a record.json as a row.

    Raises:
        ValueError: the run did not log every step.
    """
    record = json.loads(path.read_text())
    steps = [row for row in report.read(path.with_name("metrics.csv")) if row["split"] == "step"]
    if [int(row["step"]) for row in steps] != list(range(1, len(steps) + 1)):
        raise ValueError(f"{path.parent} did not log every step: set trainer.log_every_n_steps=1.")
    losses = [float(row["loss"]) for row in steps]
    finished = record["status"] == "finished" and len(losses) == record["planned_steps"]
    return {
        "layer": record["layer"],
        "config": record["choices"]["experiment"],
        "seed": record["seed"],
        "status": record["status"],
        "steps": len(losses),
        "planned_steps": record["planned_steps"],
        "finite": finished and all(map(math.isfinite, losses)),
        "first_loss": round(statistics.mean(losses[:_MEAN_OF]), 4),
        "last_loss": round(statistics.mean(losses[-_MEAN_OF:]), 4),
        "fit_cpu_seconds": record.get("fit_cpu_seconds", ""),
        "parameters": record["parameters"],
        "device": record["device"],
        "torch": record["versions"]["torch"],
        "commit": record["commit"],
        "data_checksum": record["data"]["checksum"],
        "started": record["started"],
    }


def gather(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Add the runs below `folders` to the CSV; all its rows, each run once, sorted."""
    target = report.RESULTS / "listops-seeds.csv"
    rows = report.read(target) if target.exists() else []
    for path in (path for folder in folders for path in folder.rglob("record.json")):
        row = row_of(path)
        if row["status"] not in ("finished", "failed"):
            print(f"left out: {path} ({row['status']})", file=sys.stderr)
            continue
        # As text, like the rows that were read.
        rows.append({key: str(value) for key, value in row.items()})
    unique = {(row["layer"], int(row["seed"]), row["started"]): row for row in rows}
    rows = [unique[key] for key in sorted(unique)]
    report.write(target, COLUMNS, rows)
    return rows


def lines(rows: Iterable[dict[str, str]]) -> list[list[str]]:
    """One line per layer, over its seeds."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["layer"]].append(row)
    found = []
    for layer, runs in sorted(groups.items()):
        last = [float(run["last_loss"]) for run in runs]
        steps = sorted({int(run["steps"]) for run in runs})
        first = statistics.mean(float(run["first_loss"]) for run in runs)
        seconds = statistics.median(float(run["fit_cpu_seconds"]) for run in runs if run["fit_cpu_seconds"])
        found.append(
            [
                layer,
                f"{sum(run['finite'] == 'True' for run in runs)} of {len(runs)}",
                " or ".join(map(str, steps)),
                *(f"{value:.3f}" for value in (first, statistics.mean(last), min(last), max(last))),
                f"{seconds:.0f}",
            ]
        )
    return found


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    body = lines(gather(report.parse(parser).folders))
    tables.write(PAGE, "listops-seeds", HEADER, body)
    print(tables.markdown(HEADER, body))


if __name__ == "__main__":
    main()
