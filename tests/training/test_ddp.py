"""Two processes over gloo: the gradient of the mean, and an accuracy that counts every sample once."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from datetime import timedelta

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
from fractal_ssm.training.tasks import IGNORED, Classification, Tally

TASK = Classification()
score = TASK.score


class Model(nn.Module):
    """An embedding, one layer of the registry, the mean over the valid positions, a head."""

    def __init__(self, layer: str):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(6, 16)
        self.layer = layers.build({"name": layer}, d_model=16, l_max=16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs, lengths):
        y, _ = self.layer(self.embedding(inputs), lengths=lengths)
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


# Samples of the batches that the two processes accumulate for one step; the first sample of process 1 is not counted.
SHARES = (([0, 1, 2, 3, 4], [5, 6]), ([7, 8, 9], [10, 11, 12, 13, 14, 15]))


def share(samples: ToySamples, indices: list[int]) -> Batch:
    batch = collate([samples[index] for index in indices])
    return batch._replace(targets=torch.where(torch.tensor(indices) == 7, IGNORED, batch.targets))


def accumulate(name: str, rank: int) -> dict[str, torch.Tensor]:
    """Gradients of a step over this process's two batches, exchanged with the second, as lightning does it."""
    model, mean = DistributedDataParallel(Model(name).double()), SampleMean(4)
    assert [len(group["params"]) for group in parameter_groups(model, OptimizerConfig())] == [
        len(group["params"]) for group in parameter_groups(model.module, OptimizerConfig())
    ]
    first, second = (share(ToySamples(16, 0), indices) for indices in SHARES[rank])
    mean.begin_group()
    for batch, waiting in ((first, model.no_sync()), (second, nullcontext())):
        with waiting:
            loss, sums = score(model(batch.inputs, batch.lengths), batch.targets)
            mean.add(int(sums[2:].sum()))
            (loss * mean.batch_weight).backward()
    mean.finish(model.parameters(), torch.device("cpu"))
    return {key: parameter.grad for key, parameter in model.module.named_parameters()}


def worker(rank: int, names: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    # As in a process of its own: here warnings are errors.
    warnings.simplefilter("default")
    # A file to meet at: a port that was free a moment ago may be somebody else's now.
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
    accumulated = accumulate(names[0], rank)
    if rank == 0:
        torch.save({"accumulated": accumulated, "gradients": found, "results": accuracies}, f"{folder}/found.pt")
    # Taking gloo's threads down hung now and then, after all work was done (seen in torch 2.13); the process is not
    # needed any more.
    os._exit(0)


@pytest.mark.parametrize("which", ["s5", pytest.param("all", marks=pytest.mark.slow)])
def test_two_processes(tmp_path, built_in_layers, which):
    names = built_in_layers if which == "all" else [which]
    # Forks, which need not import torch again.
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

    alone = evaluate(Model(names[0]), 0, 1, 21).result()
    assert alone["samples"] == 21
    for result in found["results"]:
        assert result["samples"] == 21 and result["accuracy"] == alone["accuracy"]
        assert result["loss"] == pytest.approx(alone["loss"], rel=1e-6)
