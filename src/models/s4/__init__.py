"""S4: state space layers whose matrix is a diagonal plus a low rank (arXiv 2111.00396)."""

from .layer import S4

__all__ = ["S4"]
