"""S5: one MIMO diagonal system run by a parallel scan (Smith, Warrington, Linderman 2023, arXiv 2208.04933)."""

from .layer import S5

__all__ = ["S5"]
