"""Datasets with targets that are numbers, or a class at every position: batches, and clear messages for mistakes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from toy_series import ToySeries, ToyTags

from fractal_ssm import UsageError
from fractal_ssm.data.base import Batch, Gathered
from fractal_ssm.data.contract import check_batch, check_dataset, check_prepared, check_reference, check_split
from fractal_ssm.training.data import EvalSamples

NAN, INF = float("nan"), float("inf")


def series(base=ToySeries, options=None, **changes):
    """The toy dataset with these attributes or methods instead of its own."""
    return type("Changed", (base,), changes)(None, **(options or {}))


def returning(value):
    return lambda self, *arguments: value


@pytest.mark.parametrize(
    ("base", "after", "words"),
    [
        (ToySeries, {"n_classes": 3}, "has task='regression' and n_classes=3. Leave n_classes out and set d_target"),
        (ToySeries, {"d_target": None}, "d_target=None. Set a whole number from 1"),
        (ToySeries, {"d_target": 1.0}, "d_target=1.0. Set a whole number from 1"),
        (ToySeries, {"per_position": 1}, "per_position=1. Set True or False"),
        (ToySeries, {"causal": "yes"}, "causal='yes'. Set True or False"),
        (ToySeries, {"task": "regresion"}, "Did you mean 'regression'"),
        (ToyTags, {"n_classes": None}, "n_classes=None. Set a whole number from 2"),
        (ToyTags, {"d_target": 1}, "has task='tokens' and d_target=1, which is for regression"),
        (ToyTags, {"task": "classification"}, "task='classification' and per_position=True. A class at every position"),
    ],
)
def test_what_a_dataset_says_of_its_targets(base, after, words):
    data = series(base)
    for key, value in after.items():
        setattr(data, key, value)
    with pytest.raises(UsageError, match=re.escape(words)):
        check_dataset(data)


@pytest.mark.parametrize("data", [ToySeries(None), ToySeries(None, False, 2), ToyTags(None)])
def test_toys_keep_the_contract(data):
    check_prepared(data)
    for split in ("train", "val", "test"):
        check_split(data.split(split), data, split)


def test_targets_are_padded_with_what_is_not_scored():
    data = ToySeries(None, d_target=2)
    sample = lambda n: (np.ones((n, 1)), np.arange(2 * n).reshape(n, 2))
    batch = data.collate([sample(3), sample(1)])
    assert batch.targets.dtype == torch.float32 and batch.targets.shape == (2, 3, 2)
    assert batch.targets[0].tolist() == [[0, 1], [2, 3], [4, 5]] and bool(batch.targets[1, 1:].isnan().all())
    tags = ToyTags(None).collate([([1, 2, 1], [0.0, 1.0, 1.0]), ([2], [True])])
    assert tags.targets.tolist() == [[0, 1, 1], [1, -100, -100]] and tags.targets.dtype == torch.int64


@pytest.mark.parametrize("y", [2, 2.5, np.float64(2.5), [2.5], np.array([2.5]), torch.tensor([2.5]), NAN])
def test_one_number_a_sequence(y):
    batch = ToySeries(None, per_position=False).collate([(np.ones((4, 1)), y)])
    assert batch.targets.shape == (1, 1) and batch.targets.dtype == torch.float32
    np.testing.assert_equal(batch.targets.item(), float(np.reshape(y, ()) if np.ndim(y) == 0 else y[0]))


def test_a_last_axis_of_one_may_be_left_out():
    batch = ToySeries(None).collate([(np.ones((4, 1)), np.arange(4)), (np.ones((2, 1)), np.ones((2, 1)))])
    assert batch.targets[..., 0].nan_to_num(-1).tolist() == [[0, 1, 2, 3], [1, 1, -1, -1]]


def test_gathered_samples():
    inputs = np.ones((3, 4, 1), dtype=np.float32)
    for data, labels, shape in (
        (ToySeries(None), np.ones((3, 4)), (3, 4, 1)),
        (ToySeries(None, d_target=2), np.ones((3, 4, 2)), (3, 4, 2)),
        (ToySeries(None, per_position=False), np.ones(3), (3, 1)),
        (ToyTags(None), np.ones((3, 4), dtype=np.int64), (3, 4)),
    ):
        assert data.collate(Gathered(inputs, labels)).targets.shape == shape


@pytest.mark.parametrize(
    ("data", "y", "words"),
    [
        (ToySeries(None), np.ones(3), "the target of a sequence of 4 positions has shape (3,). Return (4, 1), with"),
        (ToySeries(None), np.ones((4, 2)), "has shape (4, 2). Return (4, 1)"),
        (ToySeries(None), 1.0, "has shape (). Return (4, 1)"),
        (ToySeries(None, d_target=2), np.ones(4), "has shape (4,). Return (4, 2)"),
        (ToySeries(None, d_target=2), np.ones((2, 4)), "has shape (2, 4). Return (4, 2)"),
        (ToySeries(None, per_position=False), np.ones(4), "the target of a sample has shape (4,). Return (1,)"),
        (ToySeries(None, per_position=False), None, "a target is a NoneType of shape () and type object. Return real"),
        (ToySeries(None, per_position=False), "1.5", "a target is a str of shape ()"),
        (ToySeries(None, per_position=False), 1 + 2j, "and type complex128. Return real numbers (1,)"),
        (ToySeries(None, per_position=False), True, "and type bool"),
        (ToySeries(None), [[1.0], [2.0, 3.0], [1.0], [1.0]], "a target is a list of shape () and type object"),
        (ToySeries(None), np.array([1.0, INF, 1.0, 1.0]), "a target is inf. Targets are finite in float32"),
        (ToySeries(None), np.array([1.0, -1e300, 1.0, 1.0]), "a target is -inf. Targets are finite in float32"),
        (ToyTags(None), [0, 1, 1], "the labels of a sequence of 4 positions have shape (3,). Return one class index"),
        (ToyTags(None), 1, "have shape ()"),
        (ToyTags(None), [0, 1, 0.5, 1], "a label is 0.5. Labels are whole numbers"),
        (ToyTags(None), [0, 1, NAN, 1], "a label is nan"),
        (ToyTags(None), [0, 1, 2, 1], "the label is 2. Labels are whole numbers in 0..1 (n_classes=2); -100 is not"),
        (ToyTags(None), [0, 1, -1, 1], "the label is -1."),
        (ToyTags(None), ["a"] * 4, "a target is a list of shape (4,) and type <U1. Return class indices (4,)"),
    ],
)  # fmt: skip
def test_targets_that_are_none_are_told_with_their_sample(data, y, words):
    good = data.split("val")
    x = np.ones(4, dtype=np.int64) if isinstance(data, ToyTags) else np.ones((4, 1), dtype=np.float32)
    samples = [*good[:11], (x, y)]
    with pytest.raises(UsageError) as caught:
        check_batch(_collated(data, samples[8:]), data, "val", samples)
    assert str(caught.value).startswith(f"Dataset {type(data).__name__}, val split, sample 11: ")
    assert words in str(caught.value)


def _collated(data, samples):
    try:
        return data.collate(samples)
    except UsageError as error:
        return error


def batch(**changes) -> Batch:
    lengths = torch.tensor([5, 4])
    targets = torch.zeros(2, 5, 1)
    targets[1, 4] = NAN
    return Batch(torch.zeros(2, 5, 1), targets, lengths)._replace(**changes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            batch(targets=torch.zeros(2, 5)),
            "targets (2, 5) in float32. They are real numbers (B, L, d_target) = (B, 5, 1)",
        ),
        (batch(targets=torch.zeros(2, 4, 1)), "targets (2, 4, 1) in float32"),
        (batch(targets=torch.zeros(2, 1)), "targets (2, 1) in float32"),
        (batch(targets=torch.zeros(2, 5, 1, dtype=torch.int64)), "targets (2, 5, 1) in int64"),
        (batch(targets=torch.zeros(0, 5, 1)), "B >= 1"),
        (
            batch(targets=torch.zeros(2, 5, 1)),
            "a padded position has a target. Set targets at and after `lengths` to NaN",
        ),
        (batch(targets=torch.full((3, 5, 1), NAN)), "inputs (2, 5, 1) in float32 for 3 targets"),
    ],
)
def test_batches_of_a_collate_of_ones_own(given, words):
    check_batch(batch(), ToySeries(None), "val")
    with pytest.raises(UsageError) as caught:
        check_batch(given, ToySeries(None), "val")
    assert words in str(caught.value)


def test_a_padded_class_is_refused():
    data, lengths = ToyTags(None), torch.tensor([3, 2])
    good = Batch(torch.ones(2, 3, dtype=torch.int64), torch.tensor([[0, 1, 1], [0, 1, -100]]), lengths)
    check_batch(good, data, "val")
    with pytest.raises(UsageError, match="a padded position has a target. Set targets at and after `lengths` to -100"):
        check_batch(good._replace(targets=torch.ones(2, 3, dtype=torch.int64)), data, "val")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "reference() returned nothing (None). Return a dict"),
        ([1.0], "returned a list of 1"),
        ({"optimal": NAN}, "gives 'optimal': nan. Give names as texts and finite numbers"),
        ({"optimal": "1"}, "gives 'optimal': '1'"),
        ({"optimal": True}, "gives 'optimal': True"),
        ({3: 1.0}, "gives 3: 1.0"),
    ],
)
def test_references_that_are_none(found, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_reference(series(reference=returning(found)))


def test_references():
    assert check_reference(ToySeries(None)) == {"optimal": 1.0}
    assert check_reference(series(reference=returning({"zero": np.float32(2), "one": 1}))) == {"zero": 2.0, "one": 1.0}


@pytest.mark.parametrize(
    ("data", "shape"), [(ToySeries(None, d_target=2), 2), (ToySeries(None, False, 2), 1), (ToyTags(None), 1)]
)
def test_the_filler_of_a_process_has_no_target(data, shape):
    samples = EvalSamples(data.split("val"), range(3), data.task)
    inputs, target = samples[3]
    assert np.array_equal(inputs, samples[0][0]) and np.shape(target) == np.shape(samples[0][1])
    assert np.ndim(target) == shape
    scored = data.collate([(inputs, target)]).targets
    assert bool((scored == -100).all() if data.task == "tokens" else scored.isnan().all())
