"""Tasks from the regime of power laws, whose best possible score is known. Generated; not part of LRA."""

from . import denoise, hurst, predict, recall, transients, warp

__all__ = ["denoise", "hurst", "predict", "recall", "transients", "warp"]
