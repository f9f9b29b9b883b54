"""Gather finished runs into one CSV, and the results of that CSV into a table of a document.

    python -m scripts.report listops-cpu runs/sweeps/2026-11-29_23-50-00 [MORE FOLDERS ...] [--page docs/results.md]

Every `record.json` below the folders whose status is "finished" becomes a row of `docs/results/<name>.csv`; rows of
earlier calls stay, and the same run is not counted twice. The table gives, per experiment and budget, the mean and the
standard deviation over seeds, how many seeds left chance, and the majority class beside it. Runs with other settings
than their experiment's (model.layer.measure=legs) have a line of their own, which names them. A run on a stand-in, or
on other than the benchmark's data, is marked: its figure is no LRA result.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fractal_ssm.training.metric import ACCURACY, recorded_metric
from fractal_ssm.training.record import seconds
from fractal_ssm.training.resume import SAYS, WHERE

from . import tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
COLUMNS = (
    *("experiment", "layer", "dataset", "budget", "source", "lra", "seed", "train", "val", "test", "majority"),
    *("n_test", "parameters", "steps", "fit_seconds", "fit_cpu_seconds", "samples_per_second", "peak_mib", "device"),
    *("torch", "commit", "data_checksum", "split_fingerprint", "started", "settings"),
)
# What a line says elsewhere, and what no result depends on.
_TOLD = ("experiment", "budget", "seed")
_NEUTRAL = ("trainer", *WHERE, *SAYS)
HEADER = (
    *("experiment", "budget", "data", "test accuracy", "majority class", "left chance", "parameters", "minutes"),
    *("samples/s", "peak MiB"),
)


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """One finished run as a row of the CSV."""
    metrics, data = record["metrics"], record["data"]
    wall, cpu = seconds(record)
    return {
        "experiment": record["choices"].get("experiment") or f"{record['layer']}-{record['dataset']}",
        "layer": record["layer"],
        "dataset": record["dataset"],
        "budget": record["choices"]["budget"],
        "source": data["source"],
        "lra": data["lra"],
        "seed": record["seed"],
        **{split: round(metrics[split]["accuracy"], 6) for split in ("train", "val", "test")},
        "majority": round(metrics["test"]["majority"], 6),
        "n_test": metrics["test"]["samples"],
        "parameters": record["parameters"],
        "steps": record["steps"],
        "fit_seconds": wall,
        "fit_cpu_seconds": cpu,
        "samples_per_second": round(record["samples_per_second"], 3),
        "peak_mib": round(record["peak_memory_bytes"] / 2**20),
        "device": record["device"],
        "torch": record["versions"]["torch"],
        "commit": record["commit"],
        "data_checksum": data["checksum"],
        "split_fingerprint": data["split_fingerprint"],
        "started": record["started"],
        "settings": settings(record),
    }


def settings(record: dict[str, Any]) -> str:
    """What the command line set otherwise than the experiment, in the order of the keys, e.g. "model.d_model=32"."""
    # Records of earlier versions do not tell.
    overrides = record.get("overrides", [])
    told = {override: override.lstrip("+~").partition("=")[0] for override in overrides}
    return " ".join(sorted(override for override, key in told.items() if key not in (*_TOLD, *_NEUTRAL)))


def label(row: dict[str, Any]) -> str:
    """The experiment, with the settings that make it another one."""
    return f"{row['experiment']} {row.get('settings') or ''}".strip()


def left_chance(accuracy: float, majority: float, samples: int) -> bool:
    """Whether an accuracy lies above the majority class by more than three standard errors of a guesser."""
    return accuracy > majority + 3 * (majority * (1 - majority) / samples) ** 0.5


def summary(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    """One line per experiment with its settings, budget and source of data, over its seeds."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[label(row), row["budget"], _data(row)].append(row)
    lines = []
    for (experiment, budget, data), runs in groups.items():
        accuracies = [float(run["test"]) for run in runs]
        spread = f" ± {100 * statistics.stdev(accuracies):.2f}" if len(runs) > 1 else ""
        learned = sum(left_chance(float(r["test"]), float(r["majority"]), int(r["n_test"])) for r in runs)
        lines.append(
            [
                experiment,
                budget,
                data,
                f"{100 * statistics.mean(accuracies):.2f}{spread} %",
                f"{100 * statistics.mean(float(run['majority']) for run in runs):.2f} %",
                f"{learned} of {len(runs)} seeds",
                f"{int(runs[0]['parameters']):,}",
                f"{statistics.mean(float(run['fit_seconds']) for run in runs) / 60:.1f}",
                f"{statistics.mean(float(run['samples_per_second']) for run in runs):.1f}",
                f"{max(int(run['peak_mib']) for run in runs):,}",
            ]
        )
    return lines


def _data(row: dict[str, Any]) -> str:
    # The CSV holds text, a fresh row a bool.
    return row["source"] if str(row["lra"]) == "True" else f"{row['source']}, not the LRA set"


def read(source: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, as text."""
    with source.open(newline="") as file:
        return list(csv.DictReader(file))


def write(target: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to a CSV file; a column that a row lacks (older runs) stays empty."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def gather(name: str, folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Add the finished runs below `folders` to `docs/results/<name>.csv`; all its rows, sorted."""
    target = RESULTS / f"{name}.csv"
    rows = read(target) if target.exists() else []
    if rows and not {"experiment", "started"} <= rows[0].keys():
        raise SystemExit(f"{target} is a table of another script. Choose another name.")
    seen = {(row["experiment"], row["started"], str(row["seed"])) for row in rows}
    for folder in folders:
        for path in sorted(folder.rglob("record.json")):
            record = json.loads(path.read_text())
            if record["status"] != "finished":
                print(f"left out: {path} ({record['status']})", file=sys.stderr)
                continue
            if recorded_metric(record) != ACCURACY:
                # The columns are of classes; `python -m fractal_ssm.compare report` takes every task.
                print(f"left out: {path} (its main metric is {recorded_metric(record).name})", file=sys.stderr)
                continue
            row = row_of(record)
            if (row["experiment"], row["started"], str(row["seed"])) not in seen:
                rows.append(row)
    rows.sort(key=lambda row: (row["experiment"], row["budget"], int(row["seed"])))
    write(target, COLUMNS, rows)
    return rows


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, whose remaining words are `folders` that must exist."""
    parser.add_argument("folders", nargs="*", type=Path, help="folders with runs below them")
    options = parser.parse_args()
    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        parser.error(f"no such folder: {', '.join(missing)}")
    return options


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the table and of its CSV, e.g. listops-cpu")
    parser.add_argument("--page", type=Path, action="append", default=[], help="document with the table's marks")
    options = parse(parser)
    rows = gather(options.name, options.folders)
    if not rows:
        parser.error(f"no finished run below {', '.join(map(str, options.folders)) or 'any folder'}")
    lines = summary(rows)
    for page in options.page:
        tables.write(page, options.name, HEADER, lines)
    print(tables.markdown(HEADER, lines))


if __name__ == "__main__":
    main()
