"""Files of a run folder: record.json, metrics.csv and curves.png, with all that is needed to repeat a result."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..files import append_text, atomic_write, create_text, write_text

_PACKAGES = (
    "fractal-ssm",
    "torch",
    "triton",
    "lightning",
    "hydra-core",
    "numpy",
    "scipy",
    "numba",
    "pykeops",
    "einops",
)
# Columns of metrics.csv; the main metric of the task comes before the last one.
_COLUMNS = {"epoch": int, "step": int, "seconds": float, "split": str, "loss": float}
_LAST_COLUMN = "lr"
_SECONDS = ("fit_seconds", "fit_cpu_seconds")
# Line style of each split's rows in curves.png.
_CURVES = {"step": {"alpha": 0.35, "lw": 0.8}, "train": {"marker": "."}, "val": {"marker": "o"}}


class Record:
    """record.json, rewritten as a whole and atomically at each update.

    Args:
        folder: of the run.
        active: only the first process writes; the others keep the facts in memory.
    """

    def __init__(self, folder: Path, active: bool = True):
        self._path, self._active = folder / "record.json", active
        self.facts: dict[str, Any] = {}

    def claim(self, **facts: Any) -> bool:
        """Create the file with these facts; return False if it exists already (never in inactive processes)."""
        if self._active and not create_text(self._path, _json(facts)):
            return False
        self.facts.update(facts)
        return True

    def update(self, **facts: Any) -> None:
        """Add or replace facts and write the file."""
        self.facts.update(facts)
        if self._active:
            write_text(self._path, _json(self.facts))


class Metrics:
    """metrics.csv with one row per measurement: epoch, step, seconds, split, loss, the main metric by its name, lr.

    `split` is "step" for the loss of one batch with the running metric of its epoch, "train" for the epoch so far in
    training mode, "val" for a validation pass. `lr` is the largest rate of the parameter groups.

    Args:
        path: of the file; existing rows are kept, so a resumed run continues the file.
        active: only the first process writes.
        metric: name of the main metric; None takes it from the file, and "accuracy" if the file names none.
    Attributes:
        metric: that name.
        rows: the measurements, column -> value.
        dropped: how many lines of the file could not be read (an incomplete last line, damage).
        told: called with each new row, for further loggers.
    """

    def __init__(self, path: Path, active: bool = True, metric: str | None = None):
        self._path, self._active = path, active
        self.rows: list[dict[str, Any]] = []
        self.dropped = 0
        self.told: Callable[[dict[str, Any]], None] = lambda row: None
        text = path.read_text(errors="replace") if path.is_file() else ""
        self.metric = metric or _named_metric(text) or "accuracy"
        self._columns = _COLUMNS | {self.metric: float, _LAST_COLUMN: float}
        if path.is_file():
            self.rows, self.dropped = _read_rows(text, self._columns)

    def forget_after(self, step: int, count: int | None = None) -> None:
        """Drop rows after `step`, which a resumed run repeats, and all but the first `count`, as in its checkpoint."""
        self.rows = [row for row in self.rows if row["step"] <= step][:count]
        self._rewrite()

    def add(self, **row: Any) -> None:
        """Add one row, in memory and at the end of the file."""
        self.rows.append(row)
        self.told(row)
        if len(self.rows) == 1 or not self._path.exists():
            self._rewrite()
        elif self._active:
            append_text(self._path, self._line(row))

    def _rewrite(self) -> None:
        if self._active:
            header = dict(zip(self._columns, self._columns, strict=True))
            write_text(self._path, "".join(map(self._line, [header, *self.rows])))

    def _line(self, row: dict[str, Any]) -> str:
        cells = (row[column] for column in self._columns)
        return ",".join(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells) + "\n"

    def plot(self, path: Path, title: str) -> None:
        """Loss and main metric against the step, as PNG."""
        if not self._active or not self.rows:
            return
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        for axes, quantity in zip(figure.subplots(1, 2), ("loss", self.metric), strict=True):
            for split, style in _CURVES.items():
                rows = [row for row in self.rows if row["split"] == split]
                # A line through few points is hardly visible.
                marked = {"marker": "."} if len(rows) <= 100 else {}
                axes.plot([row["step"] for row in rows], [row[quantity] for row in rows], label=split, **marked | style)
            axes.set(xlabel="step", ylabel=quantity)
            # Steps are whole numbers.
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
        axes.legend()
        figure.suptitle(title)
        with atomic_write(path) as file:
            figure.savefig(file, format="png", dpi=120)


def read_record(folder: Path) -> dict[str, Any] | None:
    """The facts of record.json; None if it is missing, empty or damaged."""
    try:
        facts = json.loads((folder / "record.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


def earlier_parts(folder: Path) -> list[dict[str, Any]]:
    """Facts of the earlier parts of a resumed run, for its record: when, with what, how they ended.

    The list is empty if the record cannot be read: a damaged record must not prevent resuming from a good checkpoint.
    """
    before = read_record(folder)
    if before is None:
        return []
    earlier = before.get("earlier", [])
    if not isinstance(earlier, list) or not all(isinstance(part, dict) for part in earlier):
        earlier = []
    kept = ("status", "started", "command", "commit", "versions", "device", *_SECONDS, "steps", "error")
    return [*earlier, {key: before[key] for key in kept if key in before}]


def seconds(facts: Mapping[str, Any]) -> tuple[float, float]:
    """(wall-clock, processor) seconds of the fit, over all parts of a resumed run that recorded theirs."""
    parts = [*facts.get("earlier", []), facts]
    known = ([part[key] for part in parts if isinstance(part.get(key), (int, float))] for key in _SECONDS)
    wall, cpu = (round(sum(values), 3) for values in known)
    return wall, cpu


def environment() -> dict[str, Any]:
    """Versions, platform, commit and command line."""
    return {
        "versions": {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "platform": platform.platform(),
        "cpu_threads": torch.get_num_threads(),
        "commit": git_commit(),
        "command": sys.argv,
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def device_name(device: torch.device) -> str:
    """Name of the GPU or processor that the run computes on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor() or platform.machine()


def git_commit() -> str | None:
    """Commit of the checkout that this package is imported from, with "-dirty" if tracked files differ; or None."""
    folder = Path(__file__).resolve().parent
    try:
        # This file must be tracked: an installed copy may lie inside another repository.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name], cwd=folder, check=True, capture_output=True
        )
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: allocated by torch on the GPU, or the largest resident set of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _named_metric(text: str) -> str | None:
    """The main metric that the header names; None if it cannot be read."""
    found = re.match(rf"{','.join(_COLUMNS)},(\w+),{_LAST_COLUMN}$", text, flags=re.M)
    return found and found[1]


def _read_rows(text: str, columns: Mapping[str, type]) -> tuple[list[dict[str, Any]], int]:
    """(valid rows, number of dropped lines). A last line without a newline was cut off in writing and is dropped."""
    *lines, torn = text.split("\n")
    rows, dropped = [], int(bool(torn))
    for line in lines:
        cells = line.split(",")
        try:
            if line != ",".join(columns):
                rows.append({key: columns[key](cell) for key, cell in zip(columns, cells, strict=True)})
        except ValueError:
            dropped += 1
    return rows, dropped


def _json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2, default=str) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
