"""Accumulated batches of real targets and of tokens are one large batch: the mean over scored values."""

from __future__ import annotations

import pytest
import torch
from test_accumulation import OPTIONS, large_batches, train
from torch import nn

from fractal_ssm.data.base import Batch
from fractal_ssm.training.tasks import Classification, Regression, Task, values_a_sample

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*no `val_dataloader`")

NAN = float("nan")
LEVELS = [0.25, 0.5, 0.75]
# Shares of missing values; in one batch all values are missing, in another none.
MISSING = (0.3, 1.0, 0.0, 0.9, 0.5)


class Positions(nn.Module):
    """A linear map of every position to two values, or to `last` numbers each."""

    def __init__(self, last: tuple[int, ...] = ()):
        super().__init__()
        torch.manual_seed(0)
        self.last = last
        self.linear = nn.Linear(3, 2 * (last[0] if last else 1))

    def forward(self, inputs, lengths, dt_scale=1.0):
        raw = self.linear(inputs.to(self.linear.weight.dtype))
        if not self.last:
            return raw
        raw = raw.unflatten(-1, (2, *self.last))
        return torch.stack([raw[..., 0], raw[..., 1].exp()], -1) if self.last == (2,) else raw.sort(-1).values


def batches(sizes: tuple[int, ...], length: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    made = []
    for size, missing in zip(sizes, MISSING, strict=True):
        targets = draw(size, length, 2)
        targets[torch.rand(size, length, 2, generator=generator) < missing] = NAN
        made.append(Batch(draw(size, length, 3), targets, torch.full((size,), length)))
    return made


def tokens(data: list[Batch]) -> list[Batch]:
    """The same batches, where the class of a position is the sign of its first value."""
    first = [batch.targets[..., 0] for batch in data]
    classes = [torch.where(values.isnan(), -100, (values > 0).long()) for values in first]
    return [batch._replace(targets=found) for batch, found in zip(data, classes, strict=True)]


CASES: dict[str, tuple[Task, tuple[int, ...]]] = {
    "point": (Regression(2), ()),
    "huber": (Regression(2, loss="huber"), ()),
    "gaussian": (Regression(2, "gaussian"), (2,)),
    "quantiles": (Regression(2, "quantiles", quantiles=LEVELS), (3,)),
    "tokens": (Classification(perplexity=True), ()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("sizes", "accumulated"), [((8, 8, 8, 8, 8), 2), ((8, 3, 8, 5, 1), 5)])
def test_equal_to_one_large_batch(toy_config, tmp_path, name, sizes, accumulated):
    task, last = CASES[name]
    data = batches(sizes)
    data = tokens(data) if name == "tokens" else data
    options = (*OPTIONS, "trainer.gradient_clip_val=0.5")
    accumulating = toy_config(*options, f"trainer.accumulate_grad_batches={accumulated}")
    many = train(accumulating, tmp_path / "many", data, "adamw", model=Positions(last), task=task)
    large = large_batches(data, accumulated)
    one = train(toy_config(*options), tmp_path / "one", large, "adamw", model=Positions(last), task=task)
    start = Positions(last).double()
    for key, found in many.model.named_parameters():
        torch.testing.assert_close(found, one.model.get_parameter(key), rtol=1e-12, atol=1e-14)
        assert not torch.allclose(found, start.get_parameter(key), atol=1e-4)


def test_a_step_without_a_target_moves_nothing(toy_config, tmp_path):
    (batch,) = batches((4, 1, 1, 1, 1))[:1]
    nothing = batch._replace(targets=torch.full_like(batch.targets, NAN))
    module = train(toy_config(*OPTIONS), tmp_path, [nothing], model=Positions(), task=Regression(2))
    for key, found in module.model.named_parameters():
        assert torch.equal(found, Positions().double().get_parameter(key))


def test_how_many_values_a_full_batch_has():
    class Data:
        task, per_position, d_target, l_max = "regression", True, 2, 7

    assert values_a_sample(Data) == 14
    Data.per_position = False
    assert values_a_sample(Data) == 2
    Data.task, Data.d_target = "tokens", None
    assert values_a_sample(Data) == 7
    Data.task = "classification"
    assert values_a_sample(Data) == 1
