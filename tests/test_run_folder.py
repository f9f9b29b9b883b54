"""A run folder that cannot be used is told in one message, and nothing of it is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractal_ssm import UsageError
from fractal_ssm.run_folder import make_writable

CASES = [
    ("file", "is a file"),
    ("file/x/y", "is a file"),
    ("/dev/null", "is a file"),
    ("/proc/nowhere", "cannot be used"),
    ("new/" + "y" * 300, "too long"),
    ("x" * 5000, "too long"),
    ("dangling", "which does not exist"),
    ("dangling/x", "which does not exist"),
    ("loop/x", "cannot be used"),
    ("a\0b", "cannot be printed"),
    ("a\nb", "cannot be printed"),
    ("~/x", "'~' is not expanded here"),
    (" ", "is empty"),
]


@pytest.mark.parametrize(("folder", "words"), CASES, ids=[repr(folder[:20]) for folder, _ in CASES])
def test_refused(tmp_path, monkeypatch, folder, words):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.symlink("/nowhere/x", "dangling")
    os.symlink("loop", "loop")
    with pytest.raises(UsageError, match=r"hydra\.run\.dir") as caught:
        make_writable("hydra.run.dir", folder)
    assert words in str(caught.value) and len(str(caught.value)) < 500
    assert sorted(os.listdir()) == ["dangling", "file", "loop"]


def test_made(tmp_path):
    make_writable("hydra.run.dir", str(tmp_path / "new" / "folder"))
    make_writable("hydra.run.dir", str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "folder"]
    assert not list((tmp_path / "new" / "folder").iterdir())
