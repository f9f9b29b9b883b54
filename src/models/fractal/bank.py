"""The filter bank: K measures, K alphas and the K blocks that start from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import UsageError
from .alpha import Node, initial_alphas
from .init import Block, Measure, parse_measure
from .real_parts import Real, decay_rates, repeated

MeasureNode = str | Mapping[str, Any]


def parse_measures(measure: MeasureNode | Sequence[MeasureNode], imag: str, n_alphas: int) -> tuple[Measure, ...]:
    """The measures of the K blocks, from one measure for all blocks or a list (a mixed bank) that is repeated to K.

    Raises:
        UsageError: the length of the list does not divide K, or see `parse_measure`.
    """
    if isinstance(measure, str) or not isinstance(measure, Sequence):
        return (parse_measure(measure, imag),) * n_alphas
    return tuple(parse_measure(entry, imag) for entry in repeated("measure", measure, n_alphas))


def starting_alphas(measure: Measure, order: int, n_alphas: int, alpha: Node | None) -> np.ndarray | None:
    """Convert a layer's `alpha` option to K alphas.

    Args:
        measure: the layer's measure.
        order: order of a block's operator.
        n_alphas: K.
        alpha: as for `initial_alphas`; None is linspace from 0 to 0.9 (from 0.05 where 0 cannot be diagonalised).
    Returns:
        (K,) float64 in [0, 1), or None for a measure without alpha.
    Raises:
        UsageError: an alpha given for a measure that has none, or an error of `initial_alphas`.
    """
    if not measure.takes_alpha:
        if alpha is not None:
            raise UsageError(f"The measure '{measure.name}' has no alpha, so alpha={alpha!r} would change nothing.")
        return None
    if alpha is None:
        alpha = {"name": "linspace", "low": measure.lowest_default_alpha(order)}
    return initial_alphas(alpha, n_alphas)


def alphas_of_blocks(
    measures: Sequence[Measure], orders: Sequence[int], alpha: Node | None
) -> tuple[float | None, ...]:
    """The alpha of each block of a bank, None for a block whose measure has none.

    If `alpha` is None, each measure has its own default bank over its blocks. Otherwise the option gives the alphas of
    all blocks whose measure has one, in their order.

    Raises:
        UsageError: see `starting_alphas`.
    """
    if alpha is None:
        groups = [[k for k, other in enumerate(measures) if other == measure] for measure in _distinct(measures)]
    else:
        # If no block has an alpha, `starting_alphas` raises the error for the first one.
        groups = [[k for k, measure in enumerate(measures) if measure.takes_alpha] or [0]]
    found: list[float | None] = [None] * len(measures)
    for group in groups:
        values = starting_alphas(measures[group[0]], orders[group[0]], len(group), alpha)
        for k, value in zip(group, [None] * len(group) if values is None else values.tolist(), strict=True):
            found[k] = value
    return tuple(found)


def _distinct(measures: Sequence[Measure]) -> list[Measure]:
    # Not a set: a measure holds a mapping of options and cannot be hashed.
    return [measure for k, measure in enumerate(measures) if measure not in measures[:k]]


def build_bank(
    measures: Sequence[Measure],
    orders: Sequence[int],
    alphas: Sequence[float | None],
    real: Real | Sequence[Real] = "own",
    B_scale: str = "rms",
) -> list[Block]:
    """The K blocks of a layer, each of its own measure, order and alpha; equal blocks are computed once.

    Raises:
        UsageError: see `Measure.block` and `decay_rates`.
    """
    made: dict[tuple[int, int, float | None], Block] = {}
    blocks = []
    for measure, order, alpha in zip(measures, orders, alphas, strict=True):
        key = measures.index(measure), order, alpha
        if key not in made:
            made[key] = measure.block(order, alpha, B_scale)
        blocks.append(made[key])
    if isinstance(real, str) and real == "own":
        return blocks
    rates = decay_rates(real, [-block.Lambda.real for block in blocks], alphas)
    return [replace(block, Lambda=-rate + 1j * block.Lambda.imag) for block, rate in zip(blocks, rates, strict=True)]
