"""Generated tasks with power-law memory, whose best possible score is known; not part of LRA."""

from . import denoise, hurst, predict, recall, transients, warp

__all__ = ["denoise", "hurst", "predict", "recall", "transients", "warp"]
