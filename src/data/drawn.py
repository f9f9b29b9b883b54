"""Generated data: the parameters and the seed determine every sample, and nothing is stored on disk."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from ..errors import unknown
from .base import SPLITS, SequenceData, label_shares
from .options import MOST_SAMPLES, check_required

LEAST_STEPS = 16


class GeneratedData(SequenceData):
    """Base class of generated data with real input.

    Args:
        n_train, n_val, n_test: number of samples.
        length: L of every sample, unless the class says otherwise.
        seed: of the samples.
    """

    name: ClassVar[str]

    def __init__(self, n_train: int, n_val: int, n_test: int, length: int, seed: int):
        check_required(1, self.name, "a sample at least", MOST_SAMPLES, n_train=n_train, n_val=n_val, n_test=n_test)
        check_required(LEAST_STEPS, self.name, "steps of a sample", length=length)
        check_required(0, self.name, "any", (1 << 63) - 1, seed=seed)
        self.l_max, self.seed = length, seed
        self.n_samples = {"train": n_train, "val": n_val, "test": n_test}

    def split(self, name: str) -> Dataset:
        """See the base class."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self._split(name)

    @abstractmethod
    def _split(self, name: str) -> Dataset:
        """Samples (x (L, d_input) float32, y) of a split whose name is valid."""

    def _labels(self, name: str) -> np.ndarray | None:
        """Class of each sample of a split, in order; None where samples have no class."""
        return None

    def describe(self) -> dict[str, Any]:
        """See the base class; the checksum is that of the parameters, which determine every sample."""
        parameters = {"name": self.name, "length": self.l_max, "seed": self.seed, "counts": self.n_samples}
        parameters |= self._parameters()
        checksum = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()
        labels = {name: self._labels(name) for name in SPLITS}
        shares = {name: label_shares(found, self.n_classes or 1) for name, found in labels.items() if found is not None}
        return {
            "name": self.name,
            "source": "generated",
            "lra": False,
            "path": None,
            "counts": dict(self.n_samples),
            "checksum": checksum,
            "split": "drawn apart",
            "split_fingerprint": checksum[:16],
            **({"label_shares": shares} if shares else {}),
        }

    def _parameters(self) -> dict[str, Any]:
        """Further parameters that determine the samples."""
        return {}


class DrawnData(GeneratedData):
    """Data whose samples are drawn on access; the arguments are those of `GeneratedData`."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, Any]:
        """One sample (x (L, d_input) float32, y), drawn with its own generator."""

    def prepare(self) -> None:
        """Nothing to do."""

    def _split(self, name: str) -> _Drawn:
        return _Drawn(self, name)


class _Drawn(Dataset):
    """Sample i is a function of the seed, the split and i."""

    def __init__(self, data: DrawnData, split: str):
        self.data, self.name, self.n = data, split, data.n_samples[split]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        if not 0 <= index < self.n:
            raise IndexError(index)
        rng = np.random.default_rng((self.data.seed, SPLITS.index(self.name), index))
        return self.data.sample(rng, self.name, index)
