"""Two processes over gloo: the gradient of the mean, and metrics that count every target once."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy_parts import ToySamples

from fractal_ssm.config import OptimizerConfig
from fractal_ssm.data.base import Batch
from fractal_ssm.models.base import valid_mask
from fractal_ssm.registry import layers
from fractal_ssm.training.accumulation import SampleMean
from fractal_ssm.training.data import EvalBatches, EvalSamples, TrainBatches
from fractal_ssm.training.optim import parameter_groups
from fractal_ssm.training.tasks import IGNORED, Classification, Regression, Tally

TASK = Classification()
score = TASK.score


class Model(nn.Module):
    """An embedding, one layer of the registry, the mean over the valid positions (or none), a head."""

    def __init__(self, layer: str, pooled: bool = True):
        super().__init__()
        self.pooled = pooled
        torch.manual_seed(0)
        self.embedding = nn.Embedding(6, 16)
        self.layer = layers.build({"name": layer}, d_model=16, l_max=16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs, lengths):
        y, _ = self.layer(self.embedding(inputs), lengths=lengths)
        if not self.pooled:
            return self.head(y)
        mask = valid_mask(lengths, y.shape[1])[..., None]
        return self.head(torch.where(mask, y, 0).sum(1) / lengths[:, None])


def collate(items) -> Batch:
    lengths = torch.tensor([len(x) for x, _ in items])
    inputs = nn.utils.rnn.pad_sequence([torch.as_tensor(x) for x, _ in items], batch_first=True)
    return Batch(inputs, torch.tensor([y for _, y in items]), lengths)


def evaluate(model: nn.Module, rank: int, world: int, batch_size: int) -> Tally:
    samples = EvalSamples(ToySamples(21, 1), range(21))
    tally = Tally(TASK)
    with torch.no_grad():
        for batch in EvalBatches(21, batch_size, None, rank, world):
            inputs, targets, lengths = collate([samples[index] for index in batch])
            tally.add(score(model(inputs, lengths), targets)[1])
    return tally


# Samples of the batches that two processes accumulate for one step; the first sample of process 1 is not scored.
SHARES = (([0, 1, 2, 3, 4], [5, 6]), ([7, 8, 9], [10, 11, 12, 13, 14, 15]))


def share(samples: ToySamples, indices: list[int]) -> Batch:
    batch = collate([samples[index] for index in indices])
    return batch._replace(targets=torch.where(torch.tensor(indices) == 7, IGNORED, batch.targets))


class RealSamples(ToySamples):
    """Three values a position, many of them missing, and one sample in which all are missing."""

    def __getitem__(self, index: int):
        x, y = super().__getitem__(index)
        target = np.stack([x / 3.0, np.where(x == 4, np.nan, x - 5.0), np.full(len(x), float(y))], axis=-1)
        return x, np.full_like(target, np.nan) if index == 7 else target


def real_batch(samples, indices: list[int]) -> Batch:
    inputs, _, lengths = collate([(samples[index][0], 0) for index in indices])
    rows = [torch.as_tensor(samples[index][1]) for index in indices]
    return Batch(inputs, nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan")), lengths)


REAL = Regression(3)


def evaluate_real(model: nn.Module, rank: int, world: int, batch_size: int) -> Tally:
    samples, tally = EvalSamples(RealSamples(21, 1), range(21), "regression"), Tally(REAL)
    with torch.no_grad():
        for indices in EvalBatches(21, batch_size, None, rank, world):
            inputs, targets, lengths = real_batch(samples, indices)
            tally.add(REAL.score(model(inputs, lengths), targets)[1])
    return tally


def accumulate(name: str, rank: int, real: bool = False) -> dict[str, torch.Tensor]:
    """Gradients of a step over this process's two batches, reduced over processes at the second, as in lightning."""
    task = REAL if real else TASK
    model, mean = DistributedDataParallel(Model(name, pooled=not real).double()), SampleMean(4)
    assert [len(group["params"]) for group in parameter_groups(model, OptimizerConfig())] == [
        len(group["params"]) for group in parameter_groups(model.module, OptimizerConfig())
    ]
    if real:
        first, second = (real_batch(RealSamples(16, 0), indices) for indices in SHARES[rank])
    else:
        first, second = (share(ToySamples(16, 0), indices) for indices in SHARES[rank])
    mean.begin_group()
    for batch, waiting in ((first, model.no_sync()), (second, nullcontext())):
        with waiting:
            loss, sums = task.score(model(batch.inputs, batch.lengths), batch.targets)
            mean.add(int(task.count(sums)))
            (loss * mean.batch_weight).backward()
    mean.finish(model.parameters(), torch.device("cpu"))
    return {key: parameter.grad for key, parameter in model.module.named_parameters()}


