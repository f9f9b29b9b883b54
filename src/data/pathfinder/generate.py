"""Draw the images of a setting and a seed: image k is always the same, however many are drawn, and by any thread.

`Generator` draws in memory; `fill` draws a large set into two files, on all cores, and can be interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ...errors import UsageError
from ..progress import progress
from .parameters import LAW_VERSION, Parameters, differences

# Images per shard: a thread reports and an interruption loses whole shards.
SHARD = 500
_SHARDS = "shards.json"
Result = TypeVar("Result")


class Images(NamedTuple):
    """Images, their labels, and the curves and counts behind them.

    images: uint8 (n, size, size), 0 is black.  labels: uint8 (n,), 1 where the discs mark the two ends of one curve.
    restarts: int64 (n,) failed attempts at the target pair.  placed: int64 (n,) distractors.  margins: int64 (n,) px.
    targets: int32 (n, 2, contour_length, 3) dashes of the two target curves from tail to end, as (direction index, y,
        x): y, x is the tail of the first dash and the head of later ones; `tables.angles` has the directions.
    discs: int32 (n, 2, 2) centres (y, x) of the discs: the tail of a curve and the end of a curve.
    """

    images: np.ndarray
    labels: np.ndarray
    restarts: np.ndarray
    placed: np.ndarray
    margins: np.ndarray
    targets: np.ndarray
    discs: np.ndarray


class Generator:
    """Draws the images of one setting.

    Args:
        setting: from `parameters`.
        seed: any integer in 0 .. 2**63 - 1; different seeds, sizes, difficulties or parameters share no image.

    `draw` may be called from several threads at once; the compiled part releases the interpreter lock.
    """

    def __init__(self, setting: Parameters, seed: int = 0):
        if not 0 <= seed < 1 << 63:
            raise UsageError(f"A Pathfinder seed lies in 0 .. 2**63 - 1, got {seed}.")
        # Imported here: the compiler takes a second to import, and data already drawn do not need it.
        from . import kernel, tables

        self.setting, self.seed = setting, seed
        self._kernel, self._buffers = kernel, tables.buffers
        self._tables, self._layout = tables.build(setting)
        self.recipe = {
            **setting.as_dict(),
            "seed": seed,
            "law": LAW_VERSION,
            "tables": tables.fingerprint(self._tables),
        }
        identity = json.dumps([setting.as_dict(), seed, LAW_VERSION], sort_keys=True)
        self._key = np.uint64(int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "little"))

    def draw(self, first: int, n: int) -> Images:
        """Images first .. first + n - 1. The first call on a machine compiles; n = 0 only compiles."""
        size, length = self.setting.size, self.setting.contour_length
        images = np.empty((n, size, size), np.uint8)
        labels = np.empty(n, np.uint8)
        counts = np.empty((n, 3), np.int64)
        targets = np.empty((n, 2, length, 3), np.int32)
        discs = np.empty((n, 2, 2), np.int32)
        found = self._kernel.draw(
            first, self._key, images, labels, counts, targets, discs,
            self._tables, self._layout, self._buffers(self._layout),
        )  # fmt: skip
        if not found:
            raise RuntimeError(f"No pair of target curves in {self._kernel.MAX_ATTEMPTS:,} attempts: {self.setting}")
        margins = np.array(self.setting.paddle_margins)[counts[:, 2]]
        return Images(images, labels, counts[:, 0], counts[:, 1], margins, targets, discs)


def checksum(*arrays: np.ndarray) -> str:
    """SHA-256 over the bytes of the arrays, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def available_cores() -> int:
    """Cores that this process may use; all of them where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_shards(
    shards: Iterable[range], do: Callable[[range], Result], workers: int | None
) -> Iterator[tuple[range, Result]]:
    """Results of `do` for every shard, in the order in which threads finish them.

    If the caller stops early (an error, Ctrl-C), no further shard is started, and the running ones are waited for.

    Args:
        shards: index ranges.
        do: called in a thread.
        workers: threads; None takes all cores that this process may use.
    """
    pool = ThreadPoolExecutor(workers or available_cores())
    try:
        running = {pool.submit(do, shard): shard for shard in shards}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def fill(folder: Path, generator: Generator, n: int, workers: int | None = None) -> None:
    """Draw images 0 .. n - 1 into `pixels.npy`, uint8 (n, size**2, 1), and `labels.npy`, uint8 (n,).

    Shards of images are written into their places; a shard counts as drawn once `shards.json` holds its checksum. A
    second call checks the shards of an interrupted one and draws the rest.

    Args:
        folder: empty, or left by an interrupted call.
        generator: draws the images.
        n: number of images.
        workers: threads; no effect on the images.
    Raises:
        UsageError: the folder holds shards of another setting.
    """
    size = generator.setting.size
    pixels = _open(folder / "pixels.npy", (n, size * size, 1))
    labels = _open(folder / "labels.npy", (n,))
    drawn = _drawn(folder, generator, n, pixels, labels)
    todo = [shard for shard in _shards(n) if str(shard.start) not in drawn]

    def do(shard: range) -> str:
        part = generator.draw(shard.start, len(shard))
        _write(folder / "pixels.npy", pixels, shard, part.images)
        _write(folder / "labels.npy", labels, shard, part.labels)
        return checksum(part.images, part.labels)

    generator.draw(0, 0)
    begun, remaining = time.perf_counter(), sum(len(shard) for shard in todo)
    with progress(f"Drawing Pathfinder {size}", n, "images") as advance:
        advance(n - remaining)
        for shard, digest in run_shards(todo, do, workers):
            drawn[str(shard.start)] = digest
            _record(folder, generator, n, drawn)
            advance(len(shard))
    if remaining:
        rate = remaining / (time.perf_counter() - begun)
        print(f"Drew {remaining:,} Pathfinder images of {size} px, {rate:,.0f} images/s.", file=sys.stderr)


def _shards(n: int) -> list[range]:
    return [range(first, min(first + SHARD, n)) for first in range(0, n, SHARD)]


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Map an array file for reading; if it is missing, create it filled with zeros."""
    if not path.exists():
        np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape).flush()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _foreign(path.parent, f"{path.name} cannot be read ({error})") from error
    if array.shape != shape or array.dtype != np.uint8:
        raise _foreign(path.parent, f"{path.name} has shape {array.shape}, expected {shape}")
    return array


