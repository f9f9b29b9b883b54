"""Images and sounds of one size as sequences: one memory-mapped array, scaled when a sample is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset


class PixelSequences(Dataset):
    """Samples (sequence, label) of `pixels.npy`, (n, L, C) uint8, and `labels.npy` in a cache folder.

    Pickles as a path, so workers that are spawned map the file instead of receiving a copy.

    Args:
        folder: of the cache.
        indices: of the samples, in order.
        mean, std: per channel, of pixels scaled to 0..1; the sample is then float32 (L, C). Without them the sample is
            the token ids (L,) of the single channel.
        order: (M,) positions to take, in this order; None takes all.
    """

    def __init__(
        self,
        folder: Path,
        indices: np.ndarray,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        order: np.ndarray | None = None,
    ):
        self.folder, self.indices, self.mean, self.std, self.order = Path(folder), indices, mean, std, order
        self._open()

    def _open(self) -> None:
        self._pixels = np.load(self.folder / "pixels.npy", mmap_mode="r")
        self._labels = np.load(self.folder / "labels.npy")
        if self.mean is not None:
            # One value per byte and channel: the scaling is then a look-up, the same bits on every machine.
            levels = np.arange(256)[:, None] / 255
            self._table = ((levels - np.asarray(self.mean)) / np.asarray(self.std)).astype(np.float32)

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int):
        sample = self.indices[index]
        pixels = np.array(self._pixels[sample])
        if self.order is not None:
            pixels = pixels[self.order]
        label = int(self._labels[sample])
        if self.mean is None:
            return pixels[:, 0], label
        return self._table[pixels, np.arange(pixels.shape[1])], label
