"""LRU: a diagonal recurrence in discrete time (Orvieto et al. 2023, arXiv 2303.06349)."""

from .layer import LRU

__all__ = ["LRU"]
