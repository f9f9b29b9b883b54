"""Prepared data on disk: built once, atomically, with its parameters and checksums, and never half-read.

A cache is a folder of files plus `manifest.json`, which holds the parameters that made it, the SHA-256 and size of
every file, and facts about the content. It is built in a hidden folder beside its final place and renamed there when
complete, so an interrupted build leaves nothing that could be taken for a cache. When two processes build at once, one
waits (or, where file locks do not work, one result is thrown away). A cache that fails its checks is refused and never
rebuilt automatically, because the folder may hold files of the user.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from ..errors import UsageError
from .safe import read_npy

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Cache:
    """An opened cache.

    Attributes:
        folder: path of the cache.
        parameters: values that the content was made with; equal parameters mean equal content.
        facts: what the builder recorded about the content (counts, label shares, vocabulary, ...).
        checksum: SHA-256 over names and checksums of all files, which identifies the whole content.
    """

    folder: Path
    parameters: dict[str, Any]
    facts: dict[str, Any]
    checksum: str

    def array(self, name: str) -> np.ndarray:
        """`load_array` for a file of this cache."""
        return load_array(self.folder, name)


def load_array(folder: Path, name: str) -> np.ndarray:
    """The array in the file `name`.npy of a cache, memory-mapped read-only.

    Raises:
        UsageError: the file is missing or does not hold an array.
    """
    try:
        return read_npy(folder / f"{name}.npy", mmap_mode="r")
    except UsageError as error:
        raise refused(folder, str(error)) from error


def cache_folder(data_dir: Path, task: str, kind: str, parameters: Mapping[str, Any]) -> Path:
    """`data_dir/cache/<task>/<kind>-<hash of the parameters>`, so different parameters never share a folder."""
    digest = hashlib.sha256(_canonical(parameters).encode()).hexdigest()
    return Path(data_dir) / "cache" / task / f"{kind}-{digest[:10]}"


def load_or_build(
    folder: Path,
    parameters: Mapping[str, Any],
    build: Callable[[Path], Mapping[str, Any]],
    resumable: bool = False,
) -> Cache:
    """Open the cache at `folder`, or build it first.

    Args:
        folder: final place, usually from `cache_folder`.
        parameters: JSON values; compared with those in the manifest.
        build: called with an empty folder; writes files there and returns the facts (JSON values).
        resumable: keep what an interrupted build wrote; `build` finds it in its folder at the next call.
    Raises:
        UsageError: the existing cache is damaged or was made by something else, the place cannot be written, or the
            disk is full.
    """
    folder = Path(folder)
    if folder.exists():
        return open_cache(folder, parameters)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The data cache {folder} cannot be written ({reason}). Set data_dir to a folder that you may write, and "
            f"link the raw data into it."
        ) from error
    try:
        with _lock(folder):
            if not folder.exists():
                _build(folder, json.loads(_canonical(parameters)), build, resumable)
    except OSError as error:
        if error.errno is None:
            raise
        raise _not_made(folder, error, resumable) from error
    return open_cache(folder, parameters)


def open_cache(folder: Path, parameters: Mapping[str, Any] | None = None, thorough: bool = False) -> Cache:
    """Open an existing cache after checking it.

    Args:
        folder: the cache.
        parameters: values that it must have been made with; None accepts any.
        thorough: read every file and compare its SHA-256. Otherwise a file is trusted if its size and modification
            time match the manifest, and only a touched or copied file is read.
    Raises:
        UsageError: no manifest, another format, other parameters, a missing file, a wrong size or checksum.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if parameters is not None and manifest["parameters"] != json.loads(_canonical(parameters)):
        raise refused(folder, f"its parameters are {manifest['parameters']}, expected {dict(parameters)}")
    for name, record in manifest["files"].items():
        _check_file(folder, name, record, thorough)
    return Cache(folder, manifest["parameters"], manifest["facts"], manifest["checksum"])


