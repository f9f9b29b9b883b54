"""Elementwise functions of model blocks: torch's own, or on the CPU compiled ones with fewer passes over memory.

On the CPU torch's tanh GELU takes five times as long as its memory traffic, and each product, sigmoid and gradient is a
separate pass. The exact GELU, GLU and batch norm stay with torch, where compiled passes were no faster.
"""

from __future__ import annotations

from .interface import gated, gelu_tanh

__all__ = ["gated", "gelu_tanh"]
