"""Miniature copies of the users' archives, each in the layout of the real one."""

from __future__ import annotations

import gzip
import pickle
import wave
from pathlib import Path

import numpy as np
import pytest
from damage_cases import LOADERS, make_listops


@pytest.fixture
def make_imdb():
    def make(folder: Path, n: int = 10) -> Path:
        """n reviews of each class in each part, whose ids sort differently as text and as numbers."""
        for part in ("train", "test"):
            for label, name in enumerate(("neg", "pos")):
                (folder / part / name).mkdir(parents=True)
                for index in range(n):
                    text = f"{part} {name} review {index} " + "ab" * (index + 1) + " caf\u00e9<br />"
                    (folder / part / name / f"{index}_{2 + 6 * label}.txt").write_bytes(text.encode())
        return folder

    return make


@pytest.fixture
def make_aan():
    def make(folder: Path, counts: tuple[int, int, int] = (12, 6, 6)) -> Path:
        folder.mkdir(parents=True)
        for split, n in zip(("train", "eval", "test"), counts, strict=True):
            rows = [f'{i % 2}.0\tP{i}\tQ{i}\tfirst "{i} {"x" * i}\tsecond {split} {"y" * (20 - i)}\n' for i in range(n)]
            (folder / f"new_aan_pairs.{split}.tsv").write_text("".join(rows), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def make_cifar():
    def make(folder: Path, n: int = 4) -> Path:
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
            batch = {
                b"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8),
                b"labels": rng.integers(0, 10, n).tolist(),
                b"batch_label": name.encode(),
                b"filenames": [b"x.png"] * n,
            }
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        return folder

    return make


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes() + array.tobytes()


@pytest.fixture
def make_mnist():
    def make(folder: Path, n: int = 30, n_test: int = 8, packed: bool = False) -> Path:
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for prefix, count in (("train", n), ("t10k", n_test)):
            images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
                content = idx(array)
                name = f"{prefix}-{kind}-ubyte"
                if packed:
                    name, content = name + ".gz", gzip.compress(content)
                (folder / name).write_bytes(content)
        return folder

    return make


def write_wav(path: Path, samples: np.ndarray, rate: int = 16_000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


@pytest.fixture
def make_speech():
    def make(folder: Path) -> Path:
        """Six clips of two words: the last of each word for test, the one before for validation; one clip is short."""
        rng = np.random.default_rng(0)
        lists = {"validation_list.txt": [], "testing_list.txt": []}
        for word in ("yes", "zero"):
            (folder / word).mkdir(parents=True)
            for index in range(6):
                length = 9_000 if index == 0 else 16_000
                write_wav(folder / word / f"{index}.wav", rng.integers(-3000, 3000, length))
            lists["validation_list.txt"].append(f"{word}/4.wav")
            lists["testing_list.txt"].append(f"{word}/5.wav")
        for name, lines in lists.items():
            (folder / name).write_text("\n".join(lines) + "\n")
        return folder

    return make


@pytest.fixture
def make(make_aan, make_cifar, make_imdb, make_mnist, make_speech):
    """Write a miniature copy of a loader's files below a folder and return the path of its file."""
    makers = {
        "listops": make_listops,
        "aan": make_aan,
        "cifar": make_cifar,
        "imdb": make_imdb,
        "sc": make_speech,
        "mnist": make_mnist,
        "mnist.gz": lambda folder: make_mnist(folder, packed=True),
        "sc list": make_speech,
        "mnist labels": make_mnist,
    }
    folders = {"imdb": "aclImdb", "mnist.gz": "mnist", "sc list": "sc", "mnist labels": "mnist"}
    return lambda name, root: makers[name](root / folders.get(name, name)) / LOADERS[name][2]
