"""Estimation of the exponent of a sample, compared with Whittle's estimate and the posterior mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...processes import FractionalNoise, posterior_mean, whittle
from ...registry import register_dataset
from ..drawn import DrawnData
from ..options import check_real, is_real
from .common import arrays_of_test, check_dense_length, squared_error


@register_dataset("powerlaw-hurst")
class PowerlawHurst(DrawnData):
    """Estimate H of a sample of fractional Gaussian noise of variance 1; H is uniform in [low, high].

    `reference()` scores on the test split: "optimal", the mean of H given the sample, which has the least expected
    squared error; "Whittle", which treats the variance as unknown; "constant", the middle of the interval.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`.
        low, high: range of H, within (0, 1).
    """

    name = "powerlaw-hurst"
    task = "regression"
    d_input = d_target = 1

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 500,
        n_test: int = 1_000,
        length: int = 512,
        seed: int = 0,
        low: float = 0.1,
        high: float = 0.9,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_dense_length(self.name, length)
        check_real(self.name, "low", low, is_real(low) and 0.0 < low < 1.0, "0 < low < 1")
        check_real(self.name, "high", high, is_real(high) and low < high < 1.0, f"{low} < high < 1")
        self.low, self.high = float(low), float(high)

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The noise and its H."""
        hurst = rng.uniform(self.low, self.high)
        x = FractionalNoise(float(hurst)).sample(rng, self.l_max)
        return x.astype(np.float32)[:, None], np.array([hurst], dtype=np.float32)

    def reference(self) -> dict[str, float]:
        """Reference scores; see the class."""
        x, hurst = (array[..., 0] for array in arrays_of_test(self))
        return {
            "optimal": squared_error(posterior_mean(x, FractionalNoise, self.low, self.high), hurst),
            "Whittle": squared_error(whittle(x, FractionalNoise, self.low, self.high), hurst),
            "constant": squared_error(0.5 * (self.low + self.high), hurst),
        }

    def _parameters(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}
