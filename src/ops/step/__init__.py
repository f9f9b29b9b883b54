"""One step of a discretised system in one native call."""

from __future__ import annotations

from .interface import AT_TIME_BATCH, MIMO_BATCH, MIMOStep, NativeStep, SISOStep, available, unobserved

__all__ = ["AT_TIME_BATCH", "MIMO_BATCH", "MIMOStep", "NativeStep", "SISOStep", "available", "unobserved"]
