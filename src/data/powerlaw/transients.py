"""Detection of a short event in a slow background, compared with the likelihood ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg, special

from ...processes.prediction import toeplitz_factor
from ...registry import register_dataset
from ..options import check_real, check_required, is_real
from ..proxy import TwoClasses
from .common import arrays_of_test, process_of


@register_dataset("powerlaw-transients")
class PowerlawTransients(TwoClasses):
    """Detect a transient at an unknown place in long-memory noise; half of the samples hold one.

    The background has variance 1. The transient is one period of a sine under a Hann window, `width` steps long, with
    the peak height `height`, anywhere in the sample.

    `reference()` scores on the test split: "optimal", the likelihood ratio over all places, which is the best detector;
    "chance".

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`; at most 4,096 steps.
        process: "arfima" (0, d, 0), or "fgn", fractional Gaussian noise of H = d + 1/2.
        d: memory of the background in (-1/2, 1/2).
        width: steps of the transient, 4 to length / 2.
        height: peak height of the transient, in (0, 1e6].
    """

    name = "powerlaw-transients"
    d_input = 1

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 500,
        n_test: int = 2_000,
        length: int = 512,
        seed: int = 0,
        process: str = "arfima",
        d: float = 0.4,
        width: int = 24,
        height: float = 1.6,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_required(16, self.name, "steps of a sample", 4096, length=length)
        check_required(4, self.name, "steps of the transient", length // 2, width=width)
        check_real(self.name, "height", height, is_real(height) and 0.0 < height <= 1e6, "0 < height <= 1e6")
        self.process = process_of(self.name, process, d)
        self._kind, self._d, self.width, self.height = process, float(d), width, float(height)

    def shape(self) -> np.ndarray:
        """(width,) the transient."""
        t = (np.arange(self.width) + 0.5) / self.width
        wave = np.sin(2 * np.pi * t) * np.sin(np.pi * t) ** 2
        return self.height * wave / np.abs(wave).max()

    def draw(self, rng: np.random.Generator, label: int) -> np.ndarray:
        """See the base class."""
        x = self.process.sample(rng, self.l_max)
        place = int(rng.integers(self.l_max - self.width + 1))
        if label:
            x[place : place + self.width] += self.shape()
        return x.astype(np.float32)[:, None]

    def log_likelihood_ratio(self, x: np.ndarray) -> np.ndarray:
        """(n,) log likelihood ratio of samples (n, L): log of the mean over places of exp(s' G^-1 x - s' G^-1 s / 2).

        s is the transient at a place, G the covariance of the background.
        """
        C = toeplitz_factor(self.process.covariance(self.l_max))
        places = self.l_max - self.width + 1
        shifted = np.zeros((self.l_max, places))
        for place in range(places):
            shifted[place : place + self.width, place] = self.shape()
        white = linalg.solve_triangular(C, x.T, lower=True)
        known = linalg.solve_triangular(C, shifted, lower=True)
        exponents = white.T @ known - 0.5 * (known**2).sum(axis=0)
        return special.logsumexp(exponents, axis=1) - np.log(places)

    def reference(self) -> dict[str, float]:
        """Reference scores; see the class."""
        x, label = arrays_of_test(self)
        said = self.log_likelihood_ratio(x[:, :, 0]) > 0
        return {"optimal": float((said == label).mean()), "chance": 0.5}

    def _parameters(self) -> dict[str, Any]:
        return {"process": self._kind, "d": self._d, "width": self.width, "height": self.height}
