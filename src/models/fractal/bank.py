"""The filter bank: K alphas and the K blocks that start from them."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from .alpha import Node, initial_alphas
from .init import Block, Measure


def starting_alphas(measure: Measure, order: int, n_alphas: int, alpha: Node | None) -> np.ndarray | None:
    """The K alphas that a layer's `alpha` option stands for.

    Args:
        measure: the layer's measure.
        order: order of a block's operator.
        n_alphas: K.
        alpha: as for `initial_alphas`; None is linspace from 0 to 0.9 (from 0.05 where 0 cannot be diagonalised).
    Returns:
        (K,) float64 in [0, 1), or None for a measure without alpha.
    Raises:
        UsageError: an alpha for a measure that has none, or one that `initial_alphas` refuses.
    """
    if not measure.takes_alpha:
        if alpha is not None:
            raise UsageError(f"The measure '{measure.name}' has no alpha, so alpha={alpha!r} would change nothing.")
        return None
    if alpha is None:
        alpha = {"name": "linspace", "low": measure.lowest_default_alpha(order)}
    return initial_alphas(alpha, n_alphas)


def filter_bank(measure: Measure, order: int, n_alphas: int, alphas: np.ndarray | None) -> list[Block]:
    """The K blocks, one an alpha; K equal blocks of a measure without alpha.

    Raises:
        UsageError: see `Measure.block`.
    """
    if alphas is None:
        return [measure.block(order, None)] * n_alphas
    return [measure.block(order, float(alpha)) for alpha in alphas]
