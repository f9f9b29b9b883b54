"""The best linear predictor of a stationary process: from all values so far, from the last p, or an infinite past."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import integrate, linalg

from ..errors import UsageError
from .checks import check_length, check_samples
from .stationary import StationaryGaussian

# A dense triangular factor of this many steps takes 512 MB.
MOST_DENSE = 8192


@dataclass(frozen=True)
class DurbinLevinson:
    """One-step prediction for every length of past up to n.

    Attributes:
        partial: (n,) partial autocorrelations, lag 1 .. n.
        mse: (n + 1,) error of the best prediction from the last 0 .. n values; mse[0] = gamma_0.
        coefficients: (n,) coefficients of the predictor from the last n values, the latest value first.
    """

    partial: np.ndarray
    mse: np.ndarray
    coefficients: np.ndarray


def durbin_levinson(covariance: np.ndarray) -> DurbinLevinson:
    """Solve the Yule-Walker equations of every order 1 .. n for gamma_0 .. gamma_n, in n^2 steps and O(n) memory.

    Raises:
        UsageError: the covariance is not positive definite.
    """
    gamma = np.asarray(covariance, dtype=np.float64)
    n = len(gamma) - 1
    phi, partial, mse = np.zeros(n), np.zeros(n), np.empty(n + 1)
    mse[0] = gamma[0]
    _check_error(mse[0], 0)
    for order in range(n):
        known = phi[:order]
        partial[order] = (gamma[order + 1] - known @ gamma[order:0:-1]) / mse[order]
        phi[:order] = known - partial[order] * known[::-1]
        phi[order] = partial[order]
        mse[order + 1] = mse[order] * (1.0 - partial[order] ** 2)
        _check_error(mse[order + 1], order + 1)
    return DurbinLevinson(partial, mse, phi)


def _check_error(mse: float, order: int) -> None:
    if not mse > 0.0:
        raise UsageError(
            f"The covariance is not positive definite: the error of prediction from {order} values is {mse:.3g}. "
            f"Give gamma_0 .. gamma_n of a process that its past does not determine."
        )


class OptimalPredictor:
    """Best linear prediction of x_{t+h} from x_0 .. x_t for t = 0 .. n-1; for a Gaussian process no other is better.

    x = C e with C the Cholesky factor of the covariance of x_0 .. x_{n+h-1} and e white, so the prediction is
    sum_{j<=t} C[t+h, j] e_j with error sum_{j>t} C[t+h, j]^2.

    Args:
        process: stationary.
        n: positions.
        horizon: h >= 1.
    Raises:
        UsageError: n + h above 8,192 (the factor is dense), or a covariance that is not positive definite.
    """

    def __init__(self, process: StationaryGaussian, n: int, horizon: int = 1):
        check_length("OptimalPredictor", "n", n)
        check_length("OptimalPredictor", "horizon", horizon)
        self._C = toeplitz_factor(process.covariance(n + horizon))
        self.n, self.horizon = n, horizon

    @cached_property
    def mse(self) -> np.ndarray:
        """(n,) expected squared error at each position; position t has seen t + 1 values."""
        t = np.arange(self.n)
        rows = self._C[self.horizon :]
        unseen = np.arange(self._C.shape[1]) > t[:, None]
        return (np.where(unseen, rows, 0.0) ** 2).sum(axis=1)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predictions of x_{t+h}, from x (..., n) to the same shape, each only from x_0 .. x_t."""
        check_samples("OptimalPredictor", x, self.n)
        innovations = linalg.solve_triangular(self._C[: self.n, : self.n], x.reshape(-1, self.n).T, lower=True)
        weights = np.tril(self._C[self.horizon :, : self.n])
        return (weights @ innovations).T.reshape(x.shape)


