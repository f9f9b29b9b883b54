"""Accumulated batches are one large batch: the gradient of a step is the mean over its samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fractal_ssm import UsageError
from fractal_ssm.data.base import Batch
from fractal_ssm.train import run
from fractal_ssm.training.accumulation import SampleMean
from fractal_ssm.training.callbacks import StepLimit, TimeLimit
from fractal_ssm.training.module import Classifier
from fractal_ssm.training.optimizers import build_optimizer
from fractal_ssm.training.record import Metrics
from fractal_ssm.training.resume import load_checkpoint
from fractal_ssm.training.tasks import IGNORED, Classification, Task
from fractal_ssm.training.trainer import make_trainer, step_counts

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*no `val_dataloader`")


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4)

    def forward(self, inputs, lengths, dt_scale=1.0):
        return self.linear(inputs[:, 0].to(self.linear.weight.dtype))


def batches(*sizes: int, ignored: int = 0) -> list[Batch]:
    """Batches of these sizes, float64; the first `ignored` targets of each are not counted."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for size in sizes:
        targets = torch.randint(0, 4, (size,), generator=generator)
        targets[:ignored] = IGNORED
        inputs = torch.randn(size, 1, 3, generator=generator, dtype=torch.float64)
        made.append(Batch(inputs, targets, torch.ones(size, dtype=torch.int64)))
    return made


class Optimizing(Classifier):
    """The module with another optimiser, at lr 1 and without a schedule."""

    kind = "sgd"

    def configure_optimizers(self):
        if self.kind == "sgd":
            return torch.optim.SGD(self.parameters(), lr=1.0)
        return build_optimizer(self.groups, self._optimizer, fused=self.kind == "fused")


def train(config, folder, data: list[Batch], kind="sgd", callbacks=(), model=None, task: Task | None = None):
    steps, per_epoch = step_counts(config, len(data))
    module = Optimizing(
        model or Linear(), task or Classification(), config.optimizer, config.scheduler, 0, steps, per_epoch, {},
        {"val": 1.0}, batch_targets=config.training.batch_size,
    )  # fmt: skip
    module.kind = kind
    trainer = make_trainer(config, folder, callbacks)
    trainer.fit(module, DataLoader(data, batch_size=None))
    return module


def large_batches(data: list[Batch], accumulated: int) -> list[Batch]:
    groups = [data[start : start + accumulated] for start in range(0, len(data), accumulated)]
    return [Batch(*map(torch.cat, zip(*group, strict=True))) for group in groups]


OPTIONS = ("trainer.precision=64-true", "training.max_epochs=2", "training.batch_size=8")
CASES = {
    "equal": (batches(8, 8, 8, 8, 8, 8), 3),
    "partial group": (batches(8, 8, 8, 8, 8), 4),
    "one last batch": (batches(8, 8, 8, 8, 8), 2),
    "other sizes": (batches(8, 3, 8, 5, 1, 7), 3),
    "ignored": (batches(8, 3, 8, 5, 4, ignored=2), 3),
    "all of a batch ignored": (batches(2, 8, 5, 2, 2, ignored=2), 2),
}


ALL_OF_ONE = [("other sizes", kind, clip) for kind in ("sgd", "adamw", "fused") for clip in ("null", "0.05")]


@pytest.mark.parametrize(
    ("case", "kind", "clip"), [*ALL_OF_ONE, *((case, "adamw", "0.05") for case in CASES if case != "other sizes")]
)
def test_equal_to_one_large_batch(toy_config, tmp_path, case, kind, clip):
    data, accumulated = CASES[case]
    options = (*OPTIONS, f"trainer.gradient_clip_val={clip}")
    accumulating = toy_config(*options, f"trainer.accumulate_grad_batches={accumulated}")
    many = train(accumulating, tmp_path / "many", data, kind)
    one = train(toy_config(*options), tmp_path / "one", large_batches(data, accumulated), kind)
    assert many.trainer.global_step == one.trainer.global_step == 2 * -(-len(data) // accumulated)
    start = Linear().double()
    for name, found in many.model.named_parameters():
        expected = one.model.get_parameter(name)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(found, start.get_parameter(name), atol=1e-4)


class UnitGradient(Classification):
    """A task in which the loss of every sample is the output w, so that the gradient of every mean is 1."""

    def score(self, output, targets):
        sums = torch.zeros(6, dtype=torch.float64)
        sums[2] = len(targets)
        return output, sums


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, inputs, lengths, dt_scale=1.0):
        return self.w * 1.0


