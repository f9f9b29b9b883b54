"""DSS: diagonal state spaces with a softmax kernel (arXiv 2203.14343)."""

from .layer import DSS

__all__ = ["DSS"]
