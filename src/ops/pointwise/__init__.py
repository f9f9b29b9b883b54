"""Elementwise functions of the blocks: torch's, or on the CPU ones that take fewer passes over memory.

torch's tanh GELU is five times as slow as memory there, and each product, sigmoid and gradient is a pass of its own.
What did not pay is left to torch: its exact GELU, its GLU and its batch norm.
"""

from __future__ import annotations

from .interface import gated, gelu_tanh

__all__ = ["gated", "gelu_tanh"]
