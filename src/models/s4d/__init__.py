"""S4D: diagonal state space layers with a kernel in closed form (arXiv 2206.11893)."""

from .layer import S4D

__all__ = ["S4D"]
