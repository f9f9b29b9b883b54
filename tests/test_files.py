"""Whole files or none: full disks, other file systems, killed writers."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile

import pytest
import torch

from fractal_ssm.files import WriteFailed, append_text, atomic_write, create_text, remove_leftovers, write_text


class Full:
    """Stands before a file and refuses, as a full disk does, after some bytes."""

    def __init__(self, file, room: int, number: int):
        self._file, self._room, self._number = file, room, number

    def write(self, data) -> int:
        if len(data) > self._room:
            self._file.write(bytes(data)[: self._room])
            raise OSError(self._number, os.strerror(self._number))
        self._room -= len(data)
        return self._file.write(data)

    def __getattr__(self, name: str):
        return getattr(self._file, name)


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"ne")
        assert path.read_text() == "old"
        raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]
    write_text(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é" and os.listdir(tmp_path) == ["file"]


def test_nothing_is_moved_between_folders(tmp_path, monkeypatch):
    """TMPDIR is not used, so it can be on any file system."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append((a, b)), replace(a, b)))
    write_text(tmp_path / "file", "text")
    assert [(os.path.dirname(a), os.path.dirname(b)) for a, b in moved] == [(str(tmp_path), str(tmp_path))]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("room", [0, 700, 5000])
def test_a_checkpoint_on_a_full_disk(tmp_path, number, room):
    """torch hides the refusal behind an error of its own; the reason comes out, and nothing half-written."""
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"old")
    with pytest.raises(WriteFailed) as caught, atomic_write(path) as file:
        torch.save({"weights": torch.zeros(4000)}, Full(file, room, number))
    assert caught.value.errno == number and caught.value.filename == str(path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["last.ckpt"]


def test_a_folder_that_is_gone(tmp_path):
    for write in (write_text, append_text, create_text):
        with pytest.raises(WriteFailed, match="No such file or directory"):
            write(tmp_path / "gone" / "file", "text")


def test_a_link_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere/file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere" / "file").read_text() == "text"


def test_no_file_takes_the_place_of_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WriteFailed, match="no ordinary file"):
        write_text(tmp_path / "pipe", "new")
    assert not (tmp_path / "pipe").is_file() and list(tmp_path.iterdir()) == [tmp_path / "pipe"]
    with pytest.raises(WriteFailed, match="no ordinary file"):
        write_text(tmp_path, "new")


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    kept = {".lock", "last.ckpt", ".hidden.tmp", "file.tmp"}
    for name in (*kept, ".last.ckpt.123-456.tmp", ".record.json.1-2.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "missing")
    assert set(os.listdir(tmp_path)) == kept


def test_of_two_only_one_creates(tmp_path):
    assert create_text(tmp_path / "file", "first") and not create_text(tmp_path / "file", "second")
    assert (tmp_path / "file").read_text() == "first"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this machine does not let a small file system be mounted")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(small_disk):
    path = small_disk / "file"
    write_text(path, "old\n")
    append_text(path, "row\n")
    with open(small_disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 4096)
    for write, text in ((write_text, "n" * 5000), (append_text, "n" * 5000)):
        with pytest.raises(WriteFailed) as caught:
            write(path, text)
        assert caught.value.errno == errno.ENOSPC
        assert path.read_text() == "old\nrow\n"
    with pytest.raises(WriteFailed):
        create_text(small_disk / "other", "n" * 5000)
    assert sorted(os.listdir(small_disk)) == ["file", "filler"]
