"""The linear recurrence x_k = a_k x_{k-1} + b_k."""

from __future__ import annotations

from .interface import scan

__all__ = ["scan"]
