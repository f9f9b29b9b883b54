"""Prediction of a process with long memory, compared with the best predictor from the same finite past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...processes import Arfima, OptimalPredictor, ShortPredictor, innovation_variance, wold
from ...registry import register_dataset
from ..drawn import DrawnData
from ..options import check_required
from .common import arrays_of_test, check_dense_length, process_of, squared_error

_ORDERS = (1, 2, 8, 32)


@register_dataset("powerlaw-predict")
class PowerlawPredict(DrawnData):
    """Predict x_{t+h} from x_0 .. x_t at every position t; the process has variance 1.

    The past of position t is finite, so the optimum is the average of the optimum of each position. `reference()`
    scores on the test split: "optimal", the best predictor from x_0 .. x_t; "AR(p)", the best from the last p values;
    "last value"; "mean", which is 0. "optimal, expected" is the expectation of the first over all samples, and
    "infinite past, expected" the lower bound for a past of any length (for h = 1 the innovation variance).

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`.
        process: "arfima" (0, d, 0), or "fgn", fractional Gaussian noise of H = d + 1/2.
        d: memory in (-1/2, 1/2); 0 is white noise, which cannot be predicted.
        horizon: h, 1 to 4,096.
    """

    name = "powerlaw-predict"
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
        process: str = "arfima",
        d: float = 0.4,
        horizon: int = 1,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_required(1, self.name, "steps ahead", 4096, horizon=horizon)
        check_dense_length(self.name, length, beyond=horizon)
        self.process = process_of(self.name, process, d)
        self.horizon, self._kind, self._d = horizon, process, float(d)

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """x_0 .. x_{L-1} and x_h .. x_{L-1+h}."""
        x = self.process.sample(rng, self.l_max + self.horizon).astype(np.float32)[:, None]
        return x[: self.l_max], x[self.horizon :]

    def reference(self) -> dict[str, float]:
        """Reference scores; see the class."""
        x, y = (array[:, :, 0] for array in arrays_of_test(self))
        best = OptimalPredictor(self.process, self.l_max, self.horizon)
        short = {f"AR({p})": ShortPredictor(self.process, p, self.horizon) for p in _ORDERS if p <= self.l_max}
        return {
            "optimal": squared_error(best.predict(x), y),
            "optimal, expected": float(best.mse.mean()),
            "infinite past, expected": self._infinite_past(),
            **{name: squared_error(predictor.predict(x), y) for name, predictor in short.items()},
            "last value": squared_error(x, y),
            "mean": squared_error(0.0, y),
        }

    def _infinite_past(self) -> float:
        if isinstance(self.process, Arfima):
            weights = self.process.moving_average(self.horizon)
            return float(self.process.innovation * (weights**2).sum())
        return float(innovation_variance(self.process) * (wold(self.process, self.horizon) ** 2).sum())

    def _parameters(self) -> dict[str, Any]:
        return {"process": self._kind, "d": self._d, "horizon": self.horizon}
