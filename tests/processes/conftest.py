"""What the tests of processes share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def agrees():
    """agrees(draws, expected): whether the mean of independent draws (n, ...) is the expected one, in standard errors.

    Draws are seeded, so an outcome never changes; 4.5 standard errors leave room for some hundred numbers at once.
    """

    def check(draws: np.ndarray, expected: np.ndarray, within: float = 4.5) -> None:
        # Draws of a constant have only the error of rounding.
        error = np.maximum(draws.std(axis=0, ddof=1) / np.sqrt(len(draws)), 1e-12)
        off = np.abs(draws.mean(axis=0) - expected) / error
        assert np.all(off < within), f"off by up to {off.max():.1f} standard errors"

    return check
