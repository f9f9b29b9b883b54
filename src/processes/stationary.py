"""Stationary Gaussian processes, sampled exactly by embedding their covariance in a circulant matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
from scipy import fft

from ..errors import UsageError
from .checks import check_length

# Eigenvalues above -_ROUNDING times the largest are zero up to the rounding of the transform.
_ROUNDING = 1e-13
# The embedding is doubled until it has this many times the length and at least this many steps; then the process is
# refused.
_LARGEST_RATIO, _LARGEST_SHORT = 32, 1 << 13


class StationaryGaussian(ABC):
    """A stationary Gaussian process with mean 0 and a covariance known in closed form.

    Subclasses are frozen dataclasses: equal parameters are one process, whose eigenvalues are computed once.

    Conventions: covariance gamma_k = E x_t x_{t+k}; spectrum S(w) = sum_k gamma_k exp(-i k w), so that white noise of
    variance 1 has S = 1 and gamma_0 is the mean of S over [-pi, pi].

    Attributes:
        memory: d, the exponent of the spectrum at low frequencies, S(w) ~ w^(-2 d); 0 for short memory.
    """

    memory: float = 0.0

    @abstractmethod
    def covariance(self, n: int) -> np.ndarray:
        """gamma_0 .. gamma_{n-1}, (n,) float64, n >= 1."""

    @abstractmethod
    def spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """S at frequencies in (0, pi], in radians per step; float64 of the same shape.

        Raises:
            UsageError: a frequency outside that range.
        """

    def sample(self, rng: np.random.Generator, length: int, size: tuple[int, ...] = ()) -> np.ndarray:
        """Independent samples (*size, length) float64, exact in distribution up to rounding.

        Each is the first `length` steps of a Gaussian process on a ring with the same covariance over these steps
        (Davies and Harte 1987; Dietrich and Newsam 1997). A sample takes one real FFT of about 2 * length points.

        Raises:
            UsageError: a length out of range, or no embedding of up to 32 times the length (up to 8,192 steps for a
                short sample) has eigenvalues >= 0.
        """
        check_length(type(self).__name__, "length", length)
        roots = _circulant_roots(self, length)
        half = len(roots) - 1
        draws = rng.standard_normal((*size, 2 * half))
        waves = np.empty((*size, half + 1), dtype=np.complex128)
        waves.real = draws[..., : half + 1]
        waves.imag[..., 1:half] = draws[..., half + 1 :]
        waves.imag[..., [0, half]] = 0.0
        waves *= roots
        return fft.irfft(waves, 2 * half)[..., :length]


@lru_cache(maxsize=64)
def _circulant_roots(process: StationaryGaussian, length: int) -> np.ndarray:
    """Standard deviations (m + 1,) of the Fourier coefficients of a ring of 2 m >= 2 (length - 1) points."""
    half = fft.next_fast_len(max(length - 1, 1), real=True)
    while True:
        eigenvalues = circulant_eigenvalues(process.covariance(half + 1))
        if eigenvalues.min() >= -_ROUNDING * eigenvalues.max():
            roots = np.sqrt(half * np.maximum(eigenvalues, 0.0))
            # The two real coefficients carry the variance of a complex one.
            roots[[0, half]] *= np.sqrt(2.0)
            return roots
        if half >= max(_LARGEST_RATIO * length, _LARGEST_SHORT):
            break
        half *= 2
    raise UsageError(
        f"{process} cannot be sampled exactly over {length} steps: the smallest eigenvalue of a circulant embedding of "
        f"{half:,} steps is {eigenvalues.min():.3g} beside a largest of {eigenvalues.max():.3g}. "
        f"Choose parameters further from the edge of stationarity, or a longer sample and cut it."
    )


def circulant_eigenvalues(covariance: np.ndarray) -> np.ndarray:
    """Eigenvalues (m + 1,) of the circulant matrix whose first row is gamma_0 .. gamma_m, gamma_{m-1} .. gamma_1.

    >>> circulant_eigenvalues(np.array([1.0, 0.25])).tolist()
    [1.25, 0.75]
    """
    return fft.dct(covariance, type=1)
