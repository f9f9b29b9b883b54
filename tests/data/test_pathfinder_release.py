"""Pathfinder in the layout of the release, the faults of real copies, and the command."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fractal_ssm.data.pathfinder import Pathfinder, cli, release, writer
from fractal_ssm.data.pathfinder.generate import Generator
from fractal_ssm.data.pathfinder.parameters import parameters
from fractal_ssm.errors import UsageError

N = 120


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(parameters(32, "hard"))


@pytest.fixture
def make_release(generator, monkeypatch):
    """Write the first images in the release's layout, in groups of 10: 0 to 11, whose order as text is different."""
    monkeypatch.setattr(writer, "GROUP", 10)

    def make(folder: Path, n: int = N) -> Path:
        return writer.write_release(folder, generator, "hard", n, workers=2)

    return make


def load(data_dir: Path, **options) -> Pathfinder:
    data = Pathfinder(data_dir, **{"source": "release", "n": N, **options})
    data.prepare()
    return data


@pytest.mark.parametrize(
    "place", ["", "lra_release", "lra_release/lra_release", "raw_datasets/lra_release/lra_release", "pathfinder"]
)
def test_what_is_written_in_the_layout_of_the_release_is_read_back(tmp_path, generator, make_release, place):
    folder = make_release(tmp_path / place)
    assert folder == tmp_path / place / "pathfinder32" / "curv_contour_length_14"
    data = load(tmp_path)
    drawn = generator.draw(0, N)
    assert np.array_equal(data.cache.array("pixels")[:, :, 0], drawn.images.reshape(N, -1))
    assert np.array_equal(data.cache.array("labels"), drawn.labels)
    facts = data.describe()
    assert (facts["source"], facts["left_out"], facts["path"]) == ("release", 0, str(folder))


def test_a_row_of_the_table_is_that_of_the_release(tmp_path, make_release):
    folder = make_release(tmp_path, 10)
    first = (folder / "metadata" / "0.npy").read_text().splitlines()[0].split(" ")
    assert first[:3] == ["imgs/0", "sample_0.png", "0"]
    assert first[3] in ("0", "1")
    assert first[4:] == ["1.0", "14", "4.666666666666667", "2", "0.5", "1", "1"]


def test_auto_prefers_the_release_and_says_so(tmp_path, make_release):
    make_release(tmp_path)
    assert load(tmp_path, source="auto").describe()["source"] == "release"
    assert load(tmp_path, source="auto", seed=1).describe()["source"] == "generated"


def test_renamed_folders_are_told_apart_by_their_images(tmp_path, make_release):
    make_release(tmp_path / "a", 10)
    wide = Generator(parameters(64, "easy"))
    writer.write_release(tmp_path / "b", wide, "easy", 10)
    easy = tmp_path / "b" / "pathfinder64"
    (easy / "curv_baseline").rename(easy / "curv_contour_length_14")
    easy.rename(tmp_path / "pathfinder32")
    (tmp_path / "a" / "pathfinder32").rename(tmp_path / "my copy")
    assert load(tmp_path, n=10).describe()["path"].startswith(str(tmp_path / "my copy"))
    assert load(tmp_path, n=10, resolution=64).describe()["path"].startswith(str(tmp_path / "pathfinder32"))


def test_the_inner_folder_of_the_archive_comes_first(tmp_path, make_release):
    make_release(tmp_path / "lra_release")
    inner = make_release(tmp_path / "lra_release" / "lra_release")
    assert load(tmp_path).describe()["path"] == str(inner)


def test_an_empty_image_is_left_out_and_logged(tmp_path, generator, make_release, caplog):
    folder = make_release(tmp_path / "lra_release")
    (tmp_path / "lra_release" / "pathfinder32").rename(tmp_path / "anything")
    empty = tmp_path / "anything" / folder.name / "imgs" / "3" / "sample_4.png"
    empty.write_bytes(b"")
    data = load(tmp_path)
    assert str(empty) in caplog.text
    assert data.describe()["left_out"] == 1
    assert np.array_equal(data.cache.array("labels"), np.delete(generator.draw(0, N).labels, 34))
    assert sum(data.describe()["counts"].values()) == N - 1