@pytest.mark.parametrize(
    ("accumulated", "options", "w"),
    [
        (4, (), -2.0),
        (1, (), -5.0),
        (5, (), -1.0),
        (2, ("training.limit_train_batches=3",), -2.0),
        (4, ("training.max_epochs=3",), -6.0),
        (4, ("training.max_epochs=3", "training.max_steps=3"), -3.0),
        (4, ("trainer.precision=bf16-mixed",), -2.0),
    ],
)
def test_every_step_is_worth_one(toy_config, tmp_path, accumulated, options, w):
    """5 batches, SGD, lr 1, gradient 1 a batch: 4 and 1 of them are two steps of 1."""
    config = toy_config(
        "training.max_epochs=1", "training.batch_size=8", f"trainer.accumulate_grad_batches={accumulated}", *options
    )
    limits = [] if config.training.max_steps is None else [StepLimit(config.training.max_steps)]
    module = train(config, tmp_path, batches(8, 8, 8, 8, 8), model=Weight(), callbacks=limits, task=UnitGradient())
    assert module.model.w.item() == w and module.trainer.global_step == -w


def test_callbacks_see_the_mean_of_the_batch(toy_config, tmp_path):
    from lightning.pytorch import Callback

    seen, data = [], batches(8, 3, 5)

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(outputs["loss"])

    options = (*OPTIONS, "training.max_epochs=1", "trainer.accumulate_grad_batches=3")
    train(toy_config(*options), tmp_path, data, callbacks=[Watch()])
    model = Linear().double()
    losses = [nn.functional.cross_entropy(model(batch.inputs, None), batch.targets) for batch in data]
    assert [loss.dtype for loss in seen] == [torch.float64] * 3
    assert [loss.item() for loss in seen] == pytest.approx([loss.item() for loss in losses], rel=1e-14)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("32-true", torch.float32), ("bf16-mixed", torch.float32)]
)
def test_precision_of_the_loss(toy_config, tmp_path, precision, dtype):
    seen = []

    class Watched(Classification):
        def score(self, output, targets):
            loss, sums = super().score(output, targets)
            seen.append(loss)
            return loss, sums

    config = toy_config(f"trainer.precision={precision}", "training.max_epochs=1")
    train(config, tmp_path, batches(8, 8), task=Watched())
    assert [loss.dtype for loss in seen] == [dtype, dtype]


@pytest.mark.parametrize("accumulated", [6, 1_000_000])
def test_more_than_an_epoch_has_is_refused(toy_config, accumulated):
    config = toy_config(f"trainer.accumulate_grad_batches={accumulated}")
    with pytest.raises(UsageError, match=f"accumulate_grad_batches={accumulated}, but an epoch has 5 batch.*most 5"):
        step_counts(config, 5)


def test_weights_of_a_full_batch_are_exactly_one():
    mean, parameter = SampleMean(7), nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 1 / 3)
    mean.begin_group()
    mean.add(7)
    mean.finish([parameter], torch.device("cpu"))
    assert mean.batch_weight == 1.0 and torch.equal(parameter.grad, torch.full((2,), 1 / 3))


def test_a_time_limit_ends_with_a_group(toy_config, tmp_path, monkeypatch):
    """8 batches an epoch in groups of 3, 3 and 2; the time ends in the 4th batch, and after a resume in the 7th."""
    options = ("model.dropout=0.2", "training.max_epochs=2", "trainer.accumulate_grad_batches=3")
    original = Classifier.training_step

    def run_until(folder, *more, over: int | None = None):
        def training_step(self, batch, batch_idx):
            if self.trainer.current_epoch == 0 and batch_idx + 1 == over:
                (limit,) = [part for part in self.trainer.callbacks if isinstance(part, TimeLimit)]
                limit._end = 0.0
            return original(self, batch, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(Classifier, "training_step", training_step)
            run(toy_config(*options, *more), folder)
        stored = load_checkpoint(folder / "checkpoints" / "last.ckpt")
        progress = stored["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["processed"]
        return stored["state_dict"], stored["global_step"], progress

    whole, steps, _ = run_until(tmp_path / "whole")
    limited, resume = "training.max_minutes=1e6", f"resume={tmp_path}/cut/checkpoints/last.ckpt"
    assert run_until(tmp_path / "cut", limited, over=4)[1:] == (2, 6)
    assert run_until(tmp_path / "cut", limited, resume, over=7)[1:] == (3, 8)
    found, found_steps, _ = run_until(tmp_path / "cut", resume)
    assert steps == found_steps == 6
    assert all(torch.equal(found[key], whole[key]) for key in whole)
    ends = [
        [row["loss"] for row in Metrics(folder / "metrics.csv").rows if row["split"] == "train"][-2:]
        for folder in (tmp_path / "whole", tmp_path / "cut")
    ]
    assert ends[0] == ends[1]
