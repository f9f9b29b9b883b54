"""Targets of a batch from those of its samples: class indices or real numbers, one per sample or per position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError

# Class index that is not scored: it enters no loss, no gradient and no metric. A missing real target is NaN.
IGNORED = -100


def whole_labels(labels: Sequence[Any] | np.ndarray) -> Tensor:
    """(B,) int64 tensor of labels that are whole numbers of any type.

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


def token_labels(labels: Sequence[Any] | np.ndarray, lengths: Tensor) -> Tensor:
    """(B, L) int64 tensor, one class per position, padded with IGNORED to the longest sample.

    Args:
        labels: for each sample (length,) whole numbers of any type.
        lengths: (B,) number of positions of each sample.
    Raises:
        UsageError: labels that are not whole numbers, or not one for each position.
    """
    rows = []
    for y, length in zip(labels, lengths.tolist(), strict=True):
        array = _numbers(y, "iubf", f"class indices ({length},), one a position")
        if array.shape != (length,):
            raise UsageError(
                f"the labels of a sequence of {length} positions have shape {array.shape}. Return one class index a "
                f"position, ({length},); {IGNORED} is not scored."
            )
        rows.append(whole_labels(array))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)


def real_targets(targets: Sequence[Any] | np.ndarray, d_target: int, lengths: Tensor | None = None) -> Tensor:
    """(B, d_target) float32 tensor, or (B, L, d_target) padded with NaN to the longest sample.

    Args:
        targets: for each sample (d_target,), or (length, d_target) with `lengths`; the last axis may be missing where
            d_target is 1. Integers or floats; NaN is a missing value.
        lengths: (B,) number of positions of each sample, for one target per position.
    Raises:
        UsageError: targets that are not real numbers, or of another shape.
    """
    rows = []
    for y, length in zip(targets, [None] * len(targets) if lengths is None else lengths.tolist(), strict=True):
        shape = (d_target,) if length is None else (length, d_target)
        array = _numbers(y, "iuf", f"real numbers {shape}")
        if d_target == 1 and array.shape == shape[:-1]:
            array = array[..., None]
        if array.shape != shape:
            where = "a sample" if length is None else f"a sequence of {length} positions"
            raise UsageError(
                f"the target of {where} has shape {array.shape}. Return {shape}, with d_target={d_target}"
                f"{'' if length is None else ' values a position'}; NaN is a missing value."
            )
        with np.errstate(over="ignore"):
            rows.append(torch.from_numpy(array.astype(np.float32)))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan"))


def missing_like(target: Any, task: str) -> Any:
    """A target of the same shape that is scored nowhere: IGNORED for classes, NaN for real numbers."""
    if task == "regression":
        return np.full(np.shape(target), np.nan, dtype=np.float32)
    return np.full(np.shape(target), IGNORED, dtype=np.int64) if task == "tokens" else IGNORED


def _numbers(values: Any, kinds: str, wanted: str) -> np.ndarray:
    """The values as an array whose dtype.kind is among `kinds`."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.empty((), dtype=object)
    if array.dtype.kind not in kinds:
        raise UsageError(
            f"a target is a {type(values).__name__} of shape {array.shape} and type {array.dtype}. Return {wanted}."
        )
    return array
