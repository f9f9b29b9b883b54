"""The run folder: what was run, on what, with which result; everything needed to trust or repeat a number."""

from __future__ import annotations

import csv
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

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
_COLUMNS = {
    "epoch": int,
    "step": int,
    "seconds": float,
    "split": str,
    "loss": float,
    "accuracy": float,
    "lr": float,
}
_SECONDS = ("fit_seconds", "fit_cpu_seconds")
# What the rows of each split look like in curves.png.
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
        """Make the file with these facts, unless there is one; whether this process, and no other, has made it."""
        if self._active:
            try:
                file = open(self._path, "x")
            except FileExistsError:
                return False
            with file:
                file.write(_json(facts))
        self.facts.update(facts)
        return True

    def update(self, **facts: Any) -> None:
        """Add or replace facts and write the file."""
        self.facts.update(facts)
        if self._active:
            write_text(self._path, _json(self.facts))


class Metrics:
    """metrics.csv with one row a measurement: epoch, step, seconds, split, loss, accuracy, lr.

    `split` is "step" for the loss of one batch with the running accuracy of its epoch, "train" for the epoch so far in
    training mode, "val" for a validation pass. `lr` is the largest rate of the parameter groups.

    Args:
        path: of the file; rows that are there are kept, so a resumed run goes on in it.
        active: only the first process writes.
    """

    def __init__(self, path: Path, active: bool = True):
        self._path, self._active = path, active
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with open(path, newline="") as file:
                self.rows = [{key: _COLUMNS[key](row[key]) for key in _COLUMNS} for row in csv.DictReader(file)]

    def forget_after(self, step: int) -> None:
        """Drop rows of steps that a resumed run does again."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        if self._active:
            write_text(self._path, "".join(map(_line, [dict(zip(_COLUMNS, _COLUMNS, strict=True)), *self.rows])))

    def add(self, **row: Any) -> None:
        """Add one row, in memory and at the end of the file."""
        if not self.rows:
            self.forget_after(0)
        self.rows.append(row)
        if self._active:
            with open(self._path, "a") as file:
                file.write(_line(row))

    def plot(self, path: Path, title: str) -> None:
        """Loss and accuracy against the step, as PNG."""
        if not self._active or not self.rows:
            return
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.5), layout="constrained")
        for axes, quantity in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for split, style in _CURVES.items():
                rows = [row for row in self.rows if row["split"] == split]
                # Few points make no line that can be seen.
                marked = {"marker": "."} if len(rows) <= 100 else {}
                axes.plot([row["step"] for row in rows], [row[quantity] for row in rows], label=split, **marked | style)
            axes.set(xlabel="step", ylabel=quantity)
            axes.grid(alpha=0.3)
        axes.legend()
        figure.suptitle(title)
        figure.savefig(path, dpi=120)


def earlier_parts(folder: Path) -> list[dict[str, Any]]:
    """What the record of a run that is resumed keeps of the parts before: when, with what, how they ended."""
    path = folder / "record.json"
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    kept = ("status", "started", "command", "commit", "versions", "device", *_SECONDS, "steps", "error")
    return [*before.get("earlier", []), {key: before[key] for key in kept if key in before}]


def seconds(facts: Mapping[str, Any]) -> tuple[float, float]:
    """(wall-clock, processor) seconds of the fit, over all parts of a resumed run that lived to write theirs."""
    parts = [*facts.get("earlier", []), facts]
    wall, cpu = (round(sum(part.get(key, 0.0) for part in parts), 3) for key in _SECONDS)
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
    """What the run computed on: the GPU's name, or the processor's."""
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
        # The folder must be tracked: an installed copy inside somebody else's repository has no commit of ours.
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
    """Bytes: the most that torch held on the GPU, or the largest resident set of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def _json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2, default=str) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _line(row: dict[str, Any]) -> str:
    cells = (row[column] for column in _COLUMNS)
    return ",".join(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells) + "\n"
