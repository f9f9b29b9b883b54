"""Sums over poles: the Cauchy kernel of S4."""

from __future__ import annotations

from .interface import dplr_response

__all__ = ["dplr_response"]
