"""Batches gathered in one step equal batches made sample by sample, for every way to read them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from fractal_ssm.data.cifar import Cifar
from fractal_ssm.data.mnist import SequentialMnist, permutation
from fractal_ssm.data.speech import SpeechCommands

MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.247, 0.243, 0.261])


def cifar(path, make, **options):
    make["cifar"](path / "cifar")
    return Cifar(path, n_train=20, n_test=4, **options)


def mnist(path, make, **options):
    make["mnist"](path / "mnist")
    return SequentialMnist(path, n_train=30, n_test=8, **options)


def speech(path, make, **options):
    make["speech"](path / "sc")
    return SpeechCommands(path, **options)


def scaled_sounds(data, samples):
    mean, std = data.cache.array("scale")
    return ((data.cache.array("sounds")[samples] / 2.0**15 - mean) / (std + 1e-5))[..., None]


# Expected content of a batch, computed from the stored bytes in float64.
CASES = {
    "cifar": (cifar, {}, lambda data, s: (data.cache.array("pixels")[s] / 255 - 122.6 / 255) / (61 / 255)),
    "cifar-tokens": (cifar, {"tokenize": True}, lambda data, s: data.cache.array("pixels")[s][..., 0]),
    "cifar-colour": (cifar, {"grayscale": False}, lambda data, s: (data.cache.array("pixels")[s] / 255 - MEAN) / STD),
    "smnist": (mnist, {}, lambda data, s: data.cache.array("pixels")[s] / 255),
    "psmnist": (
        mnist,
        {"permute": "bit-reversal"},
        lambda data, s: data.cache.array("pixels")[s][:, permutation("bit-reversal")] / 255,
    ),
    "sc": (speech, {}, scaled_sounds),
    "sc-half-rate": (speech, {"test_stride": 2}, lambda data, s: scaled_sounds(data, s)[:, ::2]),
}


@pytest.fixture(params=CASES)
def case(request, tmp_path, make_cifar, make_mnist, make_speech):
    build, options, expected = CASES[request.param]
    data = build(tmp_path, {"cifar": make_cifar, "mnist": make_mnist, "speech": make_speech}, **options)
    data.prepare()
    return data, expected


def test_a_batch_holds_what_the_cache_holds(case):
    data, expected = case
    split, indices = data.split("test"), data.indices("test")
    batch = data.collate(split.__getitems__([1, 0]))
    np.testing.assert_allclose(batch.inputs.numpy(), expected(data, indices[[1, 0]]), rtol=2e-5, atol=2e-5)
    assert batch.inputs.dtype == (torch.float32 if data.n_tokens is None else torch.int64)
    assert batch.targets.tolist() == data.cache.array("labels")[indices[[1, 0]]].tolist()
    assert batch.lengths.tolist() == [batch.inputs.shape[1]] * 2


def test_a_gathered_batch_equals_collated_samples(case):
    data, _ = case
    split = data.split("test")
    gathered, single = data.collate(split.__getitems__([1, 0])), data.collate([split[1], split[0]])
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(gathered, single, strict=True))


def test_a_loader_gathers_also_through_subsets_and_pickling(case):
    data, _ = case
    split = pickle.loads(pickle.dumps(data.split("train")))
    asked = []
    gather = split.__class__.__getitems__

    class Counted(split.__class__):
        def __getitems__(self, indices):
            asked.append(list(indices))
            return gather(self, indices)

    split.__class__ = Counted
    (batch,) = DataLoader(Subset(split, [3, 1]), batch_size=2, collate_fn=data.collate)
    assert asked == [[3, 1]]
    assert batch.targets.tolist() == data.cache.array("labels")[data.indices("train")[[3, 1]]].tolist()
