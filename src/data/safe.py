"""Read untrusted archives, compressed files and arrays: nothing is written outside the folder; sizes are bounded."""

from __future__ import annotations

import errno
import gzip
import shutil
import tarfile
import uuid
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from ..errors import UsageError

GIB = 1 << 30
_MAX_DEPTH = 32
_MAX_HEADER = 1 << 20
# Headers that only describe the next member: long names, and the extended ones of POSIX.
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def read_gzip(path: Path, max_bytes: int) -> bytes:
    """Content of a file, unpacked when it ends in .gz.

    Raises:
        UsageError: it is damaged, or has more than `max_bytes`.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        try:
            content = file.read(max_bytes + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{path} is damaged ({error}): copy or download it again.") from error
    if len(content) > max_bytes:
        raise UsageError(f"{path} unpacks to more than {max_bytes:,} bytes, so it is not the expected file.")
    return content


def read_npy(path: Path, mmap_mode: str | None = None) -> np.ndarray:
    """The array of a .npy file; arrays of objects are refused.

    Raises:
        UsageError: it cannot be read. The remedy depends on whose file it is and is left to the caller.
    """
    try:
        return np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except Exception as error:
        # numpy parses the header as Python: a damaged one fails in a dozen ways, TokenError among them.
        reason = getattr(error, "strerror", None) or str(error)[:200]
        raise UsageError(f"{path} cannot be read as an array ({reason})") from error


def extract_tar(archive: Path, target: Path, max_bytes: int = 64 * GIB, max_files: int = 5_000_000) -> Path:
    """Unpack a tar archive, compressed or not, into a new folder, either completely or not at all.

    Args:
        archive: the file; its compression is recognised by content, so that lra_release.gz, a tar, works as well.
        target: folder to make; must not exist.
        max_bytes: bound on the sum of the members' sizes.
        max_files: bound on the number of members.
    Returns:
        target.
    Raises:
        UsageError: the target exists or cannot be written, a bound is exceeded, the archive is damaged, or a member is
            a link, a device or a sparse file, repeats a name, lies outside the target or more than 32 levels deep.
    """
    archive, target = Path(archive), Path(target)
    partial = target.parent / f".{target.name}.tmp-{uuid.uuid4().hex[:8]}"
    try:
        if target.exists() or target.is_symlink():
            raise UsageError(f"{target} is there already; name a new folder to unpack {archive.name} into.")
        with _decompressed(archive) as raw:
            partial.mkdir(parents=True)
            with tarfile.open(fileobj=raw, mode="r|", tarinfo=_Member) as members:
                _extract_members(members, partial, max_bytes, max_files, archive)
        partial.rename(target)
    except UsageError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{archive} cannot be unpacked to {target}: {error}. {_advice(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _advice(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space or name a folder on a larger disk; nothing half-made is left."
    if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG):
        return "Name an archive that you may read and a new folder below one that you may write."
    return "Copy or download the archive again; a tar archive, plain or packed with gzip, is expected."


class _Member(tarfile.TarInfo):
    """A member whose header is checked before the library acts on it."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> tarfile.TarInfo:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED:
            if not 0 <= member.size <= _MAX_HEADER:
                raise UsageError(f"The archive has a header of {member.size:,} bytes; at most {_MAX_HEADER} are read.")
        elif member.type not in _PLAIN:
            raise UsageError(f"The archive holds '{member.name}', a link or a device. Refused; data are plain files.")
        return member


def _extract_members(members: tarfile.TarFile, folder: Path, max_bytes: int, max_files: int, archive: Path) -> None:
    total = 0
    for count, member in enumerate(members, start=1):
        # The library would otherwise keep a list of all members.
        members.members = []
        if count > max_files:
            raise UsageError(f"{archive} holds more than {max_files:,} files. Refused: not the expected archive.")
        shown = f"'{member.name[:200]}'"
        if member.issparse():
            raise UsageError(f"{archive} holds {shown}, a sparse file, which may unpack to any size. Refused.")
        total += member.size
        if member.size < 0 or total > max_bytes:
            raise UsageError(f"{archive} unpacks to more than {max_bytes:,} bytes. Refused: not the expected archive.")
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise UsageError(f"{archive} would write {shown} outside its folder. Refused.")
        if len(path.parts) > _MAX_DEPTH:
            raise UsageError(f"{archive} holds {shown}, which is more than {_MAX_DEPTH} levels deep. Refused.")
        if member.isreg() and (folder / path).exists():
            raise UsageError(f"{archive} holds {shown} twice (or in two spellings of one name). Refused.")
        members.extract(member, folder, set_attrs=False, filter="data")


def _decompressed(archive: Path) -> BinaryIO:
    with open(archive, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(archive, "rb")
    if magic.startswith(b"BZh") or magic == b"\xfd7zXZ\x00":
        raise UsageError(f"{archive} is compressed with bzip2 or xz; unpack it to a plain tar first.")
    return open(archive, "rb")