def source_stamp(path: Path) -> dict[str, Any]:
    """Identity of a large source file without reading all of it: size, and SHA-256 of its first and last MiB."""
    size, part = path.stat().st_size, 1 << 20
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read(part))
        if size > part:
            file.seek(max(part, size - part))
            digest.update(file.read(part))
    return {"name": path.name, "bytes": size, "sha256_ends": digest.hexdigest()}


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(folder: Path, parameters: dict[str, Any], build: Callable[[Path], Mapping[str, Any]], resumable: bool):
    # The caller holds the lock, so temporary folders of this machine are leftovers of killed builds.
    mine = f".{folder.name}.{os.uname().nodename if hasattr(os, 'uname') else 'host'}"
    for stale in folder.parent.glob(f"{mine}.tmp-*"):
        shutil.rmtree(stale)
    partial = folder.parent / (f".{folder.name}.partial" if resumable else f"{mine}.tmp-{uuid.uuid4().hex[:8]}")
    partial.mkdir(exist_ok=resumable)
    try:
        facts = build(partial)
        files = {path.name: _record(path) for path in sorted(partial.iterdir()) if path.name != MANIFEST}
        manifest = {
            "format": FORMAT,
            "parameters": parameters,
            "facts": dict(facts),
            "checksum": _checksum(files),
            "files": files,
        }
        with open(partial / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1, ensure_ascii=True)
            _flush(file)
        try:
            partial.rename(folder)
        except OSError:
            # A machine that does not share our lock finished first; the caller opens and so checks its result.
            if not (folder / MANIFEST).exists():
                raise
    finally:
        if partial.exists() and not resumable:
            shutil.rmtree(partial)


def _record(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        _flush(file)
    stat = path.stat()
    return {"sha256": file_sha256(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _flush(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise refused(folder, f"it holds no {MANIFEST}, so it was not made by this program or was changed since")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        complete = {"format", "parameters", "facts", "checksum", "files"} <= manifest.keys()
        complete = complete and all(isinstance(manifest[key], dict) for key in ("parameters", "facts", "files"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise refused(folder, f"{MANIFEST} cannot be read ({error})") from error
    if not complete or manifest["format"] is True or manifest["format"] != FORMAT:
        raise refused(folder, f"{MANIFEST} is not of format {FORMAT}")
    files = manifest["files"]
    if not manifest["facts"] or not files or not all(_is_record(*item) for item in files.items()):
        raise refused(folder, f"{MANIFEST} lacks facts, or files with their size, time and checksum")
    if manifest["checksum"] != _checksum(files):
        raise refused(folder, f"the checksum in {MANIFEST} is not that of the files it lists")
    return manifest


def _is_record(name: str, record: Any) -> bool:
    """Whether a file's entry is complete and its name stays inside the folder."""
    whole = isinstance(record, dict) and type(record.get("bytes")) is type(record.get("mtime_ns")) is int
    return whole and isinstance(record.get("sha256"), str) and Path(name).name == name and name not in (".", "..")


def _checksum(files: Mapping[str, Any]) -> str:
    content = "".join(f"{name} {record['sha256']}\n" for name, record in files.items())
    return hashlib.sha256(content.encode()).hexdigest()


def _check_file(folder: Path, name: str, record: Mapping[str, Any], thorough: bool) -> None:
    path = folder / name
    if not path.is_file():
        raise refused(folder, f"{name} is missing")
    stat = path.stat()
    if stat.st_size != record["bytes"]:
        raise refused(folder, f"{name} has {stat.st_size:,} bytes instead of {record['bytes']:,}")
    touched = stat.st_mtime_ns != record["mtime_ns"]
    if (thorough or touched) and file_sha256(path) != record["sha256"]:
        raise refused(folder, f"the content of {name} does not match its checksum")


def refused(folder: Path, reason: str) -> UsageError:
    """The error for a cache that fails a check (returned, not raised)."""
    return UsageError(
        f"The data cache {folder} is refused: {reason}. Nothing was changed. "
        f"If the folder holds nothing of yours, delete it and run again; it is then built anew."
    )


def _not_made(folder: Path, error: OSError, resumable: bool) -> UsageError:
    what = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    kept = "Nothing half-made is left."
    if resumable:
        kept = "What was made so far is kept, and the next start continues from it."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"Free some space, or set data_dir to a larger disk. {kept}"
    elif error.errno in (errno.ENOENT, errno.EISDIR, errno.EIO, errno.ELOOP):
        advice = "If it is one of the files that you provided, copy or unpack them again."
    else:
        advice = "Set data_dir to a folder that you may write, and link the raw data into it."
    return UsageError(f"The data cache {folder} cannot be written ({what}). {advice}")


def _canonical(parameters: Mapping[str, Any]) -> str:
    return json.dumps(dict(parameters), sort_keys=True, ensure_ascii=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the build lock of one cache; print a line if it has to wait."""
    lock = filelock.FileLock(folder.parent / f".{folder.name}.lock")
    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            print(f"Waiting for another process that builds {folder} ...", file=sys.stderr)
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        # Some network file systems have no locks: two builds may then run, and the first to rename its folder wins.
        reason = getattr(error, "strerror", None) or error
        print(f"No file lock on {folder.parent} ({reason}); building without.", file=sys.stderr)
    try:
        yield
    finally:
        lock.release()
