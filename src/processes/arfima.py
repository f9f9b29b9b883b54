"""ARFIMA(p, d, q): short memory from an ARMA filter, long memory from a fractional difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import signal

from ..errors import UsageError
from .checks import check_length, check_range, frequencies, is_real
from .stationary import StationaryGaussian

# Impulse responses of the ARMA filter are cut off after the last entry above this share of the largest.
_NEGLIGIBLE = 1e-18
_SMALLEST_ROOT = 1.0005


@dataclass(frozen=True)
class Arfima(StationaryGaussian):
    """phi(z) (1 - z)^d x_t = theta(z) e_t, with z the shift by one step and e white noise.

    phi(z) = 1 - ar_1 z - .. - ar_p z^p, theta(z) = 1 + ma_1 z + .. + ma_q z^q. For p = q = 0

        gamma_k = v Gamma(1 - 2d) / Gamma(1 - d)^2 * prod_{j=1..k} (j - 1 + d) / (j - d),    v = innovation,

    which for d > 0 falls as k^(2d-1). With p or q > 0 it is convolved with the covariance of the ARMA filter, whose
    exponential tail is kept down to 1e-18.

    Args:
        d: memory in (-1/2, 1/2).
        ar, ma: coefficients; the roots of phi and theta lie outside the circle of radius 1.0005.
        innovation: variance of e, which is also the error of the best one-step prediction from the infinite past.
    """

    d: float
    ar: tuple[float, ...] = ()
    ma: tuple[float, ...] = ()
    innovation: float = 1.0

    def __post_init__(self) -> None:
        check_range("Arfima", "d", self.d, -0.5, 0.5)
        check_range("Arfima", "innovation", self.innovation, 0.0, math.inf)
        for name in ("ar", "ma"):
            coefficients = getattr(self, name)
            if not isinstance(coefficients, tuple) or not all(map(is_real, coefficients)):
                raise UsageError(f"Arfima needs {name} as a tuple of finite numbers, got {coefficients!r}.")
        for name, polynomial in (("ar", self._phi), ("ma", self._theta)):
            nearest = _nearest_root(polynomial)
            if nearest < _SMALLEST_ROOT:
                raise UsageError(
                    f"Arfima needs the roots of its {name} polynomial outside the circle of radius {_SMALLEST_ROOT}, "
                    f"got {name}={getattr(self, name)} with a root at distance {nearest:.6g}. Make the coefficients "
                    f"smaller."
                )

    @property
    def memory(self) -> float:  # type: ignore[override]
        return self.d

    @property
    def _phi(self) -> np.ndarray:
        return np.array([1.0, *(-value for value in self.ar)])

    @property
    def _theta(self) -> np.ndarray:
        return np.array([1.0, *self.ma])

    @classmethod
    def with_variance(cls, variance: float, d: float, ar: tuple[float, ...] = (), ma: tuple[float, ...] = ()) -> Arfima:
        """The process with gamma_0 = variance.

        >>> float(Arfima.with_variance(1.0, d=0.4).covariance(1)[0])
        1.0
        """
        check_range("Arfima", "variance", variance, 0.0, math.inf)
        return cls(d, ar, ma, innovation=variance / float(cls(d, ar, ma).covariance(1)[0]))

    def covariance(self, n: int) -> np.ndarray:
        """See the base class."""
        check_length("Arfima", "n", n)
        if not self.ar and not self.ma:
            return self.innovation * _fractional_covariance(self.d, n)
        response = _arma_response(self._phi, self._theta)
        width = len(response)
        own = signal.correlate(response, response)
        fractional = _fractional_covariance(self.d, n + width - 1)
        both_sides = np.concatenate([fractional[:0:-1], fractional])
        middle = len(fractional) - 1
        around = both_sides[middle - (width - 1) : middle + n + width - 1]
        return self.innovation * signal.convolve(around, own, mode="valid")

    def moving_average(self, n: int) -> np.ndarray:
        """psi_0 = 1, psi_1 .. psi_{n-1} of x_t = sum_j psi_j e_{t-j}.

        The best h-step prediction from the infinite past has the error innovation * sum_{j<h} psi_j^2.
        """
        check_length("Arfima", "n", n)
        return signal.lfilter(self._theta, self._phi, _fractional_weights(self.d, n))

    def spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """See the base class: v |theta / phi|^2 (2 sin(w / 2))^(-2 d)."""
        w = frequencies("Arfima", frequency)
        shift = np.exp(-1j * w)
        arma = np.polyval(self._theta[::-1], shift) / np.polyval(self._phi[::-1], shift)
        return self.innovation * np.abs(arma) ** 2 * (2.0 * np.sin(w / 2.0)) ** (-2.0 * self.d)


def _fractional_covariance(d: float, n: int) -> np.ndarray:
    k = np.arange(1.0, n)
    first = math.gamma(1.0 - 2.0 * d) / math.gamma(1.0 - d) ** 2
    return first * np.concatenate([[1.0], np.cumprod((k - 1.0 + d) / (k - d))])


def _fractional_weights(d: float, n: int) -> np.ndarray:
    """Coefficients psi_0 .. psi_{n-1} of (1 - z)^(-d): Gamma(j + d) / (Gamma(d) j!)."""
    j = np.arange(1.0, n)
    return np.concatenate([[1.0], np.cumprod((j - 1.0 + d) / j)])


def _nearest_root(polynomial: np.ndarray) -> float:
    """Distance from 0 of the nearest root of a polynomial given by ascending coefficients; inf without roots."""
    roots = np.roots(polynomial[::-1])
    return float(np.abs(roots).min()) if len(roots) else math.inf


def _arma_response(phi: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Impulse response of theta / phi, cut off where it is negligible."""
    nearest = _nearest_root(phi)
    steps = 1 if math.isinf(nearest) else math.ceil(math.log(1.0 / _NEGLIGIBLE) / math.log(nearest))
    # Twice as many steps, since near multiple roots the response falls like a polynomial times the exponential.
    impulse = np.zeros(2 * steps + len(theta) + len(phi))
    impulse[0] = 1.0
    response = signal.lfilter(theta, phi, impulse)
    kept = np.flatnonzero(np.abs(response) > _NEGLIGIBLE * np.abs(response).max())
    return response[: kept[-1] + 1]
