"""One process at several speeds: trained at one, tested at another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...processes import Relaxations, WienerFilter
from ...processes.prediction import MOST_DENSE
from ...registry import register_dataset
from ..drawn import DrawnData
from ..options import check_flags, check_real, is_real
from .common import arrays_of_test, squared_error

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)


@register_dataset("powerlaw-warp")
class PowerlawWarp(DrawnData):
    """`powerlaw-denoise` in continuous time: trained and validated at one sampling rate, tested at another.

    The signal is a sum of 12 Ornstein-Uhlenbeck processes with time scales from 1 to 1,000 and total variance 1, whose
    covariance falls about as time^(-exponent). At speed s it is sampled every s units of time for `length` units, so
    that a test sample has length / s steps; the noise of a step is white noise averaged over the step, of variance
    noise / s. A continuous-time layer whose step dt is multiplied by s (`scaled`) needs no further training.

    `reference()` scores on the test split: "optimal", the causal Wiener filter at the speed of the split; "present
    value", y_t scaled down; "mean", which is 0.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`; `length` is that of speed 1.
        speed: s of the test split, 1/16 to 16.
        scaled: whether `dt_scale` passes s to the layers.
        exponent: of the covariance, in [0, 2].
        noise: variance of the noise at speed 1, 1e-4 to 1e4.
    """

    name = "powerlaw-warp"
    task = "regression"
    d_input = d_target = 1
    per_position = causal = True

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 100,
        n_test: int = 400,
        length: int = 1024,
        seed: int = 0,
        speed: float = 1.0,
        scaled: bool = True,
        exponent: float = 0.4,
        noise: float = 1.0,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_real(self.name, "speed", speed, is_real(speed) and 1 / 16 <= speed <= 16, "1/16 <= speed <= 16")
        check_real(self.name, "exponent", exponent, is_real(exponent) and 0 <= exponent <= 2, "0 <= exponent <= 2")
        check_real(self.name, "noise", noise, is_real(noise) and 1e-4 <= noise <= 1e4, "1e-4 <= noise <= 1e4")
        check_flags(self.name, scaled=scaled)
        self.speed, self.scaled, self.exponent, self.noise = float(speed), scaled, float(exponent), float(noise)
        self.lengths = {"train": length, "val": length, "test": round(length / self.speed)}
        if self.lengths["test"] < 2:
            raise UsageError(
                f"powerlaw-warp leaves {self.lengths['test']} steps of a test sample at speed={speed} and "
                f"length={length}. Set dataset.length to at least {2 * math.ceil(speed)}."
            )
        if self.lengths["test"] > MOST_DENSE:
            raise UsageError(
                f"powerlaw-warp has test samples of {self.lengths['test']:,} steps at speed={speed}, length={length}; "
                f"the optimum is a dense solve of at most {MOST_DENSE:,}. Set dataset.length to at most "
                f"{int(MOST_DENSE * self.speed)}."
            )
        self.l_max = max(self.lengths.values())
        self._signal = Relaxations.power_law(self.exponent, 1.0, 1000.0, 12)
        self._signals = {split: self._signal.at_speed(self.speed_of(split)) for split in self.lengths}

    def speed_of(self, split: str) -> float:
        """Units of time per step of a split."""
        return self.speed if split == "test" else 1.0

    def dt_scale(self, name: str) -> float:
        """See the base class."""
        return self.speed_of(name) if self.scaled else 1.0

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The noisy y and the signal x."""
        x = self._signals[split].sample(rng, self.lengths[split])
        y = x + math.sqrt(self.noise / self.speed_of(split)) * rng.standard_normal(len(x))
        return y.astype(np.float32)[:, None], x.astype(np.float32)[:, None]

    def reference(self) -> dict[str, float]:
        """Reference scores; see the class."""
        y, x = (array[:, :, 0] for array in arrays_of_test(self))
        noise = self.noise / self.speed
        best = WienerFilter(self._signals["test"], noise, self.lengths["test"])
        return {
            "optimal": squared_error(best.estimate(y), x),
            "optimal, expected": float(best.mse.mean()),
            "present value": squared_error(y / (1.0 + noise), x),
            "mean": squared_error(0.0, x),
        }

    def _parameters(self) -> dict[str, Any]:
        # `scaled` is left out: it changes the step of the layers, not the samples.
        return {"speed": self.speed, "exponent": self.exponent, "noise": self.noise, "lengths": self.lengths}
