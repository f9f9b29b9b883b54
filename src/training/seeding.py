"""Random numbers that depend on the seed and the place in the run, not on earlier draws."""

from __future__ import annotations

import random
import zlib

import numpy as np
import torch


def derived_seed(seed: int, *path: str | int) -> int:
    """A seed in 0..2**31-1 derived from the run's seed and a path; different paths give independent streams.

    >>> derived_seed(0, "order", 1) == derived_seed(0, "order", 2)
    False
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1)[0] >> 1)


def seed_all(seed: int, *path: str | int) -> None:
    """Seed Python, numpy and torch (CPU and GPUs) from the run's seed and a path."""
    derived = derived_seed(seed, *path)
    random.seed(derived)
    np.random.seed(derived)  # noqa: NPY002 (what plug-ins may draw from)
    torch.manual_seed(derived)
