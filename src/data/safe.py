"""Reading archives and pickles of strangers: nothing in them runs, leaves its folder or grows without bound."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import tarfile
import uuid
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import UsageError

GIB = 1 << 30
_NUMERIC = frozenset("?bBhHiIlLqQefd") | {f"{kind}{size}" for kind in "uif" for size in (1, 2, 4, 8)}


def load_pickle(path: Path, max_bytes: int = 256 << 20) -> Any:
    """Read a pickle that holds only numbers, strings, containers and numeric numpy arrays.

    numpy's own classes are never called: their places are taken by two plain classes that keep what the pickle says
    and are turned into arrays afterwards. Byte strings of Python 2 stay bytes.

    Args:
        path: the file.
        max_bytes: largest file that is opened; an array cannot be larger than the file that holds it.
    Raises:
        UsageError: the file is too large, is cut short, or names anything else to call.
    """
    size = path.stat().st_size
    if size > max_bytes:
        raise UsageError(f"{path} has {size:,} bytes, at most {max_bytes:,} are expected: this is another file.")
    with open(path, "rb") as file:
        try:
            return _to_arrays(_Unpickler(file, encoding="bytes").load())
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        except Exception as error:
            # Damaged pickles fail in many ways; all of them mean the same to the user.
            raise UsageError(f"{path} is not a whole pickle ({error}): copy or download it again.") from error


class _Dtype:
    """What a pickled numpy.dtype says."""

    def __init__(self, code: Any, *flags: Any):
        self.code = code.decode() if isinstance(code, bytes) else str(code)
        if self.code not in _NUMERIC:
            raise UsageError(f"it holds an array of type {self.code!r}; only numbers are read.")
        self.order = "="

    def __setstate__(self, state: tuple) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else str(state[1])
        self.order = order if order in "<>" else "="

    def dtype(self) -> np.dtype:
        return np.dtype(self.code).newbyteorder(self.order)


class _Array:
    """What a pickled numpy.ndarray says."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise UsageError("it holds an array of objects; only numbers are read.")
        flat = np.frombuffer(data, dtype=dtype.dtype())
        self.array = flat.reshape(shape, order="F" if fortran else "C").copy()


def _reconstruct(*arguments: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any) -> bytes:
    # How numpy writes bytes in old protocols: as latin-1 text.
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise UsageError("it encodes text in an unexpected way.")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    _KNOWN = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "dtype"): _Dtype,
        # Only ever an argument of _reconstruct.
        ("numpy", "ndarray"): "numpy.ndarray",
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise UsageError(f"it wants to call {module}.{name}. Refused: data need no code, it may be malicious.")
        return self._KNOWN[module, name]


def _to_arrays(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {key: _to_arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_arrays(item) for item in value)
    return value


def read_gzip(path: Path, max_bytes: int) -> bytes:
    """Content of a file, unpacked when it ends in .gz; refused beyond `max_bytes`."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        try:
            content = file.read(max_bytes + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{path} is damaged ({error}): copy or download it again.") from error
    if len(content) > max_bytes:
        raise UsageError(f"{path} unpacks to more than {max_bytes:,} bytes: this is another file.")
    return content


def extract_tar(archive: Path, target: Path, max_bytes: int = 64 * GIB, max_files: int = 5_000_000) -> Path:
    """Unpack a tar archive, compressed or not, into a new folder; all of it or nothing.

    Args:
        archive: the file; its compression is recognised by content, so that lra_release.gz, a tar, works as well.
        target: folder to make; must not exist.
        max_bytes, max_files: bounds on what comes out.
    Returns:
        target.
    Raises:
        UsageError: the target exists, a bound is passed, the archive is damaged, or a member is a link, a device or
            would lie outside the target.
    """
    archive, target = Path(archive), Path(target)
    if target.exists():
        raise UsageError(f"{target} is there already; name a new folder to unpack {archive.name} into.")
    partial = target.parent / f".{target.name}.tmp-{uuid.uuid4().hex[:8]}"
    partial.mkdir(parents=True)
    try:
        with _decompressed(archive) as raw:
            bounded = io.BufferedReader(_Bounded(raw, max_bytes, archive), 1 << 20)
            with tarfile.open(fileobj=bounded, mode="r|") as members:
                _extract_members(members, partial, max_files, archive)
        partial.rename(target)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UsageError(f"{archive} cannot be unpacked: {error}") from error
    finally:
        if partial.exists():
            shutil.rmtree(partial)
    return target


def _extract_members(members: tarfile.TarFile, folder: Path, max_files: int, archive: Path) -> None:
    root = folder.resolve()
    for count, member in enumerate(members, start=1):
        if count > max_files:
            raise UsageError(f"{archive} holds more than {max_files:,} files: this is another archive.")
        if not (member.isreg() or member.isdir()):
            raise UsageError(f"{archive} holds '{member.name}', a link or a device. Refused; data are plain files.")
        path = (root / member.name).resolve()
        if Path(member.name).is_absolute() or not path.is_relative_to(root):
            raise UsageError(f"{archive} would write '{member.name}' outside its folder. Refused.")
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written by hand: owner, mode and times of the archive are of no use here.
        with members.extractfile(member) as source, open(path, "xb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
            if sink.tell() != member.size:
                raise UsageError(f"{archive} is cut short within '{member.name}': copy or download it again.")


def _decompressed(archive: Path) -> BinaryIO:
    with open(archive, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(archive, "rb")
    if magic.startswith(b"BZh") or magic == b"\xfd7zXZ\x00":
        raise UsageError(f"{archive} is compressed with bzip2 or xz; unpack it to a plain tar first.")
    return open(archive, "rb")


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than a number of bytes."""

    def __init__(self, raw: BinaryIO, limit: int, archive: Path):
        self._raw, self._left, self._limit, self._archive = raw, limit, limit, archive

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        content = self._raw.read(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise UsageError(f"{self._archive} unpacks to more than {self._limit:,} bytes. Refused.")
        buffer[: len(content)] = content
        return len(content)
