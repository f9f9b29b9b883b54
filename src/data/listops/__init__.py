"""ListOps: the benchmark's generator, the release's text layout, and the dataset."""

from .dataset import ListOps

__all__ = ["ListOps"]
