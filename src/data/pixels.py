"""Images as sequences of pixels: one memory-mapped array of bytes, scaled when a batch is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .mapped import FixedLength


class PixelSequences(FixedLength):
    """Samples (sequence, label) of `pixels.npy`, (n, L, C) uint8, and `labels.npy` in a cache folder.

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
        self.mean, self.std, self.order = mean, std, order
        super().__init__(folder, indices)

    def _open(self) -> None:
        super()._open()
        self._pixels = self._array("pixels")
        if self.mean is not None:
            # One value per byte and channel: the scaling is then a look-up, the same bits on every machine.
            levels = np.arange(256) / 255
            channels = zip(self.mean, self.std, strict=True)
            self._levels = [((levels - mean) / std).astype(np.float32) for mean, std in channels]

    def _gather(self, samples: np.ndarray) -> np.ndarray:
        pixels = np.asarray(self._pixels)[samples]
        if self.order is not None:
            pixels = pixels[:, self.order]
        if self.mean is None:
            return pixels[:, :, 0]
        scaled = np.empty(pixels.shape, np.float32)
        for channel, levels in enumerate(self._levels):
            # "clip" because a byte is never out of range of 256 levels: the check would take longer than the look-up.
            levels.take(pixels[:, :, channel], out=scaled[:, :, channel], mode="clip")
        return scaled
