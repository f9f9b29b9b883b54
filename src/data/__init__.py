"""Datasets: importing this package registers the built-in ones."""

from . import listops

__all__ = ["listops"]
