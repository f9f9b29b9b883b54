"""Faults of users' files and disks: every one gives a clear message, and no file of the user is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from fractal_ssm.data import aan
from fractal_ssm.data.__main__ import main
from fractal_ssm.data.aan import Aan
from fractal_ssm.data.cifar import Cifar
from fractal_ssm.data.listops import ListOps
from fractal_ssm.data.mnist import SequentialMnist
from fractal_ssm.data.pathfinder import generate
from fractal_ssm.data.pathfinder.dataset import Pathfinder
from fractal_ssm.data.pathfinder.generate import Generator
from fractal_ssm.data.pathfinder.parameters import parameters
from fractal_ssm.data.pathfinder.writer import write_release
from fractal_ssm.data.speech import SpeechCommands
from fractal_ssm.data.status import status
from fractal_ssm.errors import UsageError

N = 12
TREES = {"n_train": 5, "n_val": 2, "n_test": 2}


@pytest.fixture
def release(tmp_path):
    """Write a miniature Pathfinder release and return the folder of its images."""
    return write_release(tmp_path, Generator(parameters(32)), "hard", N, 1)


def states(data_dir: Path, task: str) -> list[str]:
    return [entry.state for entry in status(data_dir) if entry.task == task]


def png(width: int, height: int) -> bytes:
    """A file of some hundred bytes that claims to hold this many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


NO_IMAGES = {"text": b"not an image", "bomb": png(60_000, 60_000), "large": png(12_000, 12_000)}


@pytest.mark.parametrize("content", NO_IMAGES)
@pytest.mark.parametrize("place", [0, 3])
def test_an_image_that_is_none(tmp_path, release, content, place):
    (release / f"imgs/0/sample_{place}.png").write_bytes(NO_IMAGES[content])
    with pytest.raises(UsageError, match=f"sample_{place}.png"):
        Pathfinder(tmp_path, source="release", n=N).prepare()
    assert states(tmp_path, "pathfinder") == ["found"]


def test_files_that_operating_systems_leave_behind(tmp_path, release):
    for name in ("imgs/Thumbs.db", "imgs/.DS_Store", "imgs/0/._sample_0.png", "metadata/.DS_Store"):
        (release / name).write_bytes(b"x")
    data = Pathfinder(tmp_path, source="release", n=N)
    data.prepare()
    assert sum(data.describe()["counts"].values()) == N


def test_a_file_where_a_folder_should_be_and_the_other_way_round(tmp_path, release, make_cifar):
    (release / "metadata/7.npy").mkdir()
    with pytest.raises(UsageError, match="cannot be read .Is a directory: .*7.npy"):
        Pathfinder(tmp_path, source="release", n=N).prepare()
    shutil.rmtree(release / "imgs")
    (release / "imgs").write_text("")
    assert states(tmp_path, "pathfinder") == ["not made yet"]
    batch = make_cifar(tmp_path / "cifar") / "data_batch_1"
    batch.unlink()
    batch.mkdir()
    with pytest.raises(UsageError, match="cannot be read .Is a directory: .*data_batch_1"):
        Cifar(tmp_path, n_train=20, n_test=4).prepare()


def test_names_in_other_alphabets_and_links(tmp_path, release):
    strange = tmp_path / "дані ü %41 {x}"
    (strange / "lra_release").mkdir(parents=True)
    (strange / "lra_release" / "pathfinder32").symlink_to(release.parent)
    (strange / "loop").symlink_to(strange)
    (strange / "broken").symlink_to(tmp_path / "nowhere")
    (strange / "itself").symlink_to("itself")
    data = Pathfinder(strange, source="release", n=N)
    data.prepare()
    assert data.describe()["path"] == str(release)
    assert data.split("train")[0][0].shape == (1024, 1)
    assert states(strange, "pathfinder") == ["found", "prepared"]


@pytest.mark.parametrize("blocked", ["", "cache"])
def test_a_file_where_the_data_folder_should_be(tmp_path, blocked):
    data_dir = tmp_path / "data"
    if blocked:
        data_dir.mkdir()
    (data_dir / blocked).write_text("dear")
    with pytest.raises(UsageError, match=r"cannot be written\W.*Set data_dir to a folder that you may write"):
        ListOps(data_dir, **TREES).prepare()
    assert (data_dir / blocked).read_text() == "dear"


