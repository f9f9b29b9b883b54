"""The reported metrics are exact: every scored target counts once, with equal weight."""

from __future__ import annotations

import pytest
import torch

from fractal_ssm import UsageError
from fractal_ssm.data.base import IGNORED
from fractal_ssm.training.tasks import Classification, Tally

TASK = Classification()
score = TASK.score


def batch_with(correct: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets of a binary batch in which `correct` of `size` predictions are right."""
    targets = torch.arange(size) % 2
    predictions = torch.where(torch.arange(size) < correct, targets, 1 - targets)
    return torch.nn.functional.one_hot(predictions, 2).float(), targets


def test_small_last_batch_is_not_overweighted():
    tally = Tally(TASK)
    for correct, size in ((179, 256), (205, 256), (9, 10)):
        tally.add(score(*batch_with(correct, size))[1])
    result = tally.result()
    assert result["samples"] == 522
    assert result["accuracy"] == (179 + 205 + 9) / 522
    # Batches with accuracies of about 70, 80 and 90 %, as the counts round.
    sizes, accuracies = torch.tensor([256, 256, 10.0]), torch.tensor([0.7, 0.8, 0.9])
    weighted = Tally(TASK)
    for size, accuracy in zip(sizes, accuracies, strict=True):
        weighted.add(torch.tensor([size * accuracy, 0, size, 0], dtype=torch.float64))
    assert weighted.result()["accuracy"] == pytest.approx(0.752874, abs=5e-7)


@pytest.mark.parametrize("batch_size", [1, 4, 21])
def test_batch_size_changes_nothing(batch_size):
    torch.manual_seed(0)
    logits, targets = torch.randn(21, 3), torch.randint(0, 3, (21,))
    tally = Tally(TASK)
    for start in range(0, 21, batch_size):
        tally.add(score(logits[start : start + batch_size], targets[start : start + batch_size])[1])
    result = tally.result()
    assert result["accuracy"] == (logits.argmax(1) == targets).double().mean().item()
    assert result["accuracy"] * 21 == round(result["accuracy"] * 21)
    assert result["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, targets).item(), rel=1e-6)
    assert result["majority"] == torch.bincount(targets).max().item() / 21


def test_ignored_samples_are_scored_nowhere():
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 3), torch.tensor([0, 2, IGNORED, 1, IGNORED])
    kept = targets != IGNORED
    loss, sums = score(logits, targets)
    expected_loss, expected_sums = score(logits[kept], targets[kept])
    assert torch.equal(sums, expected_sums)
    assert torch.allclose(loss, expected_loss)
    loss, sums = score(logits, torch.full((5,), IGNORED))
    assert loss == 0 and sums.sum() == 0


def test_nothing_scored():
    tally = Tally(TASK)
    tally.add(torch.zeros(5, dtype=torch.float64))
    assert tally.result()["samples"] == 0
    with pytest.raises(RuntimeError, match="No batch"):
        Tally(TASK).result()


def test_stacked_documents_need_one_row_a_pair():
    with pytest.raises(UsageError, match="task='retrieval'"):
        score(torch.zeros(8, 2), torch.zeros(4, dtype=torch.int64))


def test_loss_has_the_gradient_of_the_mean():
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 0, IGNORED])
    score(logits, targets)[0].backward()
    again = logits.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(again[:5].float(), targets[:5]).backward()
    assert torch.allclose(logits.grad, again.grad, atol=1e-7)
