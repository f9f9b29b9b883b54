"""Sequence layers and the model around them: importing this package registers the built-in layers."""

from . import dss, fractal, lru, s4, s4d, s5, transformer

__all__ = ["dss", "fractal", "lru", "s4", "s4d", "s5", "transformer"]
