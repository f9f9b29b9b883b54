"""A number that is not finite stops the run in its step and is named."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fractal_ssm.data.base import Batch
from fractal_ssm.train import run
from fractal_ssm.training.diagnosis import NotFinite, check_gradients, check_loss, first_bad_parameter


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs, lengths):
        return self.second(self.first(inputs))


BATCH = Batch(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))


def test_finite_numbers_pass():
    model = Model()
    model(BATCH.inputs, BATCH.lengths).sum().backward()
    check_loss(1.0, model, BATCH, 0)
    check_gradients(model, 0)
    assert first_bad_parameter(model) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_first_bad_parameter_is_named(value):
    model = Model()
    for layer in (model.first, model.second):
        layer.bias.data[1] = value
    with pytest.raises(NotFinite, match=r"at step 7. The first parameter that is not finite is first.bias"):
        check_loss(value, model, BATCH, 7)


def test_first_bad_output_is_named():
    model = Model()
    model.second.weight.data.fill_(3e38)
    model.first.bias.data.fill_(3e38)
    with pytest.raises(NotFinite, match=r"All parameters are finite; the first output that is not is that of second"):
        check_loss(float("nan"), model, BATCH, 0)
    with pytest.raises(NotFinite, match="it arises in the loss"):
        check_loss(float("nan"), Model(), BATCH, 0)


def test_before_the_first_step_no_rate_is_to_blame():
    with pytest.raises(NotFinite, match="No step was made yet, so no rate is to blame"):
        check_loss(float("nan"), Model(), BATCH, 0)
    with pytest.raises(NotFinite, match="Lower optimizer.lr"):
        check_loss(float("nan"), Model(), BATCH, 1)


def test_bad_gradient_is_named_before_the_update():
    model = Model()
    model(BATCH.inputs, BATCH.lengths).sum().backward()
    model.second.weight.grad[0, 0] = float("inf")
    with pytest.raises(NotFinite, match=r"The gradient of second.weight is not finite at step 2"):
        check_gradients(model, 2)


def test_a_run_stops_within_the_step_and_says_so_in_its_record(toy_config, tmp_path):
    # The layer fails in its tenth training call; there are two layers and eight steps an epoch.
    with pytest.raises(NotFinite, match=r"at step 9.*layer \(ToyDecay\)"):
        run(toy_config("model.layer.break_at=9", "training.max_epochs=2"), tmp_path)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "failed" and record["error"].startswith("NotFinite: The loss is nan at step 9")
    # The checkpoint is from the epoch before.
    stored = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert stored["global_step"] == 8 and all(torch.isfinite(value).all() for value in stored["state_dict"].values())


@pytest.mark.parametrize(("break_at", "step"), [(4, 1), (7, 2)])
def test_it_is_found_in_the_batch_of_a_group_in_which_it_arises(toy_config, tmp_path, break_at, step):
    """Eight batches an epoch in groups of 3, 3 and 2: the 5th is the second of its group, the 8th the last."""
    options = (f"model.layer.break_at={break_at}", "trainer.accumulate_grad_batches=3", "training.max_epochs=1")
    with pytest.raises(NotFinite, match=rf"The loss is nan at step {step}\. All parameters .*layer \(ToyDecay\)"):
        run(toy_config(*options), tmp_path)
