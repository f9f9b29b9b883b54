"""Helpers of the tasks: the process of a given exponent, samples as arrays, and the error of an estimate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import unknown
from ...processes import Arfima, FractionalNoise, StationaryGaussian
from ...processes.prediction import MOST_DENSE
from ..drawn import LEAST_STEPS, DrawnData
from ..options import check_real, check_required, is_real

# Name -> the process of memory d and variance 1.
PROCESSES: dict[str, Callable[[float], StationaryGaussian]] = {
    "arfima": lambda d: Arfima.with_variance(1.0, d),
    "fgn": lambda d: FractionalNoise(d + 0.5),
}


def check_memory(name: str, d: float) -> None:
    """Refuse an exponent outside (-1/2, 1/2)."""
    check_real(name, "d", d, is_real(d) and -0.5 < d < 0.5, "-0.5 < d < 0.5")


def process_of(name: str, kind: str, d: float) -> StationaryGaussian:
    """The process of a task, of memory d and variance 1.

    Args:
        name: of the dataset, for messages.
        kind: "arfima", or "fgn" with H = d + 1/2.
    Raises:
        UsageError: another kind, or d outside (-1/2, 1/2).
    """
    check_memory(name, d)
    if not isinstance(kind, str) or kind not in PROCESSES:
        raise unknown(f"dataset.process of {name}", str(kind), PROCESSES)
    return PROCESSES[kind](float(d))


def check_dense_length(name: str, length: int, beyond: int = 0) -> None:
    """Refuse a length of which the optimum, a dense solve of `length + beyond` steps, is out of reach."""
    hint = f"the optimum is a dense solve of at most {MOST_DENSE:,} steps"
    check_required(LEAST_STEPS, name, hint, MOST_DENSE - beyond, length=length)


def arrays_of_test(data: DrawnData) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, L, d_input) and targets (n, ...) of the whole test split, as the model gets them, in float64."""
    inputs, targets = zip(*(data.split("test")[index] for index in range(data.n_samples["test"])), strict=True)
    return np.stack(inputs).astype(np.float64), np.asarray(np.stack(targets), dtype=np.float64)


def squared_error(estimate: np.ndarray | float, target: np.ndarray) -> float:
    """Mean squared error over all samples and positions."""
    return float(np.mean((estimate - target) ** 2))
