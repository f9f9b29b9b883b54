"""The cache is built once, completely or not at all, and refused when any check fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fractal_ssm.data.cache import MANIFEST, cache_folder, load_or_build, open_cache, source_stamp
from fractal_ssm.data.packed import PackedSequences, PackedWriter
from fractal_ssm.errors import UsageError

PARAMETERS = {"n": 5, "kind": "test"}


def write_numbers(folder: Path) -> dict:
    np.save(folder / "numbers.npy", np.arange(1000, dtype=np.uint16))
    return {"count": 1000}


def refuse_to_build(folder: Path) -> dict:
    raise AssertionError("built a second time")


@pytest.fixture
def built(tmp_path):
    return load_or_build(tmp_path / "c", PARAMETERS, write_numbers).folder


def test_built_once_then_opened(built):
    cache = load_or_build(built, PARAMETERS, refuse_to_build)
    assert cache.facts == {"count": 1000} and cache.parameters == PARAMETERS and len(cache.checksum) == 64
    assert isinstance(cache.array("numbers"), np.memmap) and cache.array("numbers")[999] == 999
    assert open_cache(built, thorough=True).checksum == cache.checksum


def test_equal_content_has_an_equal_checksum(tmp_path, built):
    other = load_or_build(tmp_path / "d", {"n": 6}, write_numbers)
    assert other.checksum == open_cache(built).checksum


def test_folders_differ_with_the_parameters(tmp_path):
    one, two = (cache_folder(tmp_path, "task", "made", {"n": n}) for n in (1, 2))
    assert one != two and one == cache_folder(tmp_path, "task", "made", {"n": 1})
    assert one.parent == tmp_path / "cache" / "task"


def truncate(folder: Path) -> None:
    with open(folder / "numbers.npy", "r+b") as file:
        file.truncate(1500)


def change_a_byte(folder: Path) -> None:
    with open(folder / "numbers.npy", "r+b") as file:
        file.seek(1000)
        file.write(b"\xff")


def remove_file(folder: Path) -> None:
    (folder / "numbers.npy").unlink()


def remove_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def cut_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[: len(text) // 2])


def other_program(folder: Path) -> None:
    (folder / MANIFEST).write_text("[1, 2]")


def other_format(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "format": 99}))


def other_parameters(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "parameters": {"n": 6}}))


DAMAGES = {
    truncate: "1,500 bytes instead of 2,128",
    change_a_byte: "does not match its checksum",
    remove_file: "numbers.npy is missing",
    remove_manifest: "holds no manifest.json",
    cut_manifest: "cannot be read",
    other_program: "cannot be read",
    other_format: "not of format",
    other_parameters: "its parameters are",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_cache_is_refused_and_left_alone(built, damage):
    damage(built)
    before = {path.name: path.read_bytes() for path in built.iterdir()}
    with pytest.raises(UsageError, match=DAMAGES[damage]) as error:
        load_or_build(built, PARAMETERS, refuse_to_build)
    assert str(built) in str(error.value) and "delete it and run again" in str(error.value)
    assert {path.name: path.read_bytes() for path in built.iterdir()} == before


def test_a_folder_of_the_user_is_never_built_over(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("dear")
    with pytest.raises(UsageError, match="refused"):
        load_or_build(tmp_path / "c", PARAMETERS, refuse_to_build)
    assert (tmp_path / "c" / "thesis.txt").read_text() == "dear"


def test_a_change_that_hides_its_time_is_found_by_the_thorough_check(built):
    stat = (built / "numbers.npy").stat()
    change_a_byte(built)
    os.utime(built / "numbers.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(UsageError, match="checksum"):
        open_cache(built, thorough=True)


def test_a_copy_is_accepted(built, tmp_path):
    shutil.copytree(built, tmp_path / "copy", copy_function=shutil.copyfile)
    assert open_cache(tmp_path / "copy", PARAMETERS).facts == {"count": 1000}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing(tmp_path, error):
    def fail(folder: Path) -> dict:
        write_numbers(folder)
        raise error

    with pytest.raises(error):
        load_or_build(tmp_path / "c", PARAMETERS, fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert load_or_build(tmp_path / "c", PARAMETERS, write_numbers).facts == {"count": 1000}


def test_a_resumable_build_goes_on_where_it_stopped(tmp_path):
    def first(folder: Path) -> dict:
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    def second(folder: Path) -> dict:
        assert (folder / "part").read_text() == "half"
        return write_numbers(folder)

    with pytest.raises(KeyboardInterrupt):
        load_or_build(tmp_path / "c", PARAMETERS, first, resumable=True)
    assert not (tmp_path / "c").exists()
    load_or_build(tmp_path / "c", PARAMETERS, second, resumable=True)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["c"]


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from fractal_ssm.data.cache import load_or_build
def build(folder):
    np.save(folder / "numbers.npy", np.arange(1000))
    with open(sys.argv[2], "a") as log:
        log.write("x")
    time.sleep(float(sys.argv[3]))
    return {"n": 1}
load_or_build(Path(sys.argv[1]), {"n": 1}, build)
"""


def start(folder: Path, log: Path, seconds: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", BUILDER, str(folder), str(log), str(seconds)])


def test_two_processes_build_once(tmp_path):
    log = tmp_path / "log"
    processes = [start(tmp_path / "c", log, 0.5) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert log.read_text() == "x"
    assert open_cache(tmp_path / "c", {"n": 1}, thorough=True)


def test_a_killed_build_leaves_nothing_accepted_and_is_cleaned_up(tmp_path):
    import time

    log = tmp_path / "log"
    process = start(tmp_path / "c", log, 60)
    while not log.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "c").exists()
    load_or_build(tmp_path / "c", PARAMETERS, write_numbers)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["c"]


def test_the_loser_of_a_race_without_locks_takes_the_winner_s_result(tmp_path):
    def overtaken(folder: Path) -> dict:
        shutil.copytree(winner, tmp_path / "c")
        return write_numbers(folder)

    winner = load_or_build(tmp_path / "w", PARAMETERS, write_numbers).folder
    assert load_or_build(tmp_path / "c", PARAMETERS, overtaken).facts == {"count": 1000}


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def no_locks(file, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert load_or_build(tmp_path / "c", PARAMETERS, write_numbers).facts == {"count": 1000}
    assert "No locks available" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "/readonly")

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(UsageError, match="cannot be written .*Set data_dir"):
        load_or_build(tmp_path / "x" / "c", PARAMETERS, refuse_to_build)


def test_source_stamp_sees_both_ends(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(bytes(3 << 20))
    stamp = source_stamp(path)
    assert stamp["bytes"] == 3 << 20
    for position in (0, (3 << 20) - 1):
        content = bytearray(3 << 20)
        content[position] = 1
        path.write_bytes(content)
        assert source_stamp(path) != stamp


def test_packed_sequences(tmp_path):
    sequences = [np.arange(n, dtype=np.uint16) + 300 for n in (3, 0, 7)]
    with PackedWriter(tmp_path, "tokens", np.uint16) as writer:
        for sequence in sequences:
            writer.append(sequence)
    np.save(tmp_path / "labels.npy", np.array([2, 0, 1]))
    data = PackedSequences(tmp_path, [2, 0])
    assert len(data) == 2 and data[0][1] == 1 and data[1][1] == 2
    np.testing.assert_array_equal(data[0][0], sequences[2])
    np.testing.assert_array_equal(PackedSequences(tmp_path, range(3))[1][0], [])
