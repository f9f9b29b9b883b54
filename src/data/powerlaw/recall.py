"""Recall of one marked sign after delays with a heavy tail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...registry import register_dataset
from ..base import IGNORED
from ..drawn import DrawnData
from ..options import check_real, check_required, is_real


@register_dataset("powerlaw-recall")
class PowerlawRecall(DrawnData):
    """What was the marked sign? Asked `queries` times in every sample, after delays that mostly are short.

    Channel 0 is a fair sign (1 or -1) at every step, channel 1 is 1 at one step in the first quarter and 0 elsewhere. A
    delay D is drawn from P(D > k) proportional to k^(-tail) - longest^(-tail), k >= 1, so that every scale up to
    3/4 of the length is asked for. Nothing in the input says when a question comes. The classes are 1 for a positive
    sign and 0.

    `reference()` scores on the test split: "optimal" is 1; "memory of k steps" knows the sign for k steps and guesses
    from then on.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`.
        tail: exponent of the delays in [0.05, 5]; the smaller, the more long ones.
        queries: questions a sample, 1 to 256; two with the same delay count once.
    """

    name = "powerlaw-recall"
    task = "tokens"
    d_input = n_classes = 2
    causal = True
    _MEMORIES = (16, 64, 256)

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 200,
        n_test: int = 1_000,
        length: int = 1024,
        seed: int = 0,
        tail: float = 0.3,
        queries: int = 16,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_real(self.name, "tail", tail, is_real(tail) and 0.05 <= tail <= 5.0, "0.05 <= tail <= 5")
        check_required(1, self.name, "questions", 256, queries=queries)
        self.tail, self.queries = float(tail), queries

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Signs and mark, and the class at the positions that are asked."""
        signs = rng.choice([-1.0, 1.0], self.l_max)
        place = int(rng.integers(self.l_max // 4))
        x = np.zeros((self.l_max, 2), dtype=np.float32)
        x[:, 0], x[place, 1] = signs, 1.0
        longest = self.l_max - self.l_max // 4
        # Inverse of the truncated law: continuous, then rounded down.
        share = rng.random(self.queries) * (1.0 - longest**-self.tail)
        delays = np.minimum((1.0 - share) ** (-1.0 / self.tail), longest).astype(np.int64)
        targets = np.full(self.l_max, IGNORED, dtype=np.int64)
        targets[place + delays] = int(signs[place] > 0)
        return x, targets

    def delays(self, x: np.ndarray) -> np.ndarray:
        """(n, L) steps since the mark of inputs (n, L, 2); negative before it."""
        return np.arange(x.shape[1]) - x[:, :, 1].argmax(axis=1)[:, None]

    def reference(self) -> dict[str, float]:
        """See the class."""
        split = self.split("test")
        samples = [split[index] for index in range(len(split))]
        x, y = (np.stack(part) for part in zip(*samples, strict=True))
        asked = self.delays(x)[y != IGNORED]
        known = {f"memory of {k} steps": 0.5 + 0.5 * float((asked <= k).mean()) for k in self._MEMORIES}
        return {"optimal": 1.0, **known}

    def _parameters(self) -> dict[str, Any]:
        return {"tail": self.tail, "queries": self.queries}
