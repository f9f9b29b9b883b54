"""Faults of a plug-in dataset or layer give a clear message, before or in the step that would fail on them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from toy_parts import ToyCounts, ToyDecay, ToySamples

from fractal_ssm import UsageError
from fractal_ssm.data.base import IGNORED, Batch, Gathered, whole_labels
from fractal_ssm.data.contract import check_batch, check_dataset, check_prepared, check_split
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.models.streaming import ModelState
from fractal_ssm.registry import layers
from fractal_ssm.train import build_data, run

NAN = float("nan")


def dataset(**changes) -> ToyCounts:
    """The toy dataset with these attributes or methods instead of its own."""
    return type("Changed", (ToyCounts,), changes)(None, n_train=16, n_val=9, n_test=9)


def returning(value):
    return lambda self, *arguments: value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"n_classes": value}, f"n_classes={value!r}. Set a whole number from 2") for value in (None, 1, 2.0, True)),
        ({"n_classes": "3"}, "n_classes='3'. Set a whole number from 2"),
        ({"l_max": 0}, "l_max=0. Set a whole number from 1"),
        ({"l_max": 2**63}, "l_max=9223372036854775808. Set a whole"),
        ({"n_tokens": 0}, "n_tokens=0. Set a whole number from 1"),
        ({"d_input": 1}, "n_tokens=6 and d_input=1. Set one of them"),
        ({"task": "retreival"}, "Unknown task of the dataset Changed 'retreival'. Known: classification, regression,"),
        ({"dt_scale": returning(NAN)}, "dt_scale('train') = nan. Give a positive finite number."),
        ({"dt_scale": returning(None)}, "dt_scale('train') = None."),
    ],
)
def test_what_a_dataset_says_of_itself(changes, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_dataset(dataset(**changes))


def test_a_dataset_of_another_kind_is_refused(toy_config, monkeypatch):
    with pytest.raises(UsageError, match="The dataset object is not derived from fractal_ssm.data.base.SequenceData"):
        check_dataset(object())
    import toy_parts

    monkeypatch.setattr(toy_parts.ToyCounts, "n_classes", None)
    with pytest.raises(UsageError, match="n_classes=None"):
        build_data(toy_config())


CIRCLE: dict = {}
CIRCLE["self"] = CIRCLE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"describe": returning(None)}, "Changed.describe() returned nothing (None). Return a dict"),
        ({"describe": returning(["name"])}, "Changed.describe() returned a list of 1. Return a dict"),
        ({"describe": returning({(1, 2): 3})}, "Changed.describe() returned what JSON cannot hold (keys must be"),
        ({"describe": returning(CIRCLE)}, "Changed.describe() returned what JSON cannot hold (Circular"),
        ({"n_tokens": None}, "has neither n_tokens nor d_input after prepare()"),
    ],
)
def test_a_prepared_dataset(changes, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_prepared(dataset(**changes))
    check_prepared(dataset())
    check_prepared(dataset(describe=returning({"path": __import__("pathlib").Path("data")})))


def samples(x=None, y=None, at: int = 0, n: int = 12) -> ToySamples:
    """Toy samples in which sample `at` is changed."""
    made = ToySamples(n, 0)
    made.x[at] = made.x[at] if x is None else x
    made.y[at] = made.y[at] if y is None else y
    return made


class Bare(ToySamples):
    def __getitem__(self, index):
        return self.x[index]


WRONG_SAMPLES = [
    (samples(y=3), "train split, sample 0: the label is 3. Labels are whole numbers in 0..2"),
    (samples(y=-1, at=5), "train split, sample 5: the label is -1."),
    (samples(y=0.5, at=2), "train split, sample 2: a label is 0.5. Labels are whole numbers"),
    (samples(y=NAN, at=2), "train split, sample 2: a label is nan."),
    (samples(y="1", at=2), "train split, sample 2: a label is '1'."),
    (samples(y=[1, 0], at=2), "train split, sample 2: a label is [1, 0]."),
    (samples(x=np.array([3, 6, 4])), "sample 0: the token id is 6. Ids lie in 0..5: set n_tokens"),
    (samples(x=np.array([3, -2, 4])), "sample 0: the token id is -2."),
    (samples(x=np.full(17, 3)), "sample 0: a sequence has 17 positions. The longest is l_max=16"),
    (samples(x=np.array([], dtype=np.int64)), "sample 0: collate returned inputs (1, 0) in int64"),
    (samples(x=np.array([3.0, 4.0]), at=1), "sample 1: collate returned inputs (1, 2) in float32 for 1 targets"),
    (samples(x=np.array([[3, 4]]), at=1), "sample 1: collate returned inputs (1, 1, 2) in int64 for 1 targets"),
    (samples(x="345", at=1), "sample 1: a sequence is a str of shape () and type <U3"),
    (samples(x=[3, [4]], at=1), "sample 1: a sequence is a list of shape () and type object"),
    (samples(x=np.array([3j, 1]), at=1), "sample 1: a sequence is a ndarray of shape (2,) and type complex128"),
    (Bare(12, 0), "a sample is not a pair. Return (x, y)"),
    (ToySamples(0, 0), "The train split of the dataset Changed is empty."),
    (None, "Changed.split('train') returned nothing (None)."),
    (iter([]), "Changed.split('train') returned a list_iterator."),
]


def short(value) -> str:
    """The same in every process, as parallel runs need it."""
    return value[-30:] if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(("split", "words"), WRONG_SAMPLES, ids=short)
def test_samples(split, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_split(split, dataset(), "train")


def test_samples_that_are_right():
    check_split(samples(y=IGNORED), dataset(), "train")
    check_split(samples(y=2.0), dataset(), "train")
    check_split(samples(y=np.uint8(2)), dataset(), "train")
    check_split(samples(x=[3, 4, 5]), dataset(), "train")
    check_split(samples(y=torch.tensor(1)), dataset(), "train")


@pytest.mark.parametrize("value", [0.5, 3, -1])
def test_all_labels_where_there_is_an_array_of_them(value):
    """Sample 11 is not in the first batch; an attribute `labels` with other content is no mistake."""
    wrong = samples(y=value, at=11)
    check_split(wrong, dataset(), "val")
    wrong.labels = np.array(wrong.y, dtype=float)
    with pytest.raises(UsageError, match=rf"val split, sample 11: (a|the) label is {value}\. Labels are whole numbers"):
        check_split(wrong, dataset(), "val")
    named = samples()
    for labels in (np.full(12, 7), np.array(["a", "b", "c"]), "labels", np.array(["a"] * 12)):
        named.labels = labels
        check_split(named, dataset(), "val")


def batch(**changes) -> Batch:
    made = Batch(torch.full((2, 5), 3), torch.tensor([0, 2]), torch.tensor([5, 3]))
    return made._replace(**changes)


REAL = {"n_tokens": None, "d_input": 2}


@pytest.mark.parametrize(
    ("given", "changes", "words"),
    [
        (None, {}, "collate returned nothing (None). Return a Batch of three tensors"),
        (tuple(batch()), {}, "collate returned a tuple of 3. Return a Batch"),
        (batch(lengths=None), {}, "collate returned a Batch of 3. Return a Batch of three tensors"),
        (batch(targets=torch.tensor([0.0, 1.0])), {}, "targets (2,) in float32. They are class indices"),
        (batch(targets=torch.tensor([[0], [1]])), {}, "targets (2, 1) in int64."),
        (batch(targets=torch.tensor([0])), {}, "inputs (2, 5) in int64 for 1 targets. They are token ids (1, L)"),
        (batch(), {"task": "retrieval"}, "for 2 targets. They are token ids (4, L)"),
        (batch(lengths=torch.tensor([5, 6])), {}, "the length of a sequence is 6. In this batch it lies in 1..5."),
        (batch(lengths=torch.tensor([0, 5])), {}, "the length of a sequence is 0."),
        (batch(lengths=torch.tensor([5.0, 5.0])), {}, "collate returned lengths (2,) in float32. They are (2,)"),
        (batch(lengths=torch.tensor([5])), {}, "collate returned lengths (1,) in int64."),
        (batch(), REAL, "They are real numbers (2, L, d_input=2)"),
        (batch(inputs=torch.zeros(2, 5, 1)), REAL, "inputs (2, 5, 1) in float32"),
        (batch(inputs=torch.zeros(2, 5, 2).index_put((torch.tensor(1), torch.tensor(3)), torch.tensor(NAN))), REAL,
         "the input is nan at position 3, channel 0. Repair the sample"),
        (batch(inputs=torch.full((2, 5, 2), float("-inf"))), REAL, "the input is -inf at position 0, channel 0."),
    ],
)  # fmt: skip
def test_batches(given, changes, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_batch(given, dataset(**changes), "val")


def test_batches_that_are_right():
    check_batch(batch(), dataset(), "val")
    check_batch(batch(targets=torch.tensor([IGNORED, 1])), dataset(), "val")
    check_batch(batch(inputs=torch.zeros(2, 5, 2, dtype=torch.float64)), dataset(**REAL), "val")
    # The values are finite, but their sum overflows.
    check_batch(batch(inputs=torch.full((2, 5, 2), 3e38)), dataset(**REAL), "val")


def test_labels_of_gathered_samples():
    assert whole_labels(np.array([1.0, 2.0])).tolist() == [1, 2]
    with pytest.raises(UsageError, match="a label is 0.5"):
        dataset().collate(Gathered(np.zeros((2, 3), dtype=np.int64), np.array([0.5, 1.0])))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("split", "value", "words"),
    [("train", 3, "the label is 3"), ("train", 0.5, "a label is 0.5"), ("val", 3, "the label is 3")],
)
def test_a_run_is_stopped_at_a_later_batch(toy_config, tmp_path, monkeypatch, split, value, words, workers):
    """Sample 20 is not in the first batch; with loader workers the message is the same."""
    import toy_parts

    original = toy_parts.ToyCounts.split

    def changed(self, name):
        made = original(self, name)
        if name == split:
            made.y[20] = value
        return made

    monkeypatch.setattr(toy_parts.ToyCounts, "split", changed)
    config = toy_config("training.max_epochs=1", f"training.num_workers={workers}")
    with pytest.raises(UsageError) as caught:
        run(config, tmp_path)
    assert str(caught.value).startswith(f"Dataset ToyCounts, {split} split, sample 20: {words}")


@pytest.mark.parametrize("n", [{"n_val": 0}, {"n_test": 0}])
def test_an_empty_split_is_told_before_the_first_step(toy_config, tmp_path, n):
    ((key, value),) = n.items()
    with pytest.raises(UsageError, match=f"The {key[2:]} split of the dataset .*is empty"):
        run(toy_config(f"dataset.{key}={value}"), tmp_path)


def spoilt(output):
    class Spoilt(ToyDecay):
        def forward(self, u, state=None, lengths=None, dt_scale=1.0):
            return output(*super().forward(u, state, lengths, dt_scale))

        def step(self, u_t, state):
            y, state = super().forward(u_t[:, None], state)
            return output(y[:, 0], state)

    return Spoilt


OUTPUTS = {
    "one position": (lambda y, x: (y[..., :1, :], x), "returned y of shape (2, 1, 4), float32 on cpu, for an input"),
    "one feature": (lambda y, x: (y[..., :1], x), "returned y of shape (2, 5, 1), float32"),
    "no state": (lambda y, x: y, "returned a Tensor, for an input of shape (2, 5, 4)"),
    "three": (lambda y, x: (y, x, x), "returned a tuple, for an input"),
    "a list": (lambda y, x: [y, x], "returned a list"),
    "nothing": (lambda y, x: None, "returned a NoneType"),
    "numpy": (lambda y, x: (y.detach().numpy(), x), "returned a tuple"),
    "complex": (lambda y, x: (y + 0j, x), "complex64 on cpu"),
    "whole numbers": (lambda y, x: (y.long(), x), "int64 on cpu"),
    "another device": (lambda y, x: (y.to("meta"), x), "float32 on meta"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_what_a_layer_returns(monkeypatch, case):
    output, words = OUTPUTS[case]
    monkeypatch.setitem(layers._parts, "toy-decay", spoilt(output))
    model = SequenceModel({"name": "toy-decay"}, n_classes=2, n_tokens=5, d_model=4, n_layers=1)
    with pytest.raises(UsageError, match=re.escape(words)):
        model(torch.ones(2, 5, dtype=torch.int64))
    if case != "one position":
        state = ModelState(torch.zeros(2, dtype=torch.int64), (torch.zeros(2, 4),), torch.zeros(2, 4))
        with pytest.raises(UsageError, match="step returned .*Return a tuple"):
            model.step(torch.ones(2, dtype=torch.int64), state)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"causal": None}, "Changed.causal is None. Make it a property that returns True or False."),
        ({"causal": lambda self: True}, "Changed.causal is <bound method"),
        ({"causal": "no"}, "Changed.causal is 'no'."),
        ({"d_output": 0}, "Changed.d_output is 0. Return a whole number >= 1"),
        ({"d_output": 4.0}, "Changed.d_output is 4.0."),
        ({"roles": ["B"]}, "Changed.roles is ['B']. Set a dict"),
        ({"__init__": lambda self, d_model: ToyDecay.__init__(self, 3)}, "with d_model=4 and has d_model=3. Set self."),
    ],
)
def test_what_a_layer_says_of_itself(monkeypatch, changes, words):
    monkeypatch.setitem(layers._parts, "toy-decay", type("Changed", (ToyDecay,), changes))
    with pytest.raises(UsageError, match=re.escape(words)):
        SequenceModel({"name": "toy-decay"}, n_classes=2, n_tokens=5, d_model=4, n_layers=1)
