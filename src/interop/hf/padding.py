"""Converts attention masks of transformers, padded on the left or the right, to sequences with lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UsageError


class Padding:
    """The shift of each sample of a batch, and its number of valid positions.

    Args:
        mask: (B, L), nonzero where a position is valid; each sample has at least one valid position, and no gaps.
    """

    def __init__(self, mask: Tensor):
        valid = mask != 0
        self.lengths = valid.sum(1)
        self._first = valid.int().argmax(1)
        self._positions = torch.arange(mask.shape[1], device=mask.device)
        expected = (self._positions >= self._first[:, None]) & (self._positions < (self._first + self.lengths)[:, None])
        if not torch.compiler.is_compiling() and not bool((valid == expected).all() & (self.lengths > 0).all()):
            raise UsageError(
                f"attention_mask marks no position of a sample, or leaves a gap, in a mask of shape "
                f"{tuple(mask.shape)}. Pad on the left or on the right, tokenizer(..., padding=True)."
            )

    def to_front(self, x: Tensor) -> Tensor:
        """(B, L, ...) with each sample's valid positions first."""
        return _gathered(x, (self._positions + self._first[:, None]) % x.shape[1])

    def back(self, x: Tensor) -> Tensor:
        """The inverse of `to_front`."""
        return _gathered(x, (self._positions - self._first[:, None]) % x.shape[1])


def _gathered(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(len(x), device=x.device)[:, None], index]
