"""The best estimate of a stationary signal in white noise: from the past and present (causal), or from everything.

With y = x + w, w white of variance v and G the covariance of y, E[x | y] = y - v G^-1 y for a Gaussian signal. For any
other it is the best linear estimate.
"""

from __future__ import annotations

import numpy as np
from scipy import integrate, linalg

from .checks import check_length, check_range, check_samples
from .prediction import log_spectrum_mean, toeplitz_factor
from .stationary import StationaryGaussian


class WienerFilter:
    """Causal: the best estimate of x_t from the finite past y_0 .. y_t, t = 0 .. n-1.

    With e_t the innovation of y_t (its error of prediction from earlier values) and s_t the variance of e_t, the last
    entry of G^-1 y over t + 1 steps is e_t / s_t. The estimate is thus y_t - v e_t / s_t, with error v - v^2 / s_t.

    Args:
        signal: the process x.
        noise: v, variance of w, > 0.
        n: positions, at most 8,192.
    """

    def __init__(self, signal: StationaryGaussian, noise: float, n: int):
        self.noise, self.n = noise, n
        self._C = _factor("WienerFilter", signal, noise, n)

    @property
    def mse(self) -> np.ndarray:
        """(n,) expected squared error at each position."""
        return self.noise - self.noise**2 / np.diag(self._C) ** 2

    def estimate(self, y: np.ndarray) -> np.ndarray:
        """Estimates of x, from y (..., n) to the same shape; position t uses only y_0 .. y_t."""
        check_samples("WienerFilter", y, self.n)
        white = linalg.solve_triangular(self._C, y.reshape(-1, self.n).T, lower=True).T.reshape(y.shape)
        return y - self.noise * white / np.diag(self._C)


class Smoother:
    """Non-causal: the best estimate of every x_t from all of y_0 .. y_{n-1}.

    Args:
        signal, noise, n: as for `WienerFilter`.
    """

    def __init__(self, signal: StationaryGaussian, noise: float, n: int):
        self.noise, self.n = noise, n
        self._C = _factor("Smoother", signal, noise, n)

    @property
    def mse(self) -> np.ndarray:
        """(n,) expected squared error at each position: v - v^2 (G^-1)_tt."""
        inverse = linalg.solve_triangular(self._C, np.eye(self.n), lower=True)
        return self.noise - self.noise**2 * (inverse**2).sum(axis=0)

    def estimate(self, y: np.ndarray) -> np.ndarray:
        """Estimates of x, from y (..., n) to the same shape."""
        check_samples("Smoother", y, self.n)
        solved = linalg.cho_solve((self._C, True), y.reshape(-1, self.n).T).T.reshape(y.shape)
        return y - self.noise * solved


def filtering_limit(signal: StationaryGaussian, noise: float) -> float:
    """Error of the causal filter with an infinite past: v - v^2 / s, s = exp(mean of log(S + v))."""
    return noise - noise**2 / float(np.exp(log_spectrum_mean(signal, noise)))


def smoothing_limit(signal: StationaryGaussian, noise: float) -> float:
    """Error of the smoother with an infinite past and future: the mean of S v / (S + v)."""

    def left(w: float) -> float:
        S = float(signal.spectrum(np.array([max(w, 1e-9)]))[0])
        return S * noise / (S + noise)

    found, _ = integrate.quad(left, 0.0, np.pi, epsabs=1e-11, epsrel=1e-11, limit=500)
    return found / np.pi


def _factor(what: str, signal: StationaryGaussian, noise: float, n: int) -> np.ndarray:
    check_length(what, "n", n)
    check_range(what, "noise", noise, 0.0, np.inf)
    gamma = signal.covariance(n).copy()
    gamma[0] += noise
    return toeplitz_factor(gamma)
