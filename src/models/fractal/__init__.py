"""FRACTAL: fractional HiPPO memories as a state space layer (arXiv 2605.08833)."""

from .conv import FractalConv
from .layer import Fractal

__all__ = ["Fractal", "FractalConv"]
