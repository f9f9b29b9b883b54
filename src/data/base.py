"""Interface between a dataset and the training loop: three splits, a way to make a batch, and a record of origin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import UsageError
from .targets import IGNORED, missing_like, real_targets, token_labels, whole_labels

__all__ = [
    "IGNORED",
    "SPLITS",
    "TASKS",
    "Batch",
    "Gathered",
    "SequenceData",
    "label_shares",
    "missing_like",
    "whole_labels",
]

SPLITS = ("train", "val", "test")
TASKS = ("classification", "retrieval", "regression", "tokens")


def label_shares(labels: np.ndarray, n_classes: int) -> list[float]:
    """Share of every class; the largest is the accuracy of always predicting the commonest class.

    >>> label_shares(np.array([0, 2, 2, 2]), 3)
    [0.25, 0.0, 0.75]
    """
    return (np.bincount(np.asarray(labels), minlength=n_classes) / max(len(labels), 1)).tolist()


class Batch(NamedTuple):
    """One batch.

    inputs: (B, L) int64 token ids, or (B, L, d_input) float32; retrieval stacks all first documents, then all second
        ones: (2B, L).
    targets: by task,
        classification, retrieval: (B,) int64 class indices; IGNORED is not scored.
        tokens: (B, L) int64 class indices; IGNORED is not scored, and padded positions hold it.
        regression: (B, d_target) float32, or (B, L, d_target) for one target a position; NaN is a missing value, which
            is not scored, and padded positions hold it.
    lengths: (B,) int64 valid positions, or (2B,) for retrieval.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor


class Gathered(NamedTuple):
    """Samples of one length, gathered in one step; `collate` takes them in place of a list of single samples.

    sequences: (B, L) integer token ids or (B, L, d_input) float32.
    labels: (B,) integers, or the array of the targets that `Batch` describes.
    """

    sequences: np.ndarray
    labels: np.ndarray


class SequenceData(ABC):
    """One benchmark task behind one interface; built by name through the dataset registry.

    The registry passes `data_dir` (a pathlib.Path, root of all data) at run time. The constructor must be cheap and
    touch no file; `prepare` finds, generates or caches the data.

    Attributes:
        task: "classification" of a sequence; "retrieval" for pairs of documents; "regression" of real numbers, by
            squared error unless the configuration says otherwise; "tokens" for a class at every position: next-token
            prediction, tagging.
        n_tokens: vocabulary size, special tokens included, or None when the input is real. A vocabulary counted from
            the data is known only after `prepare`; build the model then.
        d_input: channels of a real input, or None when the input is token ids.
        n_classes: number of classes, None for regression.
        d_target: values of a target of regression, >= 1; None for other tasks.
        per_position: for regression, whether each position has a target (forecasting, denoising); if not, each
            sequence has one.
        causal: whether the output at a position may depend only on inputs up to that position, as in forecasting and
            next-token prediction; layers that look ahead are then refused. False where the whole sequence is known.
        l_max: longest sequence that a batch can hold.
    """

    task: ClassVar[str] = "classification"
    n_tokens: int | None = None
    d_input: int | None = None
    n_classes: int | None = None
    d_target: int | None = None
    per_position: bool = False
    causal: bool = False
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
        """The samples of "train", "val" or "test" as pairs (x, y), in the form that `collate` takes."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Facts for the run record; call after `prepare`.

        name: registered name;  source: "release", "generated" or "stand-in";  lra: whether a result on it may stand
        in a table of the benchmark;  path;  counts: split -> samples;  checksum: of the data;  split: convention by
        name;  split_fingerprint: identifies the members of the splits;  label_shares: split -> share of every class,
        so that max(label_shares["test"]) is the majority-class accuracy. A dataset may add facts of its own.
        """

    def dt_scale(self, name: str) -> float:
        """Factor on the model's step dt for batches of the split `name`, 1.0 by default; 2.0 if its sequences keep
        every second step of sequences like those of training."""
        return 1.0

    def reference(self) -> dict[str, float]:
        """Scores that need no training, for the record: name -> the task's main metric on the test split.

        The main metric is the accuracy, or the mean squared error for regression: {"optimal": 0.42, "AR(2)": 0.44}.
        Called once per run, after `prepare`.
        """
        return {}

    def collate(self, items: Gathered | Sequence[tuple[Any, Any]]) -> Batch:
        """Batch of the samples, right-padded to the longest: inputs with zeros, targets with the unscored value.

        A sample is a pair (x, y): x (L,) token ids or (L, d_input) real numbers; y a class index, for "tokens" (L,)
        class indices, for "regression" (d_target,) or (L, d_target) numbers (a plain number where d_target is 1).

        Raises:
            UsageError: a sample is not a pair (x, y), an x is not an array of numbers or differs in kind from the
                others, a label is not a whole number, or a target is not numeric or has another shape.
        """
        if isinstance(items, Gathered):
            inputs = torch.from_numpy(items.sequences)
            lengths = torch.full((len(inputs),), inputs.shape[1], dtype=torch.int64)
            inputs = inputs if inputs.is_floating_point() else inputs.long()
            return Batch(inputs, self._targets(items.labels, lengths), lengths)
        if not all(isinstance(item, (tuple, list)) and len(item) == 2 for item in items):
            raise UsageError("a sample is not a pair. Return (x, y): a sequence and its label.")
        sequences = [_sequence(x) for x, _ in items]
        if len({(x.shape[1:], x.is_floating_point()) for x in sequences}) > 1:
            raise UsageError("the sequences differ in kind. Return all token ids (L,), or all real (L, d_input).")
        lengths = torch.tensor([len(x) for x in sequences], dtype=torch.int64)
        padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        inputs = padded.float() if padded.is_floating_point() else padded.long()
        return Batch(inputs, self._targets([y for _, y in items], lengths), lengths)

    def _targets(self, values: Sequence[Any] | np.ndarray, lengths: Tensor) -> Tensor:
        if self.task == "tokens":
            return token_labels(values, lengths)
        if self.task == "regression":
            return real_targets(values, self.d_target or 1, lengths if self.per_position else None)
        return whole_labels(values)


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
