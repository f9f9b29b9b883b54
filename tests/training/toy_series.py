"""Datasets with targets that are numbers, or classes at every position; registered by being imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fractal_ssm import register_dataset
from fractal_ssm.data.base import IGNORED, SequenceData

# x_t = PHI x_{t-1} + e_t, e ~ N(0, 1): the best forecast of the next value is PHI x_t, with a squared error of 1.
PHI = 0.8


@register_dataset("toy-series")
class ToySeries(SequenceData):
    """Forecast the next value at every position of an AR(1) process, or the one after the whole sequence.

    The second channel of d_target=2 is minus twice the first.
    """

    task, d_input, l_max, causal = "regression", 1, 16, True

    def __init__(
        self, data_dir: Path, per_position: bool = True, d_target: int = 1, missing: float = 0.0, n_train: int = 64
    ):
        self.per_position, self.d_target, self._missing = per_position, d_target, missing
        self._counts = {"train": n_train, "val": 21, "test": 21}

    def prepare(self) -> None:
        pass

    def split(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        random = np.random.default_rng(list(self._counts).index(name))
        return [self._sample(random) for _ in range(self._counts[name])]

    def _sample(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        length = random.integers(5, self.l_max + 1)
        x = np.empty(length + 1)
        x[0] = random.normal() / np.sqrt(1 - PHI**2)
        for t in range(length):
            x[t + 1] = PHI * x[t] + random.normal()
        y = np.stack([x[1:], -2 * x[1:]], axis=-1)[:, : self.d_target]
        y = np.where(random.random(y.shape) < self._missing, np.nan, y)
        return x[:-1, None].astype(np.float32), y if self.per_position else y[-1]

    def reference(self) -> dict[str, float]:
        return {"optimal": float(np.mean([1.0, 4.0][: self.d_target]))}

    def describe(self) -> dict[str, Any]:
        return {"name": "toy-series", "source": "generated", "lra": False, "counts": self._counts, "checksum": "none"}


@register_dataset("toy-tags")
class ToyTags(ToySeries):
    """Tag every token of 1 and 2 by whether it equals the one before; the first is not scored."""

    task, d_input, n_tokens, n_classes, d_target = "tokens", None, 3, 2, None

    def __init__(self, data_dir: Path, n_train: int = 64):
        super().__init__(data_dir, d_target=None, n_train=n_train)

    def _sample(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = random.integers(1, 3, size=random.integers(5, self.l_max + 1))
        y = np.concatenate([[IGNORED], x[1:] == x[:-1]])
        return x, y

    def reference(self) -> dict[str, float]:
        return {}
