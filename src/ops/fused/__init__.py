"""Layers' inner loops done in one operator: what a layer runs, with nothing of size (B, L, H, P) in memory."""

from __future__ import annotations

from .ssm import ssm

__all__ = ["ssm"]
