"""Denoising of a signal with long memory in white noise, compared with the Wiener filter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...processes import Smoother, WienerFilter, filtering_limit, smoothing_limit
from ...registry import register_dataset
from ..drawn import DrawnData
from ..options import check_real, is_real
from .common import arrays_of_test, check_dense_length, process_of, squared_error


class _Denoise(DrawnData):
    """Estimate x_t at every position from y = x + white noise, where x has variance 1."""

    task = "regression"
    d_input = d_target = 1
    per_position = True

    def __init__(
        self,
        n_train: int,
        n_val: int,
        n_test: int,
        length: int,
        seed: int,
        process: str,
        d: float,
        noise: float,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_dense_length(self.name, length)
        check_real(self.name, "noise", noise, is_real(noise) and 1e-4 <= noise <= 1e4, "1e-4 <= noise <= 1e4")
        self.process = process_of(self.name, process, d)
        self.noise, self._kind, self._d = float(noise), process, float(d)

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The noisy y and the signal x."""
        x = self.process.sample(rng, self.l_max)
        y = x + math.sqrt(self.noise) * rng.standard_normal(self.l_max)
        return y.astype(np.float32)[:, None], x.astype(np.float32)[:, None]

    def reference(self) -> dict[str, float]:
        """Reference scores; see the class."""
        y, x = (array[:, :, 0] for array in arrays_of_test(self))
        causal, smoother = (kind(self.process, self.noise, self.l_max) for kind in (WienerFilter, Smoother))
        best, limit = (causal, filtering_limit) if self.causal else (smoother, smoothing_limit)
        return {
            "optimal": squared_error(best.estimate(y), x),
            "optimal, expected": float(best.mse.mean()),
            "infinite past, expected" if self.causal else "infinite series, expected": limit(self.process, self.noise),
            "Wiener, causal": squared_error(causal.estimate(y), x),
            "Wiener, non-causal": squared_error(smoother.estimate(y), x),
            "present value": squared_error(y / (1.0 + self.noise), x),
            "mean": squared_error(0.0, x),
        }

    def _parameters(self) -> dict[str, Any]:
        return {"process": self._kind, "d": self._d, "noise": self.noise}


@register_dataset("powerlaw-denoise")
class PowerlawDenoise(_Denoise):
    """Estimate a signal x_t of variance 1 in white noise from y_0 .. y_t, at every position t.

    `reference()` scores on the test split: "optimal", the causal Wiener filter of each position's finite past; the
    non-causal filter, which also uses the future; "present value", y_t scaled down; "mean", which is 0.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`.
        process: "arfima" (0, d, 0), or "fgn", fractional Gaussian noise of H = d + 1/2.
        d: memory of the signal in (-1/2, 1/2).
        noise: variance of the noise, 1e-4 to 1e4; the signal has variance 1.
    """

    name = "powerlaw-denoise"
    causal = True

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 100,
        n_test: int = 400,
        length: int = 1024,
        seed: int = 0,
        process: str = "arfima",
        d: float = 0.4,
        noise: float = 1.0,
    ):
        super().__init__(n_train, n_val, n_test, length, seed, process, d, noise)


@register_dataset("powerlaw-smooth")
class PowerlawSmooth(_Denoise):
    """`powerlaw-denoise` with all of y known at every position; the optimum is the non-causal Wiener filter.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed, process, d, noise: see `PowerlawDenoise`.
    """

    name = "powerlaw-smooth"

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 100,
        n_test: int = 400,
        length: int = 1024,
        seed: int = 0,
        process: str = "arfima",
        d: float = 0.4,
        noise: float = 1.0,
    ):
        super().__init__(n_train, n_val, n_test, length, seed, process, d, noise)
