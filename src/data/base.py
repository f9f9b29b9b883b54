"""What the training loop knows of a dataset: three splits, a way to make a batch, and a record of their origin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import UsageError

SPLITS = ("train", "val", "test")
TASKS = ("classification", "retrieval")
# Target of a sample that is scored nowhere: it is in no loss, no gradient and no accuracy.
IGNORED = -100


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
    targets: (B,) int64 class indices, or IGNORED.
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
        """A batch of samples, right-padded with zeros to the longest of them.

        Raises:
            UsageError: a sample that is no pair (x, y), an x that is no array of numbers or unlike the others, a label
                that is not a whole number.
        """
        if isinstance(items, Gathered):
            inputs = torch.from_numpy(items.sequences)
            lengths = torch.full((len(inputs),), inputs.shape[1], dtype=torch.int64)
            inputs = inputs if inputs.is_floating_point() else inputs.long()
            return Batch(inputs, whole_labels(items.labels), lengths)
        if not all(isinstance(item, (tuple, list)) and len(item) == 2 for item in items):
            raise UsageError("a sample is not a pair. Return (x, y): a sequence and its label.")
        sequences = [_sequence(x) for x, _ in items]
        if len({(x.shape[1:], x.is_floating_point()) for x in sequences}) > 1:
            raise UsageError("the sequences differ in kind. Return all token ids (L,), or all real (L, d_input).")
        lengths = torch.tensor([len(x) for x in sequences], dtype=torch.int64)
        padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        inputs = padded.float() if padded.is_floating_point() else padded.long()
        return Batch(inputs, whole_labels([y for _, y in items]), lengths)


def whole_labels(labels: Sequence[Any] | np.ndarray) -> Tensor:
    """(B,) int64 of labels that are whole numbers, of whatever type.

    Raises:
        UsageError: 0.5, NaN, None, a text or a list as a label.
    """
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError):
        array = np.empty((), dtype=object)
    if array.ndim == 1 and array.dtype.kind in "iub":
        return torch.from_numpy(array.astype(np.int64))
    if array.ndim == 1 and array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.round(array))
        if whole.all():
            return torch.from_numpy(array.astype(np.int64))
        raise UsageError(f"a label is {array[~whole][0]}. Labels are whole numbers from 0 on.")
    wrong = next((y for y in labels if not isinstance(y, (int, float, np.number))), labels[0])
    raise UsageError(f"a label is {wrong!r}. Labels are whole numbers from 0 on.")


def _sequence(x: Any) -> Tensor:
    try:
        array = np.asarray(x)
    except (TypeError, ValueError):
        array = np.empty((), dtype=object)
    if array.dtype.kind not in "iufb" or array.ndim == 0:
        raise UsageError(
            f"a sequence is a {type(x).__name__} of shape {array.shape} and type {array.dtype}. Return an array of "
            f"numbers: token ids (L,), or real (L, d_input)."
        )
    return torch.as_tensor(array)
