"""Statistics of a comparison over seeds: paired differences, their intervals, p values and detectable size.

Runs of two arms with the same seed share data, split and sample order, so they are compared in pairs: the functions
use the differences d_i = b_i - a_i of n pairs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import optimize, stats

LEVEL = 0.95
# Probability of claiming a true difference of the size `detectable`.
POWER = 0.8
_RESAMPLES = 9999
_NODES = 4096
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (with n - 1; nan for one run) of the n values of an arm."""

    mean: float
    deviation: float
    n: int


@dataclass(frozen=True)
class Difference:
    """A paired difference b - a over n seeds.

    Attributes:
        mean: mean of the n differences.
        low, high: 95 % interval by Student's t, n - 1 degrees of freedom: exact for normal differences, also with few
            pairs. nan for n < 2, and if all differences are equal.
        bootstrap_low, bootstrap_high: 95 % interval by the bias-corrected bootstrap over the pairs. With few pairs it
            is too short (for n = 5 it covers the true mean in about five of six cases), so no claim rests on it.
        p: two-sided p of the paired t test; if all differences are equal, `permutation_p`, as t is then undefined.
        permutation_p: two-sided p of the sign-flip test over all 2^n assignments; at least 2 / 2^n, so fewer than six
            pairs never reach 0.05.
        corrected_p: `p` after Holm's correction over the differences of one table.
        spread: standard deviation (n - 1) of the differences; nan for one pair, 0 if all are equal.
        detectable: smallest true difference that n pairs with this spread would show in four of five cases, by a
            two-sided test at the level that Holm's correction requires here (5 % without correction); nan without a
            spread.
    """

    mean: float
    n: int
    low: float = math.nan
    high: float = math.nan
    bootstrap_low: float = math.nan
    bootstrap_high: float = math.nan
    p: float = math.nan
    permutation_p: float = math.nan
    corrected_p: float = math.nan
    spread: float = math.nan
    detectable: float = math.nan

    @property
    def claimed(self) -> bool:
        """Whether the difference is significant at 5 % after the correction."""
        return self.corrected_p < 1 - LEVEL


def summary(values: Sequence[float]) -> Summary:
    """Mean and standard deviation.

    >>> summary([1.0, 2.0, 3.0])
    Summary(mean=2.0, deviation=1.0, n=3)
    """
    array = np.asarray(values, dtype=np.float64)
    return Summary(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else math.nan, len(array))


def difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    """The difference of n >= 1 pairs (a, b), not yet corrected for other comparisons (`corrected_p` is `p`)."""
    d = np.asarray([b - a for a, b in pairs], dtype=np.float64)
    n, mean = len(d), float(d.mean())
    if n < 2 or math.isnan(mean):
        return Difference(mean, n)
    # By a tolerance: the mean of equal numbers may differ from them in the last digit, which would give a spread.
    spread = float(d.std(ddof=1)) if np.ptp(d) > 1e-12 * np.abs(d).max() else 0.0
    if spread == 0.0:
        # t is undefined. Scores are counts of a test split, and with a small split differences may be equal by chance.
        p = _permutation_p(d)
        return Difference(mean, n, p=p, permutation_p=p, corrected_p=p, spread=0.0)
    error = spread / math.sqrt(n)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
    low, high = _bootstrap(d)
    seen = detectable(spread, n)
    return Difference(mean, n, mean - half, mean + half, low, high, p, _permutation_p(d), p, spread, seen)


def detectable(spread: float, n: int, alpha: float = 1 - LEVEL, power: float = POWER) -> float:
    """The true mean difference that a two-sided paired t test at the level `alpha` finds with probability `power`.

    Args:
        spread: standard deviation of the differences.
        n: pairs, >= 2.

    >>> round(detectable(1.0, 5), 2), round(detectable(1.0, 5, alpha=0.01), 2)
    (1.68, 2.63)
    """
    df = n - 1
    critical = float(stats.t.ppf(1 - alpha / 2, df))
    # Given the ratio of the estimated to the true deviation, the power is that of a normal variable and a fixed bound;
    # it is averaged over quantiles of the ratio. scipy's noncentral t fails far out, as needed for two or three pairs.
    estimates = np.sqrt(stats.chi2.ppf((np.arange(_NODES) + 0.5) / _NODES, df) / df)

    def missing(shift: float) -> float:
        found = stats.norm.sf(critical * estimates - shift) + stats.norm.cdf(-critical * estimates - shift)
        return float(found.mean()) - power

    return float(optimize.brentq(missing, 0.0, 10.0 * critical)) * spread / math.sqrt(n)


def corrected(differences: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """The differences of one table with `corrected_p` by `holm`, and `detectable` at the level of each.

    Holm's correction compares the k-th smallest of m values of p with the level 5 % / (m - k + 1).
    """
    p = holm({name: found.p for name, found in differences.items()})
    order = sorted((found.p, index) for index, found in enumerate(differences.values()) if not math.isnan(found.p))
    alphas = {index: (1 - LEVEL) / (len(order) - rank) for rank, (_, index) in enumerate(order)}
    result = {}
    for index, (name, found) in enumerate(differences.items()):
        seen = detectable(found.spread, found.n, alphas[index]) if found.spread > 0 else math.nan
        result[name] = replace(found, corrected_p=p[name], detectable=seen)
    return result


def holm(p: Mapping[Name, float]) -> dict[Name, float]:
    """Holm's step-down correction: the k-th smallest of m values times m - k + 1, never decreasing, at most 1.

    Values that are nan (a single pair) are ignored and stay nan.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    known = sorted((name for name, value in p.items() if not math.isnan(value)), key=p.__getitem__)
    found, largest = {}, 0.0
    for rank, name in enumerate(known):
        largest = max(largest, min(1.0, p[name] * (len(known) - rank)))
        found[name] = largest
    return found | {name: math.nan for name, value in p.items() if math.isnan(value)}


def share_interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(bound, 3) for bound in share_interval(5, 5)]
    [0.566, 1.0]
    """
    found = stats.binomtest(successes, n).proportion_ci(LEVEL, method="wilson")
    return float(found.low), float(found.high)


def _bootstrap(d: np.ndarray) -> tuple[float, float]:
    # A fixed seed, so that the same records give the same report.
    found = stats.bootstrap(
        (d,), np.mean, confidence_level=LEVEL, n_resamples=_RESAMPLES, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    return float(found.low), float(found.high)


def _permutation_p(d: np.ndarray) -> float:
    found = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=_RESAMPLES, rng=np.random.default_rng(0)
    )
    return float(found.pvalue)
