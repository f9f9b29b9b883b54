"""Fractional Gaussian noise and its sum, fractional Brownian motion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from .checks import check_length, check_range, frequencies
from .stationary import StationaryGaussian


@dataclass(frozen=True)
class FractionalNoise(StationaryGaussian):
    """Increments of fractional Brownian motion at unit distance.

    gamma_k = variance (|k+1|^2H - 2 |k|^2H + |k-1|^2H) / 2, which for H > 1/2 falls as k^(2H-2).

    Args:
        hurst: H in (0, 1); 1/2 is white noise, above it the noise is persistent, below anti-persistent.
        variance: gamma_0 > 0.
    """

    hurst: float
    variance: float = 1.0

    def __post_init__(self) -> None:
        check_range("FractionalNoise", "hurst", self.hurst, 0.0, 1.0)
        check_range("FractionalNoise", "variance", self.variance, 0.0, math.inf)

    @property
    def memory(self) -> float:  # type: ignore[override]
        return self.hurst - 0.5

    def covariance(self, n: int) -> np.ndarray:
        """See the base class."""
        check_length("FractionalNoise", "n", n)
        gamma = np.ones(n)
        k, twice = np.arange(1.0, n), 2.0 * self.hurst
        # Relative differences to k^2H, because the formula itself cancels for large k; log1p(-1) gives 0^2H at k = 1.
        with np.errstate(divide="ignore"):
            up, down = np.expm1(twice * np.log1p(1.0 / k)), np.expm1(twice * np.log1p(-1.0 / k))
        gamma[1:] = 0.5 * k**twice * (up + down)
        return self.variance * gamma

    def spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """See the base class; the sum over aliases is a pair of Hurwitz zeta functions."""
        turns, power = frequencies("FractionalNoise", frequency) / (2.0 * np.pi), 2.0 * self.hurst + 1.0
        aliases = _scaled_zeta(2.0 * self.hurst, turns) + _scaled_zeta(2.0 * self.hurst, 1.0 - turns)
        # sin(pi H) from the nearer end of the range, where the other has rounded H away.
        sine = math.sin(math.pi * min(self.hurst, 1.0 - self.hurst))
        scale = self.variance * sine / (2.0 * self.hurst) * math.gamma(power) / (2.0 * np.pi) ** power
        return scale * 4.0 * np.sin(np.pi * turns) ** 2 * aliases


def _scaled_zeta(s: float, q: np.ndarray) -> np.ndarray:
    """s zeta(1 + s, q) for s > 0, without the loss at small s, where 1 + s rounds and the pole 1 / s dominates."""
    rounded = (1.0 + s) - 1.0
    regular = special.zeta(1.0 + s, q) - 1.0 / rounded if rounded else -special.digamma(q)
    return 1.0 + s * regular


@dataclass(frozen=True)
class FractionalMotion:
    """Fractional Brownian motion at times 1, 2, .., n; it starts from 0 at time 0 and is not stationary.

    E x_s x_t = variance (s^2H + t^2H - |s-t|^2H) / 2.

    Args:
        hurst: H in (0, 1); 1/2 is Brownian motion.
        variance: variance of x at time 1.
    """

    hurst: float
    variance: float = 1.0

    def __post_init__(self) -> None:
        self.increments()

    def increments(self) -> FractionalNoise:
        """The process of differences, the first of which is x_1 - 0."""
        return FractionalNoise(self.hurst, self.variance)

    def covariance_matrix(self, n: int) -> np.ndarray:
        """(n, n) covariance of the times 1 .. n."""
        check_length("FractionalMotion", "n", n)
        t, twice = np.arange(1.0, n + 1), 2.0 * self.hurst
        apart = np.abs(t[:, None] - t) ** twice
        return 0.5 * self.variance * (t[:, None] ** twice + t**twice - apart)

    def sample(self, rng: np.random.Generator, length: int, size: tuple[int, ...] = ()) -> np.ndarray:
        """Independent samples (*size, length) float64, exact: sums of exact fractional noise."""
        return np.cumsum(self.increments().sample(rng, length, size), axis=-1)