class ShortPredictor:
    """Best linear prediction of x_{t+h} from the last p values, or from all if there are fewer: AR(p), h steps.

    Args:
        process: stationary.
        order: p >= 1.
        horizon: h >= 1.
    """

    def __init__(self, process: StationaryGaussian, order: int, horizon: int = 1):
        check_length("ShortPredictor", "order", order)
        check_length("ShortPredictor", "horizon", horizon)
        gamma = process.covariance(order + horizon)
        # Coefficients (p, p): row k - 1 holds those of the predictor from k values, the latest value first.
        self.coefficients = np.zeros((order, order))
        self._mse = np.empty(order)
        for k in range(1, order + 1):
            wanted = gamma[horizon : horizon + k]
            found = linalg.solve_toeplitz(gamma[:k], wanted)
            self.coefficients[k - 1, :k], self._mse[k - 1] = found, gamma[0] - found @ wanted
        self.order, self.horizon = order, horizon

    def mse(self, n: int) -> np.ndarray:
        """(n,) expected squared error at each position; position t uses min(t + 1, p) values."""
        return self._mse[np.minimum(np.arange(n), self.order - 1)]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predictions of x_{t+h}, from x (..., n) to the same shape."""
        n = x.shape[-1]
        found = np.zeros(x.shape)
        for lag in range(min(self.order, n)):
            used = np.minimum(np.arange(lag, n), self.order - 1)
            found[..., lag:] += self.coefficients[used, lag] * x[..., : n - lag]
        return found


def toeplitz_factor(covariance: np.ndarray) -> np.ndarray:
    """Lower Cholesky factor of the symmetric Toeplitz matrix with the given first row.

    Raises:
        UsageError: more than 8,192 steps, or not positive definite.
    """
    if len(covariance) > MOST_DENSE:
        raise UsageError(
            f"The optimal predictor of every position holds a dense matrix of {len(covariance):,} steps squared; at "
            f"most {MOST_DENSE:,} are allowed. durbin_levinson gives the errors of longer pasts."
        )
    try:
        return np.linalg.cholesky(linalg.toeplitz(covariance))
    except np.linalg.LinAlgError as error:
        raise UsageError(
            "The covariance is not positive definite. Give that of a process that its past does not determine."
        ) from error


def log_spectrum_mean(process: StationaryGaussian, noise: float = 0.0) -> float:
    """Mean of log(S + noise) over [-pi, pi], the exponent of Kolmogorov's formula."""
    return _cepstrum(process, 0, noise)


def innovation_variance(process: StationaryGaussian) -> float:
    """Error of the best one-step prediction from the infinite past: exp of the mean of log S (Kolmogorov)."""
    return float(np.exp(log_spectrum_mean(process)))


def wold(process: StationaryGaussian, n: int) -> np.ndarray:
    """Coefficients psi_0 = 1, psi_1 .. psi_{n-1} of x_t = sum_j psi_j e_{t-j}, from the cepstrum of the spectrum.

    The best h-step prediction from the infinite past has the error innovation_variance * sum_{j<h} psi_j^2.
    """
    check_length("wold", "n", n)
    # log S = c_0 + 2 sum c_k cos, and k psi_k = sum_{j=1..k} j c_j psi_{k-j}.
    steep = np.array([k * _cepstrum(process, k, 0.0) for k in range(1, n)])
    psi = np.ones(n)
    for k in range(1, n):
        psi[k] = steep[:k] @ psi[k - 1 :: -1][:k] / k
    return psi


def _cepstrum(process: StationaryGaussian, k: int, noise: float) -> float:
    """k-th Fourier coefficient of log(S + noise), with the pole of log S at 0 integrated in closed form."""
    # Noise removes a zero of S at 0, but not a pole.
    d = process.memory if noise == 0.0 else max(process.memory, 0.0)

    def smooth(w: float) -> float:
        w = max(w, 1e-9)
        return float(np.log(process.spectrum(np.array([w]))[0] + noise) + 2.0 * d * np.log(2.0 * np.sin(w / 2.0)))

    options = {"epsabs": 1e-11, "epsrel": 1e-11, "limit": 500}
    if k:
        found, _ = integrate.quad(smooth, 0.0, np.pi, weight="cos", wvar=k, **options)
        return found / np.pi + d / k
    found, _ = integrate.quad(smooth, 0.0, np.pi, **options)
    return found / np.pi
