"""Heavy-tailed on-off traffic: sources that send and pause for Pareto times, whose sum has long memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import acb, ctx
from scipy import special

from ..errors import UsageError
from .checks import check_length, check_range, frequencies

# The spectrum cancels by as many bits as a duration is improbable: about 1,000 for the largest tails.
_PRECISIONS = (128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class OnOffTraffic:
    """Number of sending sources among `sources` independent ones, stationary from the first step.

    A source sends (1) for D steps, pauses (0) for D' steps, and so on; all durations are independent with
    P(D > k) = k^(-tail) for k >= 1, so D = ceil(U^(-1/tail)), mean 1 + zeta(tail). For tails in (1, 2) the variance of
    a duration is infinite and the covariance of the traffic falls as k^(1-tail): H = (3 - tail) / 2.

    Args:
        tail: exponent of on times, in (1, 100).
        off_tail: exponent of off times, in (1, 100); None takes `tail`.
        sources: number of sources, >= 1.
    """

    tail: float
    off_tail: float | None = None
    sources: int = 1

    def __post_init__(self) -> None:
        check_range("OnOffTraffic", "tail", self.tail, 1.0, 100.0)
        if self.off_tail is not None:
            check_range("OnOffTraffic", "off_tail", self.off_tail, 1.0, 100.0)
        check_length("OnOffTraffic", "sources", self.sources)

    @property
    def _tails(self) -> tuple[float, float]:
        """Exponents of off and on times, in the order of the states 0 and 1."""
        return (self.tail if self.off_tail is None else self.off_tail), self.tail

    @property
    def mean(self) -> float:
        """Mean of the traffic."""
        return self.sources * self._share

    @property
    def _share(self) -> float:
        off, on = (1.0 + float(special.zeta(tail)) for tail in self._tails)
        return on / (on + off)

    @property
    def hurst(self) -> float:
        """H of the sum over long times, from the heavier tail; 1/2 where both variances are finite."""
        return max(0.5, (3.0 - min(self._tails)) / 2.0)

    def covariance(self, n: int) -> np.ndarray:
        """gamma_0 .. gamma_{n-1}, (n,), exact, by the renewal equation; work grows as n^2."""
        check_length("OnOffTraffic", "n", n)
        share, survival = self._share, [_survival(tail, n) for tail in self._tails]
        # on[s][k]: probability to send k steps after a period in state s began.
        on = np.zeros((2, n))
        lasts = [np.concatenate([[0.0], -np.diff(found)]) for found in survival]
        for k in range(n):
            for state in (0, 1):
                renewed = lasts[state][1 : k + 1] @ on[1 - state, k - 1 :: -1][:k] if k else 0.0
                on[state, k] = survival[state][k] * state + renewed
        # The period running at a random time has the residual duration R, P(R = r) = P(D >= r) / E D.
        residual = survival[1] / (1.0 + special.zeta(self.tail))
        beyond = _residual_survival(self.tail, n)
        later = np.array([residual[:k] @ on[0, k - 1 :: -1][:k] if k else 0.0 for k in range(n)])
        return self.sources * (share * (beyond + later) - share**2)

    def spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """S at frequencies in (0, pi]: 2 Re[(1 - f)(1 - g) / (1 - f g)] / (m |1 - z|^2), z = exp(i w), times sources.

        f and g are the generating functions of the durations, 1 - (1 - z)(1 + Li_tail(z)), m the sum of their means.
        Where durations hardly vary the real part is a small difference, so it is computed in intervals, to 50 bits.

        Raises:
            UsageError: a frequency outside (0, pi].
        """
        w = frequencies("OnOffTraffic", frequency)
        found = [_source_spectrum(float(value), *self._tails) for value in w.ravel()]
        return self.sources * np.array(found).reshape(w.shape)

    def sample(self, rng: np.random.Generator, length: int, size: tuple[int, ...] = ()) -> np.ndarray:
        """Independent samples (*size, length) float64 of whole numbers 0 .. sources, exact and stationary."""
        check_length("OnOffTraffic", "length", length)
        count = math.prod(size)
        found = np.zeros((count, length))
        for row in found:
            for _ in range(self.sources):
                row += self._source(rng, length)
        return found.reshape(*size, length)

    def _source(self, rng: np.random.Generator, length: int) -> np.ndarray:
        state = int(rng.random() < self._share)
        survival = _residual_survival(self._tails[state], length + 1)
        # Draw the residual by inversion: the first r with P(R > r) <= u, cut at the end of the sample.
        first = int(np.searchsorted(-survival, -rng.random()))
        ends, states, total = [min(first, length)], [state], first
        while total < length:
            state = 1 - state
            drawn = np.ceil(rng.random() ** (-1.0 / self._tails[state]))
            total += int(min(drawn, length))
            ends.append(min(total, length))
            states.append(state)
        return np.repeat(np.array(states, dtype=np.float64), np.diff(ends, prepend=0))


def _survival(tail: float, n: int) -> np.ndarray:
    """P(D > k), k = 0 .. n-1."""
    return np.concatenate([[1.0], np.arange(1.0, n) ** -tail])


def _residual_survival(tail: float, n: int) -> np.ndarray:
    """P(R > k), k = 0 .. n-1, for the remaining time R of a running period: zeta(tail, k) / (1 + zeta(tail))."""
    k = np.arange(1.0, n)
    return np.concatenate([[1.0], special.zeta(tail, k) / (1.0 + special.zeta(tail))])


def _source_spectrum(w: float, off: float, on: float) -> float:
    """The spectrum of one source at one frequency, with the precision doubled until 50 bits are certain."""
    for precision in _PRECISIONS:
        with ctx.workprec(precision):
            z = (acb(0, 1) * acb(w)).exp()
            a, b = ((1 - z) * (1 + z.polylog(acb(tail))) for tail in (off, on))
            mean = (2 + acb(off).zeta() + acb(on).zeta()).real
            found = 2 * (a * b / (a + b - a * b)).real / (mean * abs(1 - z) ** 2)
            if found.rel_accuracy_bits() >= 50:
                return float(found)
    raise UsageError(
        f"The spectrum of on-off traffic with tails {off} and {on} at {w} needs over 4,096 bits. "
        f"Take smaller tails or a frequency further from 0."
    )
