"""Clocks and bookkeeping shared by the CPU and GPU benchmarks. Needs only torch."""

from __future__ import annotations

import csv
import ctypes
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

# Inputs rotate until they exceed this, so that a GPU cannot serve them from its cache.
_ROTATION_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, 20th and 80th percentile over `repeats`."""

    median: float
    p20: float
    p80: float
    repeats: int


def summarise(milliseconds: Sequence[float]) -> Timing:
    ordered = sorted(milliseconds)
    pick = lambda q: ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]  # noqa: E731
    return Timing(statistics.median(ordered), pick(0.2), pick(0.8), len(ordered))


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def time_cpu(
    call: Callable[[], object], seconds: float = 1.0, clock: str = "wall", least: int = 5, most: int = 200
) -> Timing:
    """Time repeated calls after a warm-up call, for `seconds` of wall time but at least `least`, at most `most` calls.

    clock: "wall", or "processor" for the process's time on all cores, which a busy machine disturbs less.
    """
    call()
    read = CLOCKS[clock]
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < least or (time.perf_counter() - began < seconds and len(found) < most):
        start = read()
        call()
        found.append((read() - start) * 1e3)
    return summarise(found)


def resident_mb() -> float:
    """Memory of this process now, in MB (Linux).

    With glibc, freed memory that is kept for reuse (much of it after compiling) is first returned to the system;
    otherwise a peak within it would read as 0.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    return _status_mb("VmRSS")


def forget_peak() -> None:
    """Reset the high-water mark (Linux), which imports and compilation may have raised above the peak to measure."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Highest memory of this process since `forget_peak`, in MB (Linux)."""
    return _status_mb("VmHWM")


def _status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def rotation(call_bytes: int) -> int:
    """How many separate input sets keep a GPU's cache from serving a call that moves `call_bytes`."""
    return max(1, min(16, -(-_ROTATION_BYTES // max(1, call_bytes))))


def time_gpu(calls: Sequence[Callable[[], object]], graph: bool, repeats: int = 15) -> Timing:
    """Time per call from CUDA events around one pass over `calls` (the same work on different inputs).

    With `graph` the pass is captured once and replayed, which excludes the host's launch time.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    def eager() -> None:
        for call in calls:
            call()

    run: Callable[[], object] = eager
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            eager()
        run = captured.replay
    run()
    found = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / len(calls))
    return summarise(found)


class Table:
    """A CSV file flushed after every row, so that measurements survive a later failure."""

    def __init__(self, path: Path, columns: Sequence[str]):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, columns, restval="")
        self._writer.writeheader()
        self._file.flush()
        self.rows: list[dict[str, object]] = []

    def add(self, **row: object) -> None:
        row = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        self._writer.writerow(row)
        self._file.flush()
        self.rows.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items() if value != ""), flush=True)

    def close(self) -> None:
        self._file.close()
