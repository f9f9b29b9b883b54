"""Samples that lie in memory-mapped arrays of a cache folder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from .base import Gathered
from .cache import load_array


class MappedDataset(Dataset):
    """Samples of a cache folder with `labels.npy`.

    Pickles as a path, so that spawned workers map the files instead of receiving a copy: attributes that begin with an
    underscore are not pickled but opened again.

    Args:
        folder: of the cache.
        indices: of the samples, in order.
    """

    def __init__(self, folder: Path, indices: Sequence[int] | np.ndarray):
        self.folder, self.indices = Path(folder), np.asarray(indices)
        self._open()

    def _open(self) -> None:
        """Map the files; called again when the dataset is unpickled."""
        self._labels = np.array(self._array("labels"))

    def _array(self, name: str) -> np.ndarray:
        return load_array(self.folder, name)

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def labels(self) -> np.ndarray:
        """(n,) label of every sample."""
        return self._labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)


class FixedLength(MappedDataset):
    """Samples of one length: a batch is gathered in one step, and a sample is a batch of one."""

    @abstractmethod
    def _gather(self, samples: np.ndarray) -> np.ndarray:
        """Sequences, (n, L, C) float32 or (n, L) ids, at these indices into the cache."""

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """Gather a batch; data loaders call this in place of fetching single samples."""
        samples = self.indices[indices]
        return Gathered(self._gather(samples), self._labels[samples])

    def __getitem__(self, index: int):
        sequences, labels = self.__getitems__([index])
        return sequences[0], int(labels[0])
