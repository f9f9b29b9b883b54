"""Sums over powers: the convolution kernels of diagonal systems, and the transposed sums over sequences."""

from __future__ import annotations

from .interface import tiles_in_blocks, vandermonde, vandermonde_sum

__all__ = ["tiles_in_blocks", "vandermonde", "vandermonde_sum"]
