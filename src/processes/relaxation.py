"""Sums of independent AR(1) processes with many time scales, which together follow a power law over these scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from .checks import check_length, check_range, frequencies
from .stationary import StationaryGaussian


@dataclass(frozen=True)
class Relaxations(StationaryGaussian):
    """x_t = sum_i x_i(t), each an Ornstein-Uhlenbeck process seen at every step.

    gamma_k = sum_i weights_i exp(-k / times_i).

    Args:
        times: relaxation times in steps, > 0.
        weights: variances, > 0, one for each time.
    """

    times: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.times, tuple) or not isinstance(self.weights, tuple) or not self.times:
            raise UsageError(f"Relaxations needs tuples of times and weights, got {self.times!r} and {self.weights!r}.")
        if len(self.times) != len(self.weights):
            raise UsageError(
                f"Relaxations needs one weight a time, got {len(self.times)} times and {len(self.weights)} weights."
            )
        for name in ("times", "weights"):
            for value in getattr(self, name):
                check_range("Relaxations", name, value, 0.0, math.inf)

    @classmethod
    def power_law(cls, exponent: float, shortest: float, longest: float, n: int, variance: float = 1.0) -> Relaxations:
        """n times, equally spaced in the logarithm, weighted so that gamma_k falls about as k^(-exponent) between them.

        Args:
            exponent: in [0, 10]; 0 gives equal weights (1/f noise).
            shortest, longest: relaxation times in steps, shortest < longest.
            n: number of relaxations, >= 2.
            variance: gamma_0.
        """
        check_length("Relaxations", "n", n, least=2)
        check_range("Relaxations", "exponent", exponent, 0.0, 10.0, closed="both")
        check_range("Relaxations", "longest", longest, 0.0, math.inf)
        check_range("Relaxations", "shortest", shortest, 0.0, longest)
        check_range("Relaxations", "variance", variance, 0.0, math.inf)
        times = np.geomspace(shortest, longest, n)
        weights = times**-exponent
        weights *= variance / weights.sum()
        return cls(tuple(times.tolist()), tuple(weights.tolist()))

    def at_speed(self, speed: float) -> Relaxations:
        """The same process in continuous time, sampled every `speed` steps."""
        check_range("Relaxations", "speed", speed, 0.0, math.inf)
        return Relaxations(tuple(time / speed for time in self.times), self.weights)

    def covariance(self, n: int) -> np.ndarray:
        """See the base class."""
        check_length("Relaxations", "n", n)
        return np.exp(-np.arange(n)[:, None] / np.array(self.times)) @ np.array(self.weights)

    def spectrum(self, frequency: np.ndarray) -> np.ndarray:
        """See the base class: a sum of weights_i (1 - r_i^2) / |1 - r_i exp(-i w)|^2, r_i = exp(-1 / times_i)."""
        w = frequencies("Relaxations", frequency)[..., None]
        rate = 1.0 / np.array(self.times)
        r = np.exp(-rate)
        # |1 - r e^(-iw)|^2 without cancellation for r near 1 and small w.
        distance = np.expm1(-rate) ** 2 + 4.0 * r * np.sin(w / 2.0) ** 2
        return -np.expm1(-2.0 * rate) / distance @ np.array(self.weights)
