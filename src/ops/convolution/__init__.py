"""Long convolutions along the sequence."""

from __future__ import annotations

from .interface import convolve, good_fft_size

__all__ = ["convolve", "good_fft_size"]
