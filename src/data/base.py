"""What the training loop knows of a dataset: three splits, a way to make a batch, and a record of their origin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

SPLITS = ("train", "val", "test")


def label_shares(labels: np.ndarray, n_classes: int) -> list[float]:
    """Share of every class; the largest is the accuracy of always giving the commonest answer.

    >>> label_shares(np.array([0, 2, 2, 2]), 3)
    [0.25, 0.0, 0.75]
    """
    return (np.bincount(np.asarray(labels), minlength=n_classes) / max(len(labels), 1)).tolist()


class Batch(NamedTuple):
    """One batch.

    inputs: (B, L) int64 token ids, or (B, L, d_input) float32; retrieval stacks all first documents, then all second
        ones: (2B, L).
    targets: (B,) int64 class indices.
    lengths: (B,) int64 valid positions, or (2B,) for retrieval.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor


class Gathered(NamedTuple):
    """Samples of one length, taken at once: what `collate` may be given instead of a list of single samples.

    sequences: (B, L) integer token ids or (B, L, d_input) float32.
    labels: (B,) integers.
    """

    sequences: np.ndarray
    labels: np.ndarray


class SequenceData(ABC):
    """One benchmark task behind one interface; built by name through the dataset registry.

    The registry passes `data_dir` (a pathlib.Path, root of all data) at run time. Building one must be cheap and touch
    no file; `prepare` finds, generates or caches the data.

    Attributes:
        task: "classification", or "retrieval" for pairs of documents.
        n_tokens: vocabulary size, special tokens included, or None when the input is real. A vocabulary that is
            counted from the data is known after `prepare`; build the model then.
        d_input: channels of a real input, or None when the input is token ids.
        n_classes: number of classes.
        l_max: longest sequence that a batch can hold.
    """

    task: ClassVar[str] = "classification"
    n_tokens: int | None = None
    d_input: int | None = None
    n_classes: int
    l_max: int

    @abstractmethod
    def prepare(self) -> None:
        """Make the data ready on disk; idempotent, atomic, with a progress bar where it takes long.

        Raises:
            UsageError: files that the user must provide are missing (the message shows the expected tree) or a cache
                is damaged (the message says which file and what to do).
        """

    @abstractmethod
    def split(self, name: str) -> Dataset:
        """The samples of "train", "val" or "test" as pairs (x, y); x is what `collate` takes."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Facts for the run record; call after `prepare`.

        name: registered name;  source: "release", "generated" or "stand-in";  lra: whether a result on it may stand
        in a table of the benchmark;  path;  counts: split -> samples;  checksum: of the data;  split: convention by
        name;  split_fingerprint: identifies the members of the splits;  label_shares: split -> share of every class,
        so that max(label_shares["test"]) is the majority-class accuracy. A dataset may add facts of its own.
        """

    def dt_scale(self, name: str) -> float:
        """Factor on the model's step dt for batches of the split `name`: 2.0 where the split holds every second sample
        of sequences like those of training, 1.0 otherwise."""
        return 1.0

    def collate(self, items: Gathered | Sequence[tuple[Any, int]]) -> Batch:
        """A batch of samples, right-padded with zeros to the longest of them."""
        if isinstance(items, Gathered):
            inputs = torch.from_numpy(items.sequences)
            lengths = torch.full((len(inputs),), inputs.shape[1], dtype=torch.int64)
            inputs = inputs if inputs.is_floating_point() else inputs.long()
            return Batch(inputs, torch.from_numpy(items.labels.astype(np.int64)), lengths)
        sequences = [torch.as_tensor(np.asarray(x)) for x, _ in items]
        lengths = torch.tensor([len(x) for x in sequences], dtype=torch.int64)
        padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        inputs = padded.float() if padded.is_floating_point() else padded.long()
        return Batch(inputs, torch.tensor([y for _, y in items], dtype=torch.int64), lengths)
