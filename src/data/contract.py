"""Checks of a plug-in's dataset, whose errors name the fault before the model fails on it.

`SequenceData` documents the interface. All checks use tensors on the host: on a GPU a label out of range ends in a
device assertion, which names no cause and cannot be caught.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import UsageError, unknown
from .base import IGNORED, SPLITS, TASKS, Batch, SequenceData

_LARGEST = 2**31
# Samples of every split that are checked before the first step.
_FIRST = 8


def check_dataset(data: Any) -> None:
    """Check a dataset's attributes when it is built; a vocabulary may still be unknown.

    Raises:
        UsageError: names the class, the attribute, its value and what is allowed.
    """
    name = type(data).__name__
    if not isinstance(data, SequenceData):
        raise UsageError(f"The dataset {name} is not derived from fractal_ssm.data.base.SequenceData. Derive it.")
    if data.task not in TASKS:
        raise unknown(f"task of the dataset {name}", data.task, TASKS)
    _check_target(name, data)
    _check_count(name, "l_max", getattr(data, "l_max", None), 1)
    for key in ("n_tokens", "d_input"):
        if getattr(data, key) is not None:
            _check_count(name, key, getattr(data, key), 1)
    if data.n_tokens is not None and data.d_input is not None:
        raise UsageError(
            f"The dataset {name} has n_tokens={data.n_tokens} and d_input={data.d_input}. Set one of them: n_tokens "
            f"for token ids, d_input for real channels."
        )
    for split in SPLITS:
        scale = data.dt_scale(split)
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not 0 < scale < math.inf:
            raise UsageError(f"The dataset {name} has dt_scale('{split}') = {scale!r}. Give a positive finite number.")


def _check_target(name: str, data: SequenceData) -> None:
    """Check the attributes that describe the targets: a number of classes, or d_target and per_position."""
    for key in ("per_position", "causal"):
        if type(getattr(data, key)) is not bool:
            raise UsageError(f"The dataset {name} has {key}={getattr(data, key)!r}. Set True or False.")
    if data.task == "regression":
        if data.n_classes is not None:
            raise UsageError(
                f"The dataset {name} has task='regression' and n_classes={data.n_classes!r}. Leave n_classes out and "
                f"set d_target, or choose task='classification'."
            )
        _check_count(name, "d_target", data.d_target, 1)
        return
    _check_count(name, "n_classes", data.n_classes, 2)
    if data.d_target is not None:
        raise UsageError(
            f"The dataset {name} has task='{data.task}' and d_target={data.d_target!r}, which is for regression. Leave "
            f"it out, or choose task='regression'."
        )
    if data.per_position and data.task != "tokens":
        raise UsageError(
            f"The dataset {name} has task='{data.task}' and per_position=True. A class at every position is "
            f"task='tokens', a number at every position task='regression'."
        )


def check_prepared(data: SequenceData) -> None:
    """Check a prepared dataset: everything in `check_dataset`, its kind of input and its description.

    Raises:
        UsageError: names the class, what it gave and what is allowed.
    """
    check_dataset(data)
    name = type(data).__name__
    if data.n_tokens is None and data.d_input is None:
        raise UsageError(
            f"The dataset {name} has neither n_tokens nor d_input after prepare(). Set one of them: n_tokens for token "
            f"ids, d_input for real channels."
        )
    facts = data.describe()
    if not isinstance(facts, dict):
        raise UsageError(f"{name}.describe() returned {_kind(facts)}. Return a dict of facts for the run record.")
    try:
        # The run record is written in the same way: paths and dates become text.
        json.dumps(facts, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{name}.describe() returned what JSON cannot hold ({error}). Return a dict with texts as keys, and "
            f"numbers, texts, lists and dicts as values."
        ) from error


def check_reference(data: SequenceData) -> dict[str, float]:
    """The reference scores of a prepared dataset, checked.

    Raises:
        UsageError: they are not a dict of names and finite numbers.
    """
    found, name = data.reference(), type(data).__name__
    if not isinstance(found, dict):
        raise UsageError(f"{name}.reference() returned {_kind(found)}. Return a dict, name -> score on the test split.")
    for key, value in found.items():
        number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        if not isinstance(key, str) or not number:
            raise UsageError(
                f"{name}.reference() gives {key!r}: {value!r}. Give names as texts and finite numbers, as in "
                f"{{'optimal': 0.42}}."
            )
    return {key: float(value) for key, value in found.items()}


def check_split(samples: Any, data: SequenceData, split: str) -> None:
    """Check one split before training: its size, all labels if it has an array `labels`, and a first batch.

    Raises:
        UsageError: names the class, the split, the sample and what is allowed.
    """
    name = type(data).__name__
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
        raise UsageError(f"{name}.split('{split}') returned {_kind(samples)}. Return a Dataset with len() and [index].")
    if len(samples) == 0:
        raise UsageError(f"The {split} split of the dataset {name} is empty. Every split needs at least one sample.")
    # Other targets are checked batch by batch: reading all of them could take minutes.
    labels = getattr(samples, "labels", None) if data.task in ("classification", "retrieval") else None
    if isinstance(labels, (np.ndarray, Tensor)) and tuple(labels.shape) == (len(samples),):
        wrong = np.flatnonzero(~np.isin(np.asarray(labels), [*range(data.n_classes), IGNORED]))
        # Confirm on the sample itself: the attribute `labels` may hold something other than its labels.
        if len(wrong) and (fault := _fault(_collate(samples, data, [int(wrong[0])]), data)):
            raise _refusal(data, split, f"sample {wrong[0]}: {fault}")
    indices = list(range(min(_FIRST, len(samples))))
    check_batch(_collate(samples, data, indices), data, split, samples)


def check_batch(batch: Any, data: SequenceData, split: str, samples: Dataset | None = None) -> None:
    """Check what `collate` returned; about 50 us for 32 sequences of 4,096 tokens.

    Args:
        batch: tensors on the host.
        samples: of the split; if given, they are searched for the faulty one, and the error names its index.
    Raises:
        UsageError: names the class, the split, the sample and what is allowed.
    """
    fault = _fault(batch, data)
    if fault is None:
        return
    for index in range(len(samples) if samples is not None else 0):
        alone = _fault(_collate(samples, data, [index]), data)
        if alone is not None:
            raise _refusal(data, split, f"sample {index}: {alone}")
    raise _refusal(data, split, fault)


def _collate(samples: Any, data: SequenceData, indices: list[int]) -> Any:
    """The batch as a loader would make it, or the UsageError that `collate` raised."""
    try:
        gather = getattr(samples, "__getitems__", None)
        return data.collate(gather(indices) if gather else [samples[index] for index in indices])
    except UsageError as error:
        return error


def _fault(batch: Any, data: SequenceData) -> str | None:
    """Message that says what is wrong with a batch and what is allowed; None if it is valid."""
    if isinstance(batch, UsageError):
        return str(batch)
    if not isinstance(batch, Batch) or not all(isinstance(part, Tensor) for part in batch):
        return f"collate returned {_kind(batch)}. Return a Batch of three tensors: inputs, targets, lengths."
    inputs, targets, lengths = batch
    return (
        _fault_of_targets(inputs, targets, data)
        or _fault_of_inputs(inputs, len(targets), data)
        or _fault_of_values(inputs, lengths, data)
        or _fault_of_target_values(targets, lengths, data)
    )


def _fault_of_targets(inputs: Tensor, targets: Tensor, data: SequenceData) -> str | None:
    """Message for a wrong shape or dtype; allowed are (B,), (B, L), (B, d_target) or (B, L, d_target), by task."""
    length = inputs.shape[1] if inputs.dim() > 1 else 0
    if data.task == "regression":
        shape = ((length,) if data.per_position else ()) + (data.d_target,)
        fits, kind = targets.is_floating_point(), "real numbers"
        axes, dtype = ("(B, L, d_target)" if data.per_position else "(B, d_target)"), "float32"
    else:
        shape = (length,) if data.task == "tokens" else ()
        fits, kind = targets.dtype == torch.int64, "class indices"
        axes, dtype = ("(B, L)" if data.task == "tokens" else "(B,)"), "int64"
    if fits and targets.dim() == len(shape) + 1 and tuple(targets.shape[1:]) == shape and len(targets):
        return None
    wanted = f"{axes} = ({', '.join(map(str, ('B', *shape)))})" if shape else axes
    return f"collate returned targets {_tensor(targets)}. They are {kind} {wanted} in {dtype}, B >= 1."


def _fault_of_inputs(inputs: Tensor, count: int, data: SequenceData) -> str | None:
    rows = 2 * count if data.task == "retrieval" else count
    if data.d_input is None:
        fits = inputs.dim() == 2 and inputs.dtype in (torch.int64, torch.int32)
        wanted = f"token ids ({rows}, L) in int64"
    else:
        fits = inputs.dim() == 3 and inputs.shape[2] == data.d_input and inputs.is_floating_point()
        wanted = f"real numbers ({rows}, L, d_input={data.d_input}) in float32"
    if fits and inputs.shape[0] == rows and inputs.shape[1] >= 1:
        return None
    return f"collate returned inputs {_tensor(inputs)} for {count} targets. They are {wanted}, L >= 1."


def _fault_of_values(inputs: Tensor, lengths: Tensor, data: SequenceData) -> str | None:
    length = inputs.shape[1]
    if length > data.l_max:
        return f"a sequence has {length} positions. The longest is l_max={data.l_max}: cut it, or raise l_max."
    if lengths.shape != inputs.shape[:1] or lengths.dtype not in (torch.int64, torch.int32):
        return f"collate returned lengths {_tensor(lengths)}. They are ({len(inputs)},) in int64, one a sequence."
    wrong = (lengths < 1) | (lengths > length)
    if bool(wrong.any()):
        return f"the length of a sequence is {_first(lengths, wrong)}. In this batch it lies in 1..{length}."
    if data.d_input is None:
        low, high = (int(end) for end in inputs.aminmax())
        if low < 0 or high >= data.n_tokens:
            return (
                f"the token id is {low if low < 0 else high}. Ids lie in 0..{data.n_tokens - 1}: set n_tokens to one "
                f"more than the largest."
            )
    # The sum is a fast first test; it may overflow for finite numbers, so the second test decides.
    elif not bool(torch.isfinite(inputs.sum())) and not bool((finite := torch.isfinite(inputs)).all()):
        position = (~finite).nonzero()[0].tolist()
        return (
            f"the input is {inputs[tuple(position)].item()} at position {position[1]}, channel {position[2]}. "
            f"Repair the sample or leave it out; a NaN spreads to all weights in one step."
        )
    return None


def _fault_of_target_values(targets: Tensor, lengths: Tensor, data: SequenceData) -> str | None:
    if data.task == "regression":
        missing, what = targets.isnan(), "NaN"
        if bool(targets.isinf().any()):
            value = targets[targets.isinf()][0].item()
            return f"a target is {value}. Targets are finite in float32; a missing one is NaN, which is not scored."
    else:
        missing, what = targets == IGNORED, str(IGNORED)
        wrong = ((targets < 0) | (targets >= data.n_classes)) & ~missing
        if bool(wrong.any()):
            return f"the label is {_first(targets, wrong)}. {_labels(data)}"
    if data.task == "tokens" or data.per_position:
        padding = torch.arange(targets.shape[1]) >= lengths[:, None]
        scored = ~(missing.all(dim=2) if missing.dim() == 3 else missing)
        if bool((padding & scored).any()):
            return f"a padded position has a target. Set targets at and after `lengths` to {what}, which is not scored."
    return None


def _labels(data: SequenceData) -> str:
    return f"Labels are whole numbers in 0..{data.n_classes - 1} (n_classes={data.n_classes}); {IGNORED} is not scored."


def _refusal(data: SequenceData, split: str, fault: str) -> UsageError:
    return UsageError(f"Dataset {type(data).__name__}, {split} split, {fault}")


def _check_count(name: str, key: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= _LARGEST:
        raise UsageError(f"The dataset {name} has {key}={value!r}. Set a whole number from {least} to {_LARGEST}.")


def _first(values: Tensor, wrong: Tensor) -> int:
    return int(values[wrong][0])


def _tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"


def _kind(value: Any) -> str:
    if isinstance(value, (Sequence, Mapping)) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
