"""Finished runs of the power-law tasks as rows of docs/results/powerlaw.csv."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fractal_ssm.compare.runs import own_settings

from .. import records

NAME = "powerlaw"
TASKS = ("predict", "denoise", "smooth", "hurst", "recall", "warp", "transients")
# Layers in the order of tables and colours.
LAYERS = ("fractal", "fractal-ltv", "fractal-normal", "fractal-tau", "s5", "s4", "s4d", "dss", "lru", "transformer")
BASELINE = "s5"
COLUMNS = (
    *("experiment", "layer", "task", "data", "settings", "seed", "parameters", "steps", "fit_cpu_seconds", "metric"),
    *("val", "test", "reference", "commit", "torch", "data_checksum", "started"),
)


def parts(experiment: str) -> tuple[str, str]:
    """Layer and task of `powerlaw/<layer>-<task>`."""
    layer, task = experiment.removeprefix("powerlaw/").rsplit("-", 1)
    return layer, task


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """One finished run; `data` holds the command line's settings of the dataset, `settings` all others."""
    layer, task = parts(record["choices"]["experiment"])
    said = own_settings(record).split()
    name = record["metric"]["name"]
    return {
        "experiment": record["choices"]["experiment"],
        "layer": layer,
        "task": task,
        "data": " ".join(word for word in said if word.startswith("dataset.")),
        "settings": " ".join(word for word in said if not word.startswith("dataset.")),
        "seed": record["seed"],
        "parameters": record["parameters"],
        "steps": record["steps"],
        "fit_cpu_seconds": record["fit_cpu_seconds"],
        "metric": name,
        "val": record["metrics"]["val"][name],
        "test": record["metrics"]["test"][name],
        "reference": json.dumps(record["reference"]),
        "commit": record["commit"],
        "torch": record["versions"]["torch"],
        "data_checksum": record["data"]["checksum"],
        "started": record["started"],
    }


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """Identifies a run in the tables: a later run with the same key replaces it."""
    return tuple(str(row[name]) for name in ("experiment", "data", "settings", "seed"))


def finished(folders: Iterable[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Folder and record of every finished run of a power-law experiment below the folders."""
    found = []
    for path in sorted(path for folder in folders for path in folder.rglob("record.json")):
        record = json.loads(path.read_text())
        if not str(record.get("choices", {}).get("experiment")).startswith("powerlaw/"):
            continue
        if record["status"] != "finished":
            print(f"left out: {path} ({record['status']})", file=sys.stderr)
            continue
        found.append((path.parent, record))
    return found


def gather(runs: Iterable[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Add runs to docs/results/powerlaw.csv; returns all its rows, in the order of the tables.

    All values are strings, so that a page does not depend on whether its runs are available or only in the file.
    """
    target = records.RESULTS / f"{NAME}.csv"
    rows = {key(row): row for row in (records.read(target) if target.exists() else [])}
    for _, record in runs:
        row = {name: str(value) for name, value in row_of(record).items()}
        held = rows.get(key(row))
        if held is None or held["started"] <= row["started"]:
            rows[key(row)] = row
    ordered = sorted(rows.values(), key=_order)
    records.write(target, COLUMNS, ordered)
    return ordered


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return TASKS.index(row["task"]), row["data"], LAYERS.index(row["layer"]), row["settings"], int(row["seed"])


def arm(row: dict[str, Any]) -> str:
    """Name of a line of a table: the layer, followed by any settings."""
    return f"{row['layer']} {row['settings']}".strip()
