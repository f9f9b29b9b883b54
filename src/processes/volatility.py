"""Long-memory stochastic volatility: uncorrelated returns whose size is predictable."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .arfima import Arfima
from .checks import check_length, check_range

# Mean and variance of log e^2 for a standard normal e: digamma(1/2) + log 2, and pi^2 / 2.
LOG_SQUARE_MEAN = -1.2703628454614782
LOG_SQUARE_VARIANCE = math.pi**2 / 2


@dataclass(frozen=True)
class LongMemoryVolatility:
    """r_t = scale exp(h_t / 2) e_t, h an ARFIMA(0, d, 0) of the given variance, e standard normal (Breidt et al. 1998).

    With g_k the covariance of h:

        E r_t r_{t+k} = 0,  E r^2 = scale^2 exp(variance / 2),  kurtosis 3 exp(variance),
        Cov(r_t^2, r_{t+k}^2) = scale^4 exp(variance) (exp(g_k) - 1),  Cov(log r_t^2, log r_{t+k}^2) = g_k,  k >= 1.

    Args:
        d: memory of the log-volatility, in (-1/2, 1/2).
        variance: of h, > 0.
        scale: standard deviation of r at h = 0, > 0.
    """

    d: float
    variance: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.log_volatility()
        check_range("LongMemoryVolatility", "scale", self.scale, 0.0, math.inf)

    def log_volatility(self) -> Arfima:
        """The process h."""
        return Arfima.with_variance(self.variance, self.d)

    def squares_covariance(self, n: int) -> np.ndarray:
        """Covariance of r^2 at lags 0 .. n-1."""
        check_length("LongMemoryVolatility", "n", n)
        gamma = self.log_volatility().covariance(n)
        found = self.scale**4 * math.exp(self.variance) * np.expm1(gamma)
        found[0] = self.scale**4 * (3.0 * math.exp(2.0 * self.variance) - math.exp(self.variance))
        return found

    def log_squares_covariance(self, n: int) -> np.ndarray:
        """Covariance of log r^2 at lags 0 .. n-1; its mean is 2 log(scale) - 1.27."""
        gamma = self.log_volatility().covariance(n)
        gamma[0] += LOG_SQUARE_VARIANCE
        return gamma

    def log_squares_spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """Spectrum of log r^2: that of h plus that of white noise."""
        return self.log_volatility().spectrum(frequency) + LOG_SQUARE_VARIANCE

    def sample(self, rng: np.random.Generator, length: int, size: tuple[int, ...] = ()) -> np.ndarray:
        """Independent samples (*size, length) float64, exact."""
        h = self.log_volatility().sample(rng, length, size)
        return self.scale * np.exp(0.5 * h) * rng.standard_normal(h.shape)
