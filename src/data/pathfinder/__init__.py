"""Pathfinder and Path-X: the generator, the release's files, and the datasets."""

from .dataset import PathX, Pathfinder

__all__ = ["PathX", "Pathfinder"]
