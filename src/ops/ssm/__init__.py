"""The inner loop of a layer as one operator, without a tensor of size (B, L, H, P) in memory."""

from __future__ import annotations

from .bidirectional import bidirectional_ssm
from .interface import ssm
from .packed import packed_ssm

__all__ = ["bidirectional_ssm", "packed_ssm", "ssm"]
