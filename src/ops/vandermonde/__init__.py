"""Sums over powers: the kernels of diagonal systems, and what they sum sequences to."""

from __future__ import annotations

from .interface import tiles_in_blocks, vandermonde, vandermonde_sum

__all__ = ["tiles_in_blocks", "vandermonde", "vandermonde_sum"]