def failing(number: int):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_disk(tmp_path, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(np, "save", failing(errno.ENOSPC))
        with pytest.raises(UsageError, match="No space left on device.*Free some space.*Nothing half-made is left"):
            ListOps(tmp_path, **TREES).prepare()
    assert not [path for path in (tmp_path / "cache/listops").iterdir() if path.is_dir()]
    ListOps(tmp_path, **TREES).prepare()


def test_a_disk_that_is_full_in_the_middle_of_drawing(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "SHARD", 4)
    write, written = generate._write, []

    def write_until_full(*arguments):
        if len(written) == 4:
            failing(errno.ENOSPC)()
        written.append(arguments)
        write(*arguments)

    monkeypatch.setattr(generate, "available_cores", lambda: 1)
    with monkeypatch.context() as full:
        full.setattr(generate, "_write", write_until_full)
        with pytest.raises(UsageError, match="What was made so far is kept, and the next start continues from it"):
            Pathfinder(tmp_path, n=N).prepare()
    assert not list(tmp_path.glob("cache/pathfinder/[!.]*"))
    (record,) = tmp_path.glob("cache/pathfinder/.*partial/shards.json")
    assert list(json.loads(record.read_text())["drawn"]) == ["0", "4"]
    data = Pathfinder(tmp_path, n=N)
    data.prepare()
    assert np.array_equal(data.cache.array("labels"), Generator(parameters(32)).draw(0, N).labels)


def test_a_read_only_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", failing(errno.EROFS))
    with pytest.raises(UsageError, match="Read-only file system.*Set data_dir to a folder that you may write"):
        ListOps(tmp_path, **TREES).prepare()


def test_a_prepared_cache_needs_no_writing(tmp_path, monkeypatch):
    ListOps(tmp_path, **TREES).prepare()
    monkeypatch.setattr(Path, "mkdir", failing(errno.EROFS))
    monkeypatch.setattr("fractal_ssm.data.cache._lock", failing(errno.EROFS))
    ListOps(tmp_path, **TREES).prepare()


DAMAGES = {
    "record empty": ("shards.json", lambda path: path.write_text("")),
    "record of another kind": ("shards.json", lambda path: path.write_text("[1]")),
    "pixels cut": ("pixels.npy", lambda path: os.truncate(path, 300)),
    "pixels empty": ("pixels.npy", lambda path: os.truncate(path, 0)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_half_drawn_images_that_a_crash_of_the_machine_has_damaged(tmp_path, damage):
    name, do = DAMAGES[damage]
    generate.fill(tmp_path, Generator(parameters(32)), N, workers=1)
    do(tmp_path / name)
    with pytest.raises(UsageError, match=f"{name} cannot be read .*Nothing was changed. Delete the folder"):
        generate.fill(tmp_path, Generator(parameters(32)), N, workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.npy", "pixels.npy", "shards.json"]


def test_half_read_documents_that_a_crash_of_the_machine_has_damaged(tmp_path, make_aan, monkeypatch):
    make_aan(tmp_path / "aan")
    wanted = {"n_train": 12, "n_val": 6, "n_test": 6}

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(aan, "assemble", interrupted)
        Aan(tmp_path, **wanted).prepare()
    (piece,) = tmp_path.glob("cache/aan/.*partial/train-00000.npz")
    piece.write_bytes(piece.read_bytes()[:100])
    with pytest.raises(UsageError, match="train-00000.npz, a piece .* is damaged .*Delete the folder"):
        Aan(tmp_path, **wanted).prepare()
    shutil.rmtree(piece.parent)
    Aan(tmp_path, **wanted).prepare()


@pytest.mark.parametrize("line", ["a b c", "", "1.5 2", "9" * 30, "0 " * 1023 + "256", "0 " * 1023 + "-1"])
def test_grey_values_that_are_none(tmp_path, line):
    folder = tmp_path / "lra/cifar10"
    for part, ending in (("input", "src"), ("label", "label")):
        (folder / part).mkdir(parents=True)
        for split in ("train", "valid", "test"):
            (folder / part / f"{split}.{ending}").write_text((line if part == "input" else "1") + "\n")
    with pytest.raises(UsageError, match="train.src, line 1: expected 1024 whole numbers in 0..255"):
        Cifar(tmp_path, source="mega").prepare()


def test_packed_digits_with_a_damaged_stream(tmp_path, make_mnist):
    path = make_mnist(tmp_path / "mnist", packed=True) / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    # The first case has a block of an invalid kind right after the header.
    for damaged in (content[:10] + b"\xff" + content[11:], content[:-20], content + b"xxxx"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="is damaged .*copy or download it again"):
            SequentialMnist(tmp_path, n_train=30, n_test=8).prepare()


def test_a_list_of_clips_that_is_none(tmp_path, make_speech):
    folder = make_speech(tmp_path / "sc")
    (folder / "testing_list.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="testing_list.txt is not a list of clips"):
        SpeechCommands(tmp_path).prepare()


def test_an_empty_tsv_is_not_offered_as_it_is(tmp_path, make_aan):
    (make_aan(tmp_path / "aan") / "new_aan_pairs.train.tsv").write_bytes(b"")
    with pytest.raises(UsageError, match="holds 0 samples .*download it again.$"):
        Aan(tmp_path).prepare()


@pytest.mark.parametrize("change", [{"files": {}}, {"files": "x"}, {"facts": None}, {"parameters": []}, {"format": 2}])
def test_a_manifest_of_somebody_else_s(tmp_path, change):
    data = ListOps(tmp_path, **TREES)
    data.prepare()
    path = data.cache.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (data.cache.folder / "labels.npy").unlink()
    assert states(tmp_path, "listops") == ["not made yet", "damaged"]
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pathfinder", "--n", "4", "--preview", "{}/nowhere/x.png"], "No such file or directory: {}/nowhere/x.png"),
        (["pathfinder", "--n", "4", "--preview", "{}/x"], "give it a name like x.png"),
        (["pathfinder", "--n", "4", "--out", "{}/file"], "Not a directory: {}/file"),
        (["listops", "--n", "50", "--out", "{}/file"], "--out={}/file cannot be written: it is a file"),
        (["extract", "{}/file", "--to", "{}/file/x"], "{0}/file cannot be unpacked to {0}/file/x: [Errno 20] Not a"),
        (["extract", "{}/none.gz", "--to", "{}/x"], "cannot be unpacked to {}/x: [Errno 2] No such file"),
    ],
)
def test_places_that_a_command_cannot_write_or_read(tmp_path, capsys, arguments, told):
    (tmp_path / "file").write_text("dear")
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    assert told.format(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "dear"
