"""Numbering of tokens, and membership of splits by name."""

from __future__ import annotations

import numpy as np
import pytest

from fractal_ssm.data import splits
from fractal_ssm.data.vocabulary import CharacterCounter, Vocabulary, code_points
from fractal_ssm.errors import UsageError

# First and last entries of torch.randperm(n) with seed 42, on which the published seeded splits rest.
SEED_42 = {
    50_000: ([37542, 44491, 216, 43688, 41558, 32245, 27206, 10863], [40730, 25847, 33082]),
    60_000: ([37542, 43087, 2992, 25810, 39634, 6425, 55768, 11034], [28045, 16929, 22100]),
    200_000: ([37542, 143173, 127710, 58234, 152906, 31060, 95762, 141650], [198416, 132078, 156497]),
    25_000: ([12542, 12918, 13566, 15968, 18130, 17220, 10864, 19893], [2083, 18766, 5267]),
}


@pytest.mark.parametrize("n", SEED_42)
def test_the_permutation_of_the_published_splits(n):
    first, last = SEED_42[n]
    order = splits.permutation(n)
    assert order[:8].tolist() == first and order[-3:].tolist() == last


def test_chunks_are_disjoint_and_complete():
    parts = splits.chunks(50_000, (45_000, 5_000), "s4_seed42")
    assert [len(part) for part in parts] == [45_000, 5_000]
    assert parts[0][:2].tolist() == [37542, 44491] and parts[1][-1] == 33082
    assert len(np.union1d(*parts)) == 50_000
    first, second = splits.chunks(10, (8, 2), "lra_sequential")
    assert first.tolist() == list(range(8)) and second.tolist() == [8, 9]


def test_wrong_splits_are_refused():
    with pytest.raises(UsageError, match="Did you mean 's4_seed42'"):
        splits.chunks(10, (8, 2), "s4_seed24")
    with pytest.raises(UsageError, match="do not add up"):
        splits.chunks(10, (8, 1), "s4_seed42")
    with pytest.raises(UsageError, match="between 0 and 1"):
        splits.stratified_holdout(np.zeros(5), 1.0)


def test_stratified_holdout():
    labels = np.repeat([0, 1], [12_500, 12_500])
    kept, held = splits.stratified_holdout(labels, 0.1)
    assert len(kept) == 22_500 and np.bincount(labels[held]).tolist() == [1250, 1250]
    assert len(np.union1d(kept, held)) == 25_000
    again = splits.stratified_holdout(labels, 0.1)
    assert splits.fingerprint(*again) == splits.fingerprint(kept, held)
    assert splits.fingerprint(*splits.stratified_holdout(labels, 0.1, seed=1)) != splits.fingerprint(kept, held)


def test_fingerprint_depends_on_order_and_on_the_cut():
    a = np.arange(6)
    prints = {splits.fingerprint(*parts) for parts in [(a,), (a[::-1],), (a[:3], a[3:]), (a[:2], a[2:]), (a, a[:0])]}
    assert len(prints) == 5


def test_vocabulary_order_and_frequency_floor():
    vocabulary = Vocabulary.from_counts({"b": 4, "a": 4, "é": 20, "z": 1}, min_freq=2)
    assert vocabulary.tokens == ("<pad>", "<unk>", "<eos>", "é", "a", "b")
    assert [vocabulary.id(token) for token in ("<pad>", "é", "z", "b")] == [0, 3, 1, 5]
    assert vocabulary.dtype == np.uint8
    table = vocabulary.character_table()
    assert table[code_points("bzé\U0001f600", 10)].tolist() == [5, 1, 3, 1]


def test_large_vocabularies_need_two_bytes():
    assert Vocabulary(chr(200 + n) for n in range(253)).dtype == np.uint8
    assert Vocabulary(chr(200 + n) for n in range(254)).dtype == np.uint16


def test_repeated_tokens_are_refused():
    with pytest.raises(UsageError, match="twice"):
        Vocabulary(["a", "a"])


def test_characters_are_counted():
    counter = CharacterCounter()
    counter.add_counts(np.array([ord("a")]), np.array([2]))
    counter.add(code_points("abé\U0001f600aa", 5))
    assert counter.counts() == {"a": 4, "b": 1, "é": 1, "\U0001f600": 1}
    assert code_points("x\ud800", 5).tolist() == [120, 0xD800]
