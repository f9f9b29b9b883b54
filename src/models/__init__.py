"""Sequence layers and the model around them: importing this package registers the built-in layers."""

from . import transformer

__all__ = ["transformer"]
