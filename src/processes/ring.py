"""1 / f^beta noise for any beta: a Gaussian process on a ring whose spectrum is the power law at every frequency."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from ..errors import UsageError
from .checks import check_length, check_range, frequencies
from .stationary import StationaryGaussian


@dataclass(frozen=True)
class PowerSpectrum(StationaryGaussian):
    """Gaussian noise of period `period` with power proportional to f^(-beta) at each of its frequencies, none at 0.

    Without a period, 1/f^beta noise with beta >= 1 has no finite variance; the period cuts off the lowest frequencies.
    The covariance is the finite sum gamma_k = (variance / c) sum_{j=1..period-1} f_j^(-beta) cos(2 pi j k / period)
    with f_j = min(j, period - j) and c = sum_{j=1..period-1} f_j^(-beta).

    Args:
        beta: exponent in [-4, 4]; 0 is white, 1 pink, 2 like Brownian motion.
        period: even number of steps >= 4. A sample has at most period / 2 + 1 steps, so that it never shows the
            periodicity.
        variance: gamma_0.
    """

    beta: float
    period: int = 1 << 16
    variance: float = 1.0

    def __post_init__(self) -> None:
        check_range("PowerSpectrum", "beta", self.beta, -4.0, 4.0, closed="both")
        check_range("PowerSpectrum", "variance", self.variance, 0.0, math.inf)
        check_length("PowerSpectrum", "period", self.period, least=4)
        if self.period % 2:
            raise UsageError(f"PowerSpectrum needs an even period, got {self.period}. Set {self.period + 1}.")

    def _powers(self) -> np.ndarray:
        """Eigenvalues (period / 2 + 1,) of the ring's covariance, up to the factor that gives the variance."""
        return np.concatenate([[0.0], np.arange(1.0, self.period // 2 + 1) ** -self.beta])

    def covariance(self, n: int) -> np.ndarray:
        """See the base class; n <= period / 2 + 1."""
        check_length("PowerSpectrum", "n", n)
        if n > self.period // 2 + 1:
            raise UsageError(
                f"PowerSpectrum of period {self.period} gives at most {self.period // 2 + 1} steps of a sample, "
                f"asked for {n}. Set a period of at least {2 * (n - 1)}."
            )
        gamma = fft.irfft(self._powers(), self.period)[:n]
        return self.variance * gamma / gamma[0]

    def spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """S, defined at the frequencies 2 pi j / period of the ring and extended to any frequency in (0, pi]."""
        j = frequencies("PowerSpectrum", frequency) * self.period / (2.0 * np.pi)
        mean = fft.irfft(self._powers(), self.period)[0]
        return self.variance / mean * j**-self.beta

    def sample(self, rng: np.random.Generator, length: int, size: tuple[int, ...] = ()) -> np.ndarray:
        """See the base class; the ring itself is drawn, so no embedding is needed."""
        check_length("PowerSpectrum", "length", length)
        self.covariance(length)
        half = self.period // 2
        powers = self._powers()
        roots = np.sqrt(powers * self.variance / fft.irfft(powers, self.period)[0] * half)
        waves = roots * rng.standard_normal((*size, 2 * (half + 1))).view(np.complex128)
        waves[..., half] = np.sqrt(2.0) * waves[..., half].real
        return fft.irfft(waves, self.period)[..., :length]
