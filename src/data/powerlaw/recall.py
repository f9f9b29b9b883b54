"""Recall of the past at every scale, with queries at heavy-tailed delays."""

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
    """Was the mean over the window from 2 D - 1 to D steps ago positive? Asked `queries` times a sample.

    Channel 0 is white noise of variance 1. A 1 in channel 1 + k is a question about D = 2^k. The delays have a
    truncated Pareto law, P(D >= 2^k) proportional to 2^(-tail k) - 2^(-tail scales), and the window is as long as the
    delay. Questions come in the second half, where every window lies inside the sample. A layer whose kernel has the
    correlation c with a window answers 1 - arccos(c) / pi of the questions about it correctly.

    `reference()` scores on the test split: "optimal" is 1; "memory of n steps" answers the questions whose window lies
    in the last n + 1 values and guesses the rest.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, seed: see `GeneratedData`.
        length: steps of a sample, at least 2^(scales + 1).
        scales: number of delays, 1 to 16.
        tail: exponent of the delays in [0, 5]; 0 makes all scales equally frequent.
        queries: questions per sample, 1 to length / 2, at positions drawn without repetition.
    """

    name = "powerlaw-recall"
    task = "tokens"
    n_classes = 2
    causal = True
    _MEMORIES = (15, 63, 255)

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 16_000,
        n_val: int = 100,
        n_test: int = 400,
        length: int = 1024,
        seed: int = 0,
        scales: int = 9,
        tail: float = 0.25,
        queries: int = 128,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_required(1, self.name, "delays", 16, scales=scales)
        check_required(2 ** (scales + 1), self.name, "2^(scales + 1)", length=length)
        check_real(self.name, "tail", tail, is_real(tail) and 0.0 <= tail <= 5.0, "0 <= tail <= 5")
        check_required(1, self.name, "questions", length // 2, queries=queries)
        self.scales, self.tail, self.queries = scales, float(tail), queries
        self.d_input = 1 + scales

    def shares(self) -> np.ndarray:
        """(scales,) probability of each delay."""
        beyond = np.append(2.0 ** (-self.tail * np.arange(self.scales)), 2.0 ** (-self.tail * self.scales))
        shares = -np.diff(beyond) if self.tail > 0.0 else np.ones(self.scales)
        return shares / shares.sum()

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise and questions, and the answers at their positions."""
        half = self.l_max // 2
        x = np.zeros((self.l_max, self.d_input), dtype=np.float32)
        x[:, 0] = rng.standard_normal(self.l_max)
        places = self.l_max - half + rng.choice(half, self.queries, replace=False)
        asked = rng.choice(self.scales, self.queries, p=self.shares())
        x[places, 1 + asked] = 1.0
        totals = np.concatenate([[0.0], np.cumsum(x[:, 0], dtype=np.float64)])
        delays = 2**asked
        # Values at places - 2 D + 1 .. places - D.
        windows = totals[places - delays + 1] - totals[places - 2 * delays + 1]
        targets = np.full(self.l_max, IGNORED, dtype=np.int64)
        targets[places] = windows > 0.0
        return x, targets

    def delays(self, x: np.ndarray) -> np.ndarray:
        """(n, L) delay D of the question at each position of inputs (n, L, d_input); 0 where there is none."""
        return (x[:, :, 1:] * 2.0 ** np.arange(self.scales)).sum(axis=2).astype(np.int64)

    def reference(self) -> dict[str, float]:
        """Reference scores; see the class."""
        split = self.split("test")
        asked = self.delays(np.stack([split[index][0] for index in range(len(split))]))
        asked = asked[asked > 0]
        known = {f"memory of {n} steps": 0.5 + 0.5 * float((2 * asked - 1 <= n).mean()) for n in self._MEMORIES}
        return {"optimal": 1.0, **known}

    def _parameters(self) -> dict[str, Any]:
        return {"scales": self.scales, "tail": self.tail, "queries": self.queries}
