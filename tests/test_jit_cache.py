"""A numba cache that is damaged, read-only, full or missing costs a compilation, never a run."""

from __future__ import annotations

import logging
from pathlib import Path

import numba
import numpy as np
import pytest

from fractal_ssm import jit_cache


def twice(x):
    return x + x


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A new function object compiled at 2.0, as a new process would have it; the folder is `tmp_path`."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit_cache, "_announced", set())
    monkeypatch.setattr(jit_cache, "_complained", set())

    def run():
        function = jit_cache.cached_jit(twice, "a test")
        assert function(2.0) == 4.0
        return sum(function.stats.cache_hits.values())

    return run


def files(folder: Path, suffix: str) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.suffix == suffix]
    assert found
    return found


def empty(path):
    path.write_bytes(b"")


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path):
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def flip_one_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [empty, halve, scramble, flip_one_byte, Path.unlink])
def test_a_damaged_file_is_compiled_anew_and_replaced(compiled, tmp_path, suffix, damage):
    assert compiled() == 0
    assert compiled() == 1
    for path in files(tmp_path, suffix):
        damage(path)
    assert compiled() == 0
    assert compiled() == 1


def test_what_cannot_be_replaced_is_named(compiled, tmp_path, caplog):
    compiled()
    for path in files(tmp_path, ".nbi"):
        replace_by_folder(path)
    assert compiled() == 0
    assert any(str(tmp_path) in record.message and "elete" in record.message for record in caplog.records)


def test_a_full_disk_leaves_the_function_usable(compiled, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jit_cache._CheckedFile, "_open_for_write", full)
    assert compiled() == 0
    assert [record for record in caplog.records if "No space left" in record.message]


def test_a_cache_folder_that_is_a_file(compiled, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    # Numba then takes another folder, which may hold the function from an earlier run.
    assert compiled() in (0, 1)


def test_compiling_is_announced_once_and_only_when_nothing_is_cached(compiled, monkeypatch, caplog):
    compiled()
    compiled()
    said = [record for record in caplog.records if record.name == "fractal_ssm.compile"]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert "Compiling a test for this machine, once" in said[0].message
    monkeypatch.setattr(jit_cache, "_announced", set())
    caplog.clear()
    assert compiled() == 1
    assert not caplog.records


def test_other_ranks_compile_silently(compiled, monkeypatch, caplog):
    monkeypatch.setenv("LOCAL_RANK", "1")
    compiled()
    assert not caplog.records
