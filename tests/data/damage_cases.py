"""Miniature copies of the loaders' files by name, and random damage to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fractal_ssm.data.aan import Aan
from fractal_ssm.data.cifar import Cifar
from fractal_ssm.data.imdb import Imdb
from fractal_ssm.data.listops import ListOps
from fractal_ssm.data.listops.text import write_tsv
from fractal_ssm.data.mnist import SequentialMnist
from fractal_ssm.data.speech import SpeechCommands

TREE = (np.array([11, 1, 10, 3, 4, 14, 5, 14], dtype=np.uint8), 5)


def make_listops(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "val", "test"):
        write_tsv(folder / f"basic_{split}.tsv", [TREE] * 3)
    return folder


# name -> dataset, options for a miniature copy, one of its files.
LOADERS = {
    "listops": (ListOps, {"n_train": 3, "n_val": 3, "n_test": 3, "source": "release"}, "basic_train.tsv"),
    "aan": (Aan, {"n_train": 12, "n_val": 6, "n_test": 6}, "new_aan_pairs.train.tsv"),
    "cifar": (Cifar, {"n_train": 20, "n_test": 4}, "data_batch_1"),
    "imdb": (Imdb, {"n_train": 20, "n_test": 20}, "train/neg/0_2.txt"),
    "mnist": (SequentialMnist, {"n_train": 30, "n_test": 8, "source": "release"}, "train-images-idx3-ubyte"),
    "mnist labels": (SequentialMnist, {"n_train": 30, "n_test": 8, "source": "release"}, "train-labels-idx1-ubyte"),
    "mnist.gz": (SequentialMnist, {"n_train": 30, "n_test": 8, "source": "release"}, "train-images-idx3-ubyte.gz"),
    "sc": (SpeechCommands, {}, "yes/1.wav"),
    "sc list": (SpeechCommands, {}, "testing_list.txt"),
}


def make_mega(folder: Path) -> Path:
    """The Mega repository's form of the same trees."""
    (folder / "input").mkdir(parents=True)
    (folder / "label").mkdir()
    write_tsv(folder / "rows", [TREE] * 3)
    rows = [line.split("\t") for line in (folder / "rows").read_text().splitlines()[1:]]
    for stem in ("train", "valid", "test"):
        for part, ending, column in (("input", "src", 0), ("label", "label", 1)):
            (folder / part / f"{stem}.{ending}").write_text("".join(row[column] + "\n" for row in rows))
    return folder


# Bytes that have broken readers: ends of ranges, long rows of digits, separators, opcodes of pickles.
_WORDS = (
    *(b"\xff" * 4, b"\x00" * 8, b"\x7f\xff\xff\xff", b"\x80\x02]"),
    *(b"9" * 40, b"-1", b"1e999", b"\t", b"\r\n", b"(", b".."),
)


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The content of a file with a few bytes flipped, removed, inserted or doubled, or without its end."""
    damaged = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        # Readers decide on most files by their first bytes.
        reach = len(damaged) if rng.random() < 0.5 else min(len(damaged), 200)
        start = int(rng.integers(reach + 1))
        end = min(len(damaged), start + int(rng.integers(1, 40)))
        kind = rng.integers(5)
        if kind == 0 and start < len(damaged):
            damaged[start] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del damaged[start:]
        elif kind == 2:
            damaged[start:start] = _WORDS[rng.integers(len(_WORDS))]
        elif kind == 3:
            damaged[start:end] = rng.bytes(end - start)
        else:
            damaged[end:end] = damaged[start:end] * int(rng.integers(1, 20))
    return bytes(damaged)