def worker(rank: int, names: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    # As in an ordinary process; in the tests warnings are errors.
    warnings.simplefilter("default")
    # Processes meet at a file: a port that was free a moment ago may be taken by now.
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    found = {}
    samples = ToySamples(16, 0)
    for name in names:
        model = DistributedDataParallel(Model(name))
        (batch,) = TrainBatches(16, 8, 0, None, rank, 2)
        inputs, targets, lengths = collate([samples[index] for index in batch])
        score(model(inputs, lengths), targets)[0].backward()
        found[name] = {key: parameter.grad for key, parameter in model.module.named_parameters()}
    accuracies = [evaluate(Model(names[0]), rank, 2, size).result() for size in (1, 4, 21)]
    real = [evaluate_real(Model(names[0], pooled=False), rank, 2, size).result() for size in (1, 4, 21)]
    accumulated, accumulated_real = accumulate(names[0], rank), accumulate(names[0], rank, real=True)
    if rank == 0:
        found_real = {"real": real, "accumulated_real": accumulated_real}
        torch.save(
            found_real | {"accumulated": accumulated, "gradients": found, "results": accuracies}, f"{folder}/found.pt"
        )
    # Ending gloo's threads sometimes hung after all work was done (seen in torch 2.13); the process is not needed any
    # more.
    os._exit(0)


@pytest.mark.parametrize("which", ["s5", pytest.param("all", marks=pytest.mark.slow)])
def test_two_processes(tmp_path, built_in_layers, which):
    names = built_in_layers if which == "all" else [which]
    # Forked processes need not import torch again.
    mp.start_processes(worker, args=(names, str(tmp_path)), nprocs=2, start_method="fork")
    found = torch.load(tmp_path / "found.pt", weights_only=True)

    samples = ToySamples(16, 0)
    for name in names:
        gradients = []
        for batch in TrainBatches(16, 8, 0):
            model = Model(name)
            inputs, targets, lengths = collate([samples[index] for index in batch])
            score(model(inputs, lengths), targets)[0].backward()
            gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
        for key in gradients[0]:
            mean = (gradients[0][key] + gradients[1][key]) / 2
            assert torch.allclose(found["gradients"][name][key], mean, atol=1e-6, rtol=1e-5), (name, key)

    model, whole = Model(names[0]).double(), share(samples, list(range(16)))
    score(model(whole.inputs, whole.lengths), whole.targets)[0].backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found["accumulated"][key], parameter.grad, rtol=1e-9, atol=1e-12)

    model, whole = Model(names[0], pooled=False).double(), real_batch(RealSamples(16, 0), list(range(16)))
    REAL.score(model(whole.inputs, whole.lengths), whole.targets)[0].backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found["accumulated_real"][key], parameter.grad, rtol=1e-9, atol=1e-12)
    alone = evaluate_real(Model(names[0], pooled=False), 0, 1, 21).result()
    for result in found["real"]:
        assert result == pytest.approx(alone, rel=1e-6) and result["samples"] == alone["samples"] > 300

    alone = evaluate(Model(names[0]), 0, 1, 21).result()
    assert alone["samples"] == 21
    for result in found["results"]:
        assert result["samples"] == 21 and result["accuracy"] == alone["accuracy"]
        assert result["loss"] == pytest.approx(alone["loss"], rel=1e-6)
