"""Two thousand damaged files: each is read or refused with a clear message, in bounded time and memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage_cases import LOADERS, make_mega, mutated

from fractal_ssm.data.cache import MANIFEST
from fractal_ssm.data.listops import ListOps
from fractal_ssm.data.mnist import SequentialMnist
from fractal_ssm.data.pathfinder.dataset import Pathfinder
from fractal_ssm.data.pathfinder.generate import Generator
from fractal_ssm.data.pathfinder.parameters import parameters
from fractal_ssm.data.pathfinder.writer import write_release
from fractal_ssm.data.pickles import load_pickle
from fractal_ssm.data.safe import extract_tar
from fractal_ssm.errors import UsageError

FEW = {"n_train": 3, "n_val": 3, "n_test": 3}


def read_all(root: Path, kind: type, options: dict) -> None:
    """Prepare the dataset, then read a batch of each split and the facts."""
    data = kind(root, **options)
    data.prepare()
    for split in ("train", "val", "test"):
        samples = data.split(split)
        data.collate([samples[0], samples[len(samples) - 1]])
    data.describe()


def archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in ("a/b", "c" * 150, "ш"):
            member = tarfile.TarInfo(name)
            member.size = 700
            tar.addfile(member, io.BytesIO(bytes(700)))
    return buffer.getvalue()


def some_pickle(protocol: int) -> bytes:
    array = np.arange(12, dtype=">i4").reshape(3, 4)
    return pickle.dumps({b"data": array, "labels": [1, 2, 3], "more": (array.T, None, 0.5, b"x")}, protocol)


def made_cache(root: Path, make: Callable) -> Path:
    make("mnist", root)
    data = SequentialMnist(root, **LOADERS["mnist"][1])
    data.prepare()
    return data.cache.folder


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def release(root: Path, name: str, as_array: bool) -> Path:
    """A release whose table is text, as in the benchmark's, or an array, as the public generator writes it."""
    folder = write_release(root, Generator(parameters(32)), "hard", 12, 1)
    if as_array:
        table = folder / "metadata/0.npy"
        np.save(table, np.array([line.split() for line in table.read_text().splitlines()]))
    return folder / name


PATHFINDER = {"source": "release", "n": 12}
# name -> (number of cases, the file to damage, its reader).
KINDS: dict[str, tuple[int, Callable[[Path, Callable], Path], Callable[[Path, Path], object]]] = {
    **{
        name: (
            100,
            lambda root, make, name=name: make(name, root),
            lambda root, path, name=name: read_all(root, *LOADERS[name][:2]),
        )
        for name in LOADERS
    },
    **{
        f"mega {name}": (
            50,
            lambda root, make, name=name: make_mega(root / "lra/listops") / name,
            lambda root, path: read_all(root, ListOps, {**FEW, "source": "mega"}),
        )
        for name in ("input/train.src", "label/train.label")
    },
    **{
        f"pathfinder {name}{' array' if as_array else ''}": (
            50,
            lambda root, make, name=name, as_array=as_array: release(root, name, as_array),
            lambda root, path: read_all(root, Pathfinder, PATHFINDER),
        )
        for name, as_array in (("metadata/0.npy", False), ("metadata/0.npy", True), ("imgs/0/sample_0.png", False))
    },
    **{
        f"cache {name}": (
            75,
            lambda root, make, name=name: made_cache(root, make) / name,
            lambda root, path: read_all(root, SequentialMnist, LOADERS["mnist"][1]),
        )
        for name in (MANIFEST, "labels.npy")
    },
    **{
        f"pickle {protocol}": (
            100,
            lambda root, make, protocol=protocol: written(root / "p", some_pickle(protocol)),
            lambda root, path: load_pickle(path),
        )
        for protocol in (0, 2, 4)
    },
    **{
        f"tar{ending}": (
            200,
            lambda root, make, content=content: written(root / "x.tar", content),
            lambda root, path: extract_tar(path, root / "room" / "out", max_bytes=1 << 20),
        )
        for ending, content in ((".gz", archive()), ("", gzip.decompress(archive())))
    },
}


def test_there_are_two_thousand_cases():
    assert sum(n for n, _, _ in KINDS.values()) == 2000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_read_or_refused_in_words(tmp_path, make, kind):
    fuzz(tmp_path, make, kind, KINDS[kind][0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_damaged_files(tmp_path, make, kind):
    fuzz(tmp_path, make, kind, 2)


def rotten(path: Path, content: bytes, rng: np.random.Generator) -> None:
    """A copy of the file with other bytes in its header, but with the same size and time."""
    stat = path.stat()
    path.write_bytes((mutated(content[:128], rng) + bytes(128))[:128] + content[128:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("name", ["labels", "pixels"])
@pytest.mark.slow
def test_a_cache_whose_disk_rots(tmp_path, make, name):
    path = made_cache(tmp_path, make) / f"{name}.npy"
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        rotten(path, content, rng)
        try:
            read_all(tmp_path, SequentialMnist, LOADERS["mnist"][1])
        except UsageError:
            pass


def fuzz(root: Path, make: Callable, kind: str, n: int) -> None:
    _, prepare, read = KINDS[kind]
    path = prepare(root, make)
    content, outside = path.read_bytes(), sorted(root.parent.iterdir())
    kept = path.is_relative_to(root / "cache")
    rng = np.random.default_rng(list(kind.encode()))
    begun_with = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in range(n):
        path.write_bytes(mutated(content, rng))
        begun = time.process_time()
        try:
            read(root, path)
        except UsageError as error:
            assert 0 < len(str(error)) < 4000, case
        # A hundred times the usual time of a case.
        assert time.process_time() - begun < 30, case
        for made in ["room"] if kept else ["room", "cache"]:
            shutil.rmtree(root / made, ignore_errors=True)
    assert sorted(root.parent.iterdir()) == outside
    # In KiB on Linux.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun_with < 1 << 20
