"""The samples of a batch depend only on the seed and the epoch, for any number of processes and workers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from torch.utils.data import DataLoader
from toy_parts import ToySamples

from fractal_ssm import UsageError
from fractal_ssm.training.data import EvalBatches, EvalSamples, TrainBatches, sample_lengths
from fractal_ssm.training.seeding import derived_seed
from fractal_ssm.training.tasks import IGNORED


def epoch(batches: TrainBatches, number: int) -> list[list[int]]:
    batches.set_epoch(number)
    return list(batches)


def test_order_follows_seed_and_epoch():
    first, again = TrainBatches(50, 8, seed=1), TrainBatches(50, 8, seed=1)
    assert epoch(first, 3) == epoch(again, 3)
    assert epoch(first, 3) != epoch(again, 4)
    assert epoch(first, 3) != epoch(TrainBatches(50, 8, seed=2), 3)


@pytest.mark.parametrize("lengths", [None, np.random.default_rng(0).integers(1, 99, 50)])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_epoch_holds_each_sample_at_most_once(lengths, world):
    parts = [epoch(TrainBatches(50, 4, 0, lengths, rank, world), 1) for rank in range(world)]
    assert {len(part) for part in parts} == {50 // 4 // world}
    samples = [sample for part in parts for batch in part for sample in batch]
    assert all(len(batch) == 4 for part in parts for batch in part)
    assert len(set(samples)) == len(samples) == 50 // 4 // world * world * 4


def test_processes_share_the_batches_of_one():
    whole = epoch(TrainBatches(48, 4, 0), 2)
    parts = [epoch(TrainBatches(48, 4, 0, None, rank, 2), 2) for rank in (0, 1)]
    assert [batch for pair in zip(*parts, strict=True) for batch in pair] == whole


def test_bucketing_saves_padding_and_stays_random():
    lengths = np.random.default_rng(0).integers(1, 1000, 4000)

    def padding(batches: list[list[int]]) -> float:
        return sum(lengths[batch].max() * len(batch) - lengths[batch].sum() for batch in batches) / lengths.sum()

    bucketed = TrainBatches(4000, 16, 0, lengths)
    assert padding(epoch(bucketed, 0)) < 0.1 < padding(epoch(TrainBatches(4000, 16, 0), 0))
    # Long and short batches come mixed, and batches hold other samples in each epoch.
    means = [lengths[batch].mean() for batch in epoch(bucketed, 0)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.2
    assert {frozenset(batch) for batch in epoch(bucketed, 0)}.isdisjoint(map(frozenset, epoch(bucketed, 1)))


def test_going_on_inside_an_epoch():
    batches = TrainBatches(50, 8, 0)
    batches.start_at(2, 4)
    batches.set_epoch(2)
    assert list(batches) == epoch(TrainBatches(50, 8, 0), 2)[4:]
    assert epoch(batches, 3) == epoch(TrainBatches(50, 8, 0), 3)


def test_too_few_samples_for_a_batch():
    with pytest.raises(UsageError, match="7 samples, too few for one batch of 4 on each of 2"):
        TrainBatches(7, 4, 0, world=2)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 3, 21, 24])
@pytest.mark.parametrize("batch_size", [1, 4, 21])
def test_evaluation_counts_each_sample_once_in_equally_many_batches(n, world, batch_size):
    samples = EvalSamples(ToySamples(n, 0), range(n))
    loaders = [EvalBatches(n, batch_size, None, rank, world) for rank in range(world)]
    assert len({len(loader) for loader in loaders}) == 1
    seen = [index for loader in loaders for batch in loader for index in batch]
    counted = [index for index in seen if samples[index][1] != IGNORED]
    assert Counter(counted) == Counter(range(n))


def test_evaluation_in_order_of_length():
    lengths = np.array([5, 1, 4, 2, 3])
    assert list(EvalBatches(5, 2, lengths)) == [[1, 3], [4, 2], [0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(workers):
    loader = DataLoader(
        ToySamples(20, 0), batch_sampler=TrainBatches(20, 4, 0), num_workers=workers, collate_fn=lambda items: items
    )
    found = [[tuple(x) for x, _ in batch] for batch in loader]
    samples = ToySamples(20, 0)
    assert found == [[tuple(samples[i][0]) for i in batch] for batch in TrainBatches(20, 4, 0)]


def test_lengths_of_samples_and_pairs():
    assert sample_lengths([(np.zeros(3), 0), (np.zeros((5, 1)), 1)]).tolist() == [3, 5]
    assert sample_lengths([((np.zeros(3), np.zeros(7)), 0)]).tolist() == [7]


def test_lengths_that_are_known_are_not_walked_for():
    class Packed:
        lengths = np.array([4, 9])

    assert sample_lengths(Packed()).tolist() == [4, 9]


def test_derived_seeds_are_apart():
    paths = [("order", 0), ("order", 1), ("step", 0, 1, 0), ("step", 1, 0, 0), ("step", 0, 1, 1), ("weights",)]
    assert len({derived_seed(seed, *path) for seed in (0, 1) for path in paths}) == 2 * len(paths)
