"""Layers' inner loops done in one operator: what a layer runs, with nothing of size (B, L, H, P) in memory."""

from __future__ import annotations

from .ssm import ssm
from .two_way import two_way_ssm

__all__ = ["ssm", "two_way_ssm"]