def test_tables_that_are_array_files_are_read(tmp_path, generator, make_release):
    folder = make_release(tmp_path)
    for table in (folder / "metadata").glob("*.npy"):
        rows = [line.split() for line in table.read_text().splitlines()]
        with open(table, "wb") as file:
            np.save(file, np.array(rows))
    assert np.array_equal(load(tmp_path).cache.array("labels"), generator.draw(0, N).labels)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "imgs/1/sample_0.png").unlink(), "named in the metadata, is missing"),
        (lambda folder: cut(folder / "imgs/1/sample_0.png"), "cannot be read"),
        (lambda folder: Image.new("L", (33, 32)).save(folder / "imgs/1/sample_0.png"), "33 x 32 pixels, expected 32"),
        (lambda folder: (folder / "metadata/readme.npy").write_text(""), "named by number"),
        (lambda folder: (folder / "metadata/1.npy").write_text("imgs/1 sample_0.png\n"), "damaged row"),
        (lambda folder: (folder / "metadata/1.npy").write_text("imgs/1 sample_0.png 0 7\n"), "a label 0 or 1"),
        (lambda folder: (folder / "metadata/1.npy").write_text("../.. sample_0.png 0 1\n"), "expected a file below"),
        (lambda folder: (folder / "metadata/1.npy").write_bytes(b"\xff\xfe\x00"), "neither text nor an array file"),
    ],
)
def test_a_damaged_release_is_refused(tmp_path, make_release, damage, message):
    damage(make_release(tmp_path))
    with pytest.raises(UsageError, match=message):
        load(tmp_path)
    assert not list(tmp_path.glob("cache/pathfinder/release-*"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def test_an_incomplete_copy_is_not_taken_for_the_release(tmp_path, make_release):
    make_release(tmp_path)
    with pytest.raises(UsageError, match="120 samples instead of the 200,000"):
        load(tmp_path, n=None)


def test_a_missing_release_shows_the_expected_tree(tmp_path):
    with pytest.raises(UsageError, match="curv_contour_length_14/"):
        load(tmp_path)


def test_writing_goes_on_where_it_stopped_and_grows(tmp_path, generator, make_release):
    folder = make_release(tmp_path, 35)
    (folder / "metadata" / "1.npy").unlink()
    (folder / "imgs" / "1" / "sample_3.png").unlink()
    kept = (folder / "imgs" / "0" / "sample_0.png").stat().st_mtime_ns
    make_release(tmp_path, 50)
    assert (folder / "imgs" / "0" / "sample_0.png").stat().st_mtime_ns == kept
    assert np.array_equal(load(tmp_path, n=50).cache.array("labels"), generator.draw(0, 50).labels)


def test_nothing_of_the_users_is_written_over(tmp_path, generator, make_release):
    folder = make_release(tmp_path / "a", 10)
    with pytest.raises(UsageError, match=r"another recipe: seed 0 \(wanted: 1\).*Name another folder"):
        writer.write_release(tmp_path / "a", Generator(generator.setting, 1), "hard", 10)
    (folder / "generator.json").unlink()
    with pytest.raises(UsageError, match="already holds files"):
        make_release(tmp_path / "a", 10)


def test_tables_are_sorted_as_numbers(tmp_path, make_release):
    rows, _ = release.read_tables(make_release(tmp_path))
    assert [row.file for row in rows[::10]] == [f"imgs/{group}/sample_0.png" for group in range(12)]


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    cli.run(parser.parse_args(arguments))


def test_the_command_prints_a_fixed_checksum(capsys):
    run("--size", "32", "--n", "100", "--seed", "0")
    printed = capsys.readouterr().out
    assert "images/s" in printed
    assert "sha256 3dfec6c29b68f921e05df3522bbbdb83e31df98316ab85f151bcab338bd20276" in printed


def test_the_command_saves_a_sheet_and_the_layout(tmp_path, capsys):
    written = ("--preview", f"{tmp_path}/sheet.png", "--out", str(tmp_path))
    run("--size", "64", "--n", "6", "--difficulty", "easy", *written)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (3 * 132 + 4, 2 * 146 + 4)
        assert np.asarray(sheet).max() == 255
    assert len(list((tmp_path / "pathfinder64/curv_baseline/imgs/0").glob("*.png"))) == 6
    assert str(tmp_path) in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("--n", "0"), ("--workers", "0"), ("--n", "1000", "--preview", "x.png")])
def test_the_command_refuses_what_makes_no_sense(arguments):
    with pytest.raises(UsageError):
        run(*arguments)
