"""The exponent of one sample: Whittle's estimate, and the posterior mean, which no estimator beats on average."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import fft, linalg, optimize

from ..errors import UsageError
from .checks import is_real
from .prediction import toeplitz_factor
from .stationary import StationaryGaussian

# A process for each value of the parameter.
Family = Callable[[float], StationaryGaussian]
_BRACKETS = 33


def periodogram(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies 2 pi j / n, j = 1 .. (n-1)/2, and |sum_t x_t exp(-i w t)|^2 / n for x (..., n).

    Frequency 0 is left out, so the mean of a sample has no influence.
    """
    n = x.shape[-1]
    last = (n - 1) // 2
    power = np.abs(fft.rfft(x)[..., 1 : last + 1]) ** 2 / n
    return 2.0 * np.pi * np.arange(1, last + 1) / n, power


def whittle(x: np.ndarray, family: Family, low: float, high: float) -> np.ndarray:
    """Whittle's estimate of the parameter of each sample, with the scale left free.

    Minimises log(mean(I / S)) + mean(log S) over the Fourier frequencies, I the periodogram.

    Args:
        x: (..., n), n >= 8.
        family: parameter -> process; its variance does not matter.
        low, high: the parameter is searched in [low, high].
    Returns:
        (...,) estimates.
    """
    if x.shape[-1] < 8:
        raise UsageError(f"Whittle's estimate needs samples of 8 steps at least, got {x.shape[-1]}.")
    _check_bounds(low, high)
    frequency, power = periodogram(x)
    rows = power.reshape(-1, len(frequency))
    grid = np.linspace(low, high, _BRACKETS)
    spectra = np.stack([family(float(value)).spectrum(frequency) for value in grid])
    losses = np.log(rows @ (1.0 / spectra.T) / len(frequency)) + np.log(spectra).mean(axis=1)
    found = [
        _refined(row, frequency, family, grid, int(best)) for row, best in zip(rows, losses.argmin(1), strict=True)
    ]
    return np.array(found).reshape(x.shape[:-1])


def _check_bounds(low: float, high: float) -> None:
    if not (is_real(low) and is_real(high) and low < high):
        raise UsageError(
            f"The parameter is searched from low to high: give two numbers, low < high, got {low!r}, {high!r}."
        )


def _refined(power: np.ndarray, frequency: np.ndarray, family: Family, grid: np.ndarray, best: int) -> float:
    def loss(value: float) -> float:
        S = family(value).spectrum(frequency)
        return float(np.log((power / S).mean()) + np.log(S).mean())

    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    return float(optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5}).x)


def posterior_mean(x: np.ndarray, family: Family, low: float, high: float, nodes: int = 96) -> np.ndarray:
    """Mean of the parameter given each sample, for a parameter drawn uniformly from [low, high].

    No function of the sample has a smaller expected squared error. The Gaussian likelihood is exact; the integral over
    the parameter takes Gauss-Legendre's rule with `nodes` points, enough if posteriors are wider than their spacing.

    Args:
        x: (..., n).
        family: parameter -> process, its variance included.
    Returns:
        (...,) posterior means.
    """
    _check_bounds(low, high)
    rows = x.reshape(-1, x.shape[-1])
    places, weights = np.polynomial.legendre.leggauss(nodes)
    places = 0.5 * (low + high) + 0.5 * (high - low) * places
    log_likelihood = np.empty((nodes, len(rows)))
    for index, value in enumerate(places):
        C = toeplitz_factor(family(float(value)).covariance(x.shape[-1]))
        white = linalg.solve_triangular(C, rows.T, lower=True)
        log_likelihood[index] = -0.5 * (white**2).sum(axis=0) - np.log(np.diag(C)).sum()
    posterior = weights[:, None] * np.exp(log_likelihood - log_likelihood.max(axis=0))
    return (places @ posterior / posterior.sum(axis=0)).reshape(x.shape[:-1])
