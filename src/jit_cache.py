"""Functions compiled by numba and cached on disk; compilation is announced, and a damaged cache is rebuilt.

The cache files are pickles that numba writes and reads; nothing else is unpickled here. Importing this module imports
numba.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

# Silence it with logging.getLogger("fractal_ssm.compile").setLevel("ERROR").
_log = logging.getLogger("fractal_ssm.compile")
_announced: set[str] = set()
_complained: set[str] = set()
_CHECKSUM_BYTES = 4


def cached_jit(function: Callable[..., Any], what: str, **options: Any) -> Any:
    """`function` compiled by `numba.njit` at its first call; later processes load it from numba's cache folder.

    Args:
        what: name in the announcement ("the scan"), which is made once per process if nothing cached is found.
        options: options of `numba.njit`, without `cache`.
    """
    compiled = numba.njit(**options)(function)
    try:
        compiled._cache = _Cache(function, what)
    except RuntimeError as error:
        # numba found no writable folder, so every process compiles.
        _complain(f"numba cannot cache its compiled code: {error}. Set NUMBA_CACHE_DIR to a folder you may write to.")
    return compiled


class _Cache(FunctionCache):
    """numba's cache, with entries that cannot be read treated as missing, and failed writes reported but ignored."""

    def __init__(self, function: Callable[..., Any], what: str):
        super().__init__(function)
        self._what = what
        ours = self._cache_file
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, ours._source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        # A damaged pickle may raise any exception.
        except Exception as error:
            _log.info("numba's cache in %s cannot be read (%r): compiling anew.", self.cache_path, error)
            self._discard()
            found = None
        if found is None:
            announce(self._what)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        # A full disk, a folder that has become read-only, or an index damaged by another process.
        except Exception as error:
            _complain(
                f"Compiled code cannot be saved in {self.cache_path} ({error!r}), and every process compiles it anew. "
                "Make room there, delete that folder, or set NUMBA_CACHE_DIR to one you may write to."
            )

    def _discard(self) -> None:
        try:
            self.flush()
        except OSError as error:
            _complain(f"numba's cache in {self.cache_path} is damaged and cannot be replaced ({error}). Delete it.")


class _CheckedFile(IndexDataCacheFile):
    """numba's cache file with a checksum before the code, since running damaged machine code would end the process."""

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little") + content)

    def _load_data(self, name: str) -> Any:
        with open(self._data_path(name), "rb") as file:
            content = file.read()
        checksum, content = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if int.from_bytes(checksum, "little") != zlib.crc32(content):
            raise ValueError(f"the checksum of {name} does not match")
        return numba.core.caching.pickle.loads(content)


def announce(what: str) -> None:
    """Log once per process, on the first local rank, that `what` is being compiled."""
    if what in _announced:
        return
    _announced.add(what)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _log.warning("Compiling %s for this machine, once (a few seconds).", what)


def _complain(message: str) -> None:
    if message not in _complained:
        _complained.add(message)
        _log.warning("%s", message)
