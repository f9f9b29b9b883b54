"""Elementwise functions of the blocks: torch's, or on the CPU ones that take fewer passes over memory.

torch's tanh GELU is five times as slow as memory there, and each product, sigmoid and gradient is a pass of its own.
"""

from __future__ import annotations

from .functions import gated, gelu_tanh, glu, passes_fit
from .norm import batch_norm

__all__ = ["batch_norm", "gated", "gelu_tanh", "glu", "passes_fit"]
