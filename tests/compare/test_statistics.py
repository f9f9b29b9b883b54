"""Statistics of a comparison against textbook values, against their definition, and over many simulated comparisons."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fractal_ssm.compare.statistics import corrected, detectable, difference, holm, share_interval, summary

# Student's sleep data (1908): hours gained by ten patients under two drugs; t = 4.0621, p = 0.002833 (9 degrees).
SLEEP = [(0.7, 1.9), (-1.6, 0.8), (-0.2, 1.1), (-1.2, 0.1), (-0.1, -0.1)] + [
    (3.4, 4.4), (3.7, 5.5), (0.8, 1.6), (0.0, 4.6), (2.0, 3.4),
]  # fmt: skip


def test_the_sleep_data():
    found = difference(SLEEP)
    assert found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert found.low < found.bootstrap_low < found.mean < found.bootstrap_high


def test_permutations_are_all_sign_flips():
    d = [b - a for a, b in SLEEP[5:]]
    means = [abs(np.mean(np.multiply(d, signs))) for signs in itertools.product((-1, 1), repeat=5)]
    p = np.mean(np.array(means) >= abs(np.mean(d)) - 1e-12)
    assert difference(SLEEP[5:]).permutation_p == pytest.approx(p)
    assert difference(SLEEP[5:]).permutation_p >= 2 / 2**5


def test_one_pair_has_a_mean_and_claims_nothing():
    found = difference([(0.5, 0.7)])
    assert found.mean == pytest.approx(0.2)
    assert math.isnan(found.low) and math.isnan(found.p)
    assert not found.claimed


@pytest.mark.parametrize("step", [0.0, 0.1])
def test_equal_differences(step):
    found = difference([(0.1 * i, 0.1 * i + step) for i in range(5)])
    assert found.mean == pytest.approx(step)
    assert math.isnan(found.low) and math.isnan(found.detectable)
    assert found.p == found.corrected_p == (1.0 if step == 0.0 else 2 / 2**5) and not found.claimed


def test_equal_differences_of_two_small_test_splits_claim_nothing():
    """One of eight samples more, twice: a t test would call it certain."""
    assert not difference([(0.0, 0.125), (0.0, 0.125)]).claimed
    assert difference([(0.0, 0.125)] * 6).claimed


def test_a_score_that_is_no_number_claims_nothing():
    found = difference([(0.5, math.nan), (0.5, 0.6), (0.5, 0.7)])
    assert math.isnan(found.p) and not found.claimed


def test_holm():
    # Holm 1979: thresholds p_(k) <= 0.05 / (m - k + 1).
    assert holm({"a": 0.01, "b": 0.02, "c": 0.03, "d": math.nan}) == pytest.approx(
        {"a": 0.03, "b": 0.04, "c": 0.04, "d": math.nan}, nan_ok=True
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 7])
def test_the_detectable_difference_is_found_in_four_of_five_cases(alpha):
    random = np.random.default_rng(0)
    for n in (3, 5, 8):
        d = random.normal(detectable(1.0, n, alpha), 1.0, size=(20000, n))
        t, _ = stats.ttest_1samp(d, 0.0, axis=1)
        found = np.mean(np.abs(t) > stats.t.ppf(1 - alpha / 2, n - 1))
        assert found == pytest.approx(0.8, abs=0.012)


def test_what_would_have_been_seen_is_at_the_level_that_the_correction_asked():
    # An uncorrected level would say that a smaller difference than this one, which is not claimed, had been seen.
    pairs = {"a": (0.0, 0.1, 0.11, 0.3), "b": (0.1, 0.101, 0.102), "c": (0.0, 0.1), "d": (0.2,), "e": (0.1, 0.1)}
    before = {name: difference([(0.0, value) for value in values]) for name, values in pairs.items()}
    after = corrected(before)
    assert {name: found.corrected_p for name, found in after.items()} == pytest.approx(
        holm({name: found.p for name, found in before.items()}), nan_ok=True
    )
    # b has the smallest p of four; a the second of them.
    assert after["b"].detectable == detectable(before["b"].spread, 3, 0.05 / 4)
    assert after["a"].detectable == detectable(before["a"].spread, 4, 0.05 / 3) > before["a"].detectable
    assert math.isnan(after["d"].detectable) and math.isnan(after["e"].detectable)


def test_the_interval_covers_the_truth():
    random = np.random.default_rng(1)
    d = random.normal(1.0, 2.0, size=(400, 5))
    inside = 0
    for row in d:
        half = stats.t.ppf(0.975, 4) * row.std(ddof=1) / np.sqrt(5)
        inside += abs(row.mean() - 1.0) <= half
    assert inside / 400 == pytest.approx(0.95, abs=0.03)
    found = difference([(0.0, value) for value in d[0]])
    half = stats.t.ppf(0.975, 4) * d[0].std(ddof=1) / np.sqrt(5)
    assert (found.low, found.high) == pytest.approx((d[0].mean() - half, d[0].mean() + half))


def test_the_same_pairs_give_the_same_figures():
    assert difference(SLEEP) == difference(SLEEP)


def test_summary_and_share():
    assert summary([0.5]).n == 1 and math.isnan(summary([0.5]).deviation)
    assert share_interval(0, 5)[0] == 0.0
    assert share_interval(0, 5)[1] == pytest.approx(0.434, abs=1e-3)
