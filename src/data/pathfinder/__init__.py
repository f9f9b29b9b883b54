"""Pathfinder and Path-X: the generator, the release's files, and the datasets."""

from .dataset import Pathfinder, PathX

__all__ = ["PathX", "Pathfinder"]
