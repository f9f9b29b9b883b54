"""Pathfinder on disk: the cache, interruptions, damage, and the dataset that reads it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from fractal_ssm.data.pathfinder import Pathfinder, PathX, generate
from fractal_ssm.data.pathfinder.generate import Generator, fill
from fractal_ssm.data.pathfinder.parameters import parameters
from fractal_ssm.data.splits import fingerprint, permutation
from fractal_ssm.errors import UsageError
from fractal_ssm.registry import datasets

N = 120


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(parameters(32, "hard"))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(generate, "SHARD", 10)


def content(folder: Path) -> list[np.ndarray]:
    return [np.load(folder / "pixels.npy"), np.load(folder / "labels.npy")]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


# ---------------------------------------------------------------- drawing into a cache


@pytest.mark.parametrize("workers", [1, 3])
def test_the_cache_does_not_depend_on_the_workers(tmp_path, generator, small_shards, workers):
    fill(tmp_path, generator, 95, workers)
    drawn = generator.draw(0, 95)
    assert same(content(tmp_path), [drawn.images.reshape(95, -1, 1), drawn.labels])


class Interrupted(Generator):
    """A generator that fails at one shard."""

    def draw(self, first, n):
        if first == 50:
            raise KeyboardInterrupt
        return super().draw(first, n)


class Counting(Generator):
    """A generator that records which shards are drawn."""

    def draw(self, first, n):
        self.firsts = [*getattr(self, "firsts", []), first] if n else []
        return super().draw(first, n)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, generator, small_shards):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, Interrupted(generator.setting), N, workers=1)
    counting = Counting(generator.setting)
    fill(tmp_path, counting, N, workers=1)
    assert 50 in counting.firsts
    assert 0 not in counting.firsts
    drawn = generator.draw(0, N)
    assert same(content(tmp_path), [drawn.images.reshape(N, -1, 1), drawn.labels])


def test_a_damaged_shard_is_not_taken(tmp_path, generator, small_shards, capsys):
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, Interrupted(generator.setting), N, workers=1)
    pixels = np.load(tmp_path / "pixels.npy", mmap_mode="r+")
    pixels[25, 500] ^= 255
    pixels.flush()
    counting = Counting(generator.setting)
    fill(tmp_path, counting, N, workers=1)
    assert "images from 20 on are damaged and are drawn again" in capsys.readouterr().err
    assert 20 in counting.firsts and 10 not in counting.firsts
    assert np.array_equal(content(tmp_path)[0][:, :, 0], generator.draw(0, N).images.reshape(N, -1))


def test_shards_of_another_recipe_are_refused(tmp_path, generator, small_shards):
    fill(tmp_path, generator, 20, workers=1)
    with pytest.raises(UsageError, match="names another recipe"):
        fill(tmp_path, Generator(generator.setting, seed=1), 20)
    with pytest.raises(UsageError, match="expected [(]30,"):
        fill(tmp_path, generator, 30)


def test_shards_of_an_older_law_are_refused_in_words(tmp_path, generator, small_shards):
    fill(tmp_path, generator, 20, workers=1)
    path = tmp_path / "shards.json"
    record = json.loads(path.read_text())
    record["recipe"] |= {"law": 1, "distractors": 3}
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"law 1 \(wanted: 2\), distractors 3 \(wanted: 10\).*Delete the folder"):
        fill(tmp_path, generator, 20)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_process_leaves_nothing_half_drawn(tmp_path):
    options = dict(resolution=128, n=2000)
    code = f"from fractal_ssm.data.pathfinder import Pathfinder; Pathfinder({str(tmp_path)!r}, **{options}).prepare()"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cache/pathfinder/.*/shards.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.glob("cache/pathfinder/[!.]*"))
    data = Pathfinder(tmp_path, **options)
    data.prepare()
    expected = Generator(parameters(128)).draw(0, 2000)
    assert np.array_equal(data.cache.array("pixels")[:, :, 0], expected.images.reshape(2000, -1))
    assert np.array_equal(data.cache.array("labels"), expected.labels)


# ---------------------------------------------------------------- the dataset


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Pathfinder:
    data = Pathfinder(tmp_path_factory.mktemp("data"), n=N)
    data.prepare()
    return data


def test_a_generated_set_describes_itself(generated):
    facts = generated.describe()
    assert facts["source"] == "generated"
    assert facts["counts"] == {"train": 96, "val": 12, "test": 12}
    assert facts["lra"] is False, "120 images are not the benchmark's 200,000"
    assert (facts["resolution"], facts["difficulty"], facts["recipe"]["seed"]) == (32, "hard", 0)
    assert json.dumps(facts)
    again = Pathfinder(generated.data_dir, n=N)
    again.prepare()
    assert again.describe() == facts


def test_splits_are_disjoint_and_whole(generated):
    parts = [generated.indices(name) for name in ("train", "val", "test")]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(N))
    sequential = Pathfinder(generated.data_dir, n=N, split="lra_sequential")
    sequential.prepare()
    assert np.array_equal(sequential.indices("val"), np.arange(96, 108))
    assert sequential.describe()["split_fingerprint"] != generated.describe()["split_fingerprint"]
    assert sequential.describe()["checksum"] == generated.describe()["checksum"]


class Labels:
    """A cache of 200,000 labels and nothing else."""

    def array(self, name):
        return np.zeros(200_000, np.uint8)


def test_the_whole_set_is_split_as_s4_and_s5_split_it(tmp_path):
    data = PathX(tmp_path)
    data._cache = Labels()
    train, val, test = (data.indices(name) for name in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (160_000, 20_000, 20_000)
    # The permutation that S4's and S5's loaders draw, as computed with torch.
    assert train[:8].tolist() == [37542, 143173, 127710, 58234, 152906, 31060, 95762, 141650]
    assert test[-3:].tolist() == [198416, 132078, 156497]
    assert np.array_equal(np.concatenate([train, val, test]), permutation(200_000))
    assert fingerprint(train, val, test) == "96f5d492db6a7d91"


def test_a_gathered_batch_equals_single_samples(generated):
    for options in ({}, {"center": False}, {"tokenize": True}):
        data = Pathfinder(generated.data_dir, n=N, **options)
        data.prepare()
        samples = data.split("val")
        gathered = data.collate(samples.__getitems__([3, 0, 7]))
        single = data.collate([samples[index] for index in (3, 0, 7)])
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(gathered, single, strict=True))
        assert gathered.inputs.shape == ((3, 1024) if options.get("tokenize") else (3, 1024, 1))
        assert gathered.lengths.tolist() == [1024] * 3
        assert gathered.targets.tolist() == data.cache.array("labels")[data.indices("val")[[3, 0, 7]]].tolist()


@pytest.mark.parametrize(
    ("options", "levels"), [({}, (-1.0, 1.0)), ({"center": False}, (0.0, 1.0)), ({"tokenize": True}, (0, 255))]
)
def test_black_and_white_and_the_order_of_pixels(generated, options, levels):
    data = Pathfinder(generated.data_dir, n=N, **options)
    data.prepare()
    samples = data.split("train")
    batch = data.collate(samples.__getitems__(range(96)))
    assert (batch.inputs.min(), batch.inputs.max()) == levels
    image = data.cache.array("pixels")[samples.indices[0]].reshape(32, 32)
    value = batch.inputs[0].reshape(-1)[1 * 32 + 0].item()
    assert value == pytest.approx(levels[0] + (levels[1] - levels[0]) * image[1, 0] / 255)
    assert (data.d_input, data.n_tokens) == ((None, 256) if options.get("tokenize") else (1, None))


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_do_not_change_the_batches(generated, workers):
    loader = DataLoader(generated.split("train"), batch_size=32, collate_fn=generated.collate, num_workers=workers)
    batches = list(loader)
    assert [len(batch.targets) for batch in batches] == [32, 32, 32]
    expected = generated.cache.array("labels")[generated.indices("train")]
    assert torch.cat([batch.targets for batch in batches]).tolist() == expected.tolist()


def test_a_damaged_cache_is_refused(tmp_path):
    Pathfinder(tmp_path, n=20).prepare()
    (path,) = tmp_path.glob("cache/pathfinder/generated-*/pixels.npy")
    with open(path, "r+b") as file:
        file.seek(5000)
        file.write(b"\xff\x00\xff")
    with pytest.raises(UsageError, match="does not match its checksum"):
        Pathfinder(tmp_path, n=20).prepare()


def older(manifest: Path, **recipe) -> None:
    """Change a cache to another recipe, including the name of its folder."""
    content = json.loads(manifest.read_text())
    content["parameters"]["recipe"] |= recipe
    manifest.write_text(json.dumps(content))
    manifest.parent.rename(manifest.parent.with_name("generated-0123456789"))


def test_a_cache_of_an_older_law_is_refused_in_words(tmp_path):
    Pathfinder(tmp_path, n=20).prepare()
    (manifest,) = tmp_path.glob("cache/pathfinder/generated-*/manifest.json")
    older(manifest, law=1, distractors=3)
    words = r"generated-0123456789 holds Pathfinder images of an older law: law 1 \(wanted: 2\), distractors 3 "
    with pytest.raises(UsageError, match=words + r"\(wanted: 10\).*Delete the folder, or move it"):
        Pathfinder(tmp_path, n=20).prepare()
    # Another set, another seed, or a manifest that describes no cache is not refused.
    Pathfinder(tmp_path, n=21).prepare()
    Pathfinder(tmp_path, n=20, seed=1).prepare()
    (tmp_path / "cache/pathfinder/generated-0123456789/manifest.json").write_text("{}")
    Pathfinder(tmp_path, n=20).prepare()


def test_a_cache_of_another_option_is_not_refused(tmp_path):
    Pathfinder(tmp_path, n=20, rounds="each_level").prepare()
    data = Pathfinder(tmp_path, n=20)
    data.prepare()
    assert data.describe()["recipe"]["distractors"] == 10


def test_pathx_is_pathfinder_at_128(tmp_path):
    data = datasets.build({"name": "pathx"}, data_dir=tmp_path)
    assert (data.resolution, data.l_max, data.name) == (128, 16_384, "pathx")
    assert datasets.build({"name": "pathfinder"}, data_dir=tmp_path).l_max == 1024
    assert set(datasets.options("pathx")) == set(datasets.options("pathfinder"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "stand-in"}, "Known: auto, generated, release"),
        ({"resolution": 100}, "Allowed: 32, 64, 128, 256"),
        ({"difficulty": "easiest"}, "Did you mean 'easy'"),
        ({"n": 5}, "n >= 10"),
        ({"split": "random"}, "Unknown split"),
        ({"source": "release", "seed": 3}, "dataset.seed belongs to generated images"),
        ({"source": "release", "contrast": "documented"}, "dataset.contrast belongs to generated images"),
        ({"source": "release", "rounds": "each_level"}, "dataset.rounds belongs to generated images"),
        ({"contrast": "calibrated"}, "Known: documented, released"),
        ({"seed": -1}, "got -1"),
    ],
)
def test_wrong_options_are_refused_when_building(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        Pathfinder(tmp_path, **options)