def _write(path: Path, array: np.ndarray, shard: range, values: np.ndarray) -> None:
    row = array[:1].nbytes
    with open(path, "r+b") as file:
        file.seek(array.offset + shard.start * row)
        file.write(values.tobytes())
        file.flush()
        # The shard must be on the disk before it is recorded as drawn.
        os.fsync(file.fileno())


def _drawn(folder: Path, generator: Generator, n: int, pixels: np.ndarray, labels: np.ndarray) -> dict[str, str]:
    """First index -> checksum, for the shards that are recorded and undamaged."""
    path = folder / _SHARDS
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        found = {**record["recipe"], "n": record["n"], "shard": record["shard"]}
        digests = record["drawn"]
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(folder, f"{_SHARDS} cannot be read ({error})") from error
    wanted = {**generator.recipe, "n": n, "shard": SHARD}
    if found != wanted:
        raise _foreign(folder, f"{_SHARDS} names another recipe: {differences(found, wanted)}")
    whole = {}
    for shard in _shards(n):
        digest = digests.get(str(shard.start))
        if digest is None:
            continue
        part = slice(shard.start, shard.stop)
        if checksum(pixels[part], labels[part]) == digest:
            whole[str(shard.start)] = digest
        else:
            print(f"{folder}: images from {shard.start} on are damaged and are drawn again.", file=sys.stderr)
    return whole


def _record(folder: Path, generator: Generator, n: int, drawn: dict[str, str]) -> None:
    record = {"recipe": generator.recipe, "n": n, "shard": SHARD, "drawn": drawn}
    partial = folder / f"{_SHARDS}.tmp"
    # Sorted, so that the checksum of the cache does not depend on the order in which threads finish.
    partial.write_text(json.dumps(record, sort_keys=True))
    partial.replace(folder / _SHARDS)


def _foreign(folder: Path, reason: str) -> UsageError:
    return UsageError(
        f"{folder} was left by another run: {reason}. Nothing was changed. Delete the folder to draw the images anew."
    )
