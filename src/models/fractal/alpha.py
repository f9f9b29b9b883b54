"""Starting values of the singularity indices alpha of a filter bank: functions K -> K numbers in [0, 1).

To add a recipe, register a function of K and named options with @register_alpha. It may return any array of K numbers
in [0, 1), sorted or not, repeated or not. Block k of the layer gets alpha[k].
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import UsageError
from ...registry import alphas, register_alpha

Node = str | float | Mapping[str, Any] | Sequence[float]


def initial_alphas(alpha: Node, K: int) -> np.ndarray:
    """Convert an `alpha` option to K starting values.

    Args:
        alpha: a registered name ("linspace"), a node with options ({"name": "linspace", "high": 0.8}), one number
            for every block, or a list of K numbers.
        K: number of blocks, >= 1.
    Returns:
        (K,) float64 in [0, 1).
    Raises:
        UsageError: unknown name or option, a wrong count, or a value outside [0, 1), which the message repeats.
    >>> initial_alphas({"name": "linspace", "high": 0.9}, 4).round(2).tolist()
    [0.0, 0.3, 0.6, 0.9]
    """
    node = _as_node(alpha)
    values = _as_numbers(alphas.build(node, K=K), node)
    if values.ndim != 1:
        raise UsageError(f"alpha {node} gives an array of shape {values.shape} for {K} blocks. Return shape ({K},).")
    if values.shape != (K,):
        raise UsageError(
            f"alpha {node} gives {values.size} value(s) for {K} blocks. Give as many as n_alphas, or change n_alphas."
        )
    outside = ~((values >= 0) & (values < 1))
    if outside.any():
        given = ", ".join(f"{value:g}" for value in np.unique(values[outside]))
        raise UsageError(
            f"alpha must lie in [0, 1), got {given} from {dict(node)}. "
            f"0 is HiPPO-LegS; values toward 1 stress the present."
        )
    return values


def _as_numbers(values: Any, node: Mapping[str, Any]) -> np.ndarray:
    """Convert a recipe's result to float64: an array, a tensor, a list or anything else that numpy reads as real."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    except (TypeError, ValueError):
        array = np.empty((), dtype=object)
    if array.dtype.kind not in "iuf":
        raise UsageError(
            f"alpha {node} gives {type(values).__name__} {str(values)[:60]!r}. A recipe returns an array of numbers in "
            f"[0, 1), one a block."
        )
    return array.astype(np.float64)


def _as_node(alpha: Node) -> Mapping[str, Any]:
    if isinstance(alpha, str):
        return {"name": alpha}
    if isinstance(alpha, Mapping):
        return alpha
    if isinstance(alpha, numbers.Real) and not isinstance(alpha, bool):
        return {"name": "constant", "value": alpha}
    if isinstance(alpha, (Sequence, np.ndarray)):
        return {"name": "list", "values": [_number(value) for value in alpha]}
    raise UsageError(
        f"alpha is a name, a mapping with a name, a number or a list of numbers, got {alpha!r}. "
        f"Known names: {', '.join(alphas.names())}."
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UsageError(f"alpha takes numbers in [0, 1), got {value!r}.")
    return float(value)


@register_alpha("linspace")
def linspace(K: int, low: float = 0.0, high: float = 0.9) -> np.ndarray:
    """K equally spaced values from low to high, both included: the filter bank of the paper. K = 1 gives low."""
    return np.linspace(_number(low), _number(high), K)


@register_alpha("constant")
def constant(K: int, value: float = 0.5) -> np.ndarray:
    """The same alpha in every block: the paper's "one alpha for all"; 0 is its LegS ablation."""
    return np.full(K, _number(value))


@register_alpha("geometric-damping")
def geometric_damping(K: int, low: float = 0.0, high: float = 0.9) -> np.ndarray:
    """Values from low to high with 1 - alpha in geometric progression. K = 1 gives low.

    The damping (1 - alpha) / 2 of `fractional-normal` is then spaced by factors, as time scales are.
    """
    low, high = _number(low), _number(high)
    for name, value in (("low", low), ("high", high)):
        if not 0 <= value < 1:
            raise UsageError(f"alpha geometric-damping takes {name} in [0, 1), got {value:g}.")
    return 1.0 - np.geomspace(1.0 - low, 1.0 - high, K)


@register_alpha("chebyshev")
def chebyshev(K: int, low: float = 0.0, high: float = 0.9) -> np.ndarray:
    """Chebyshev points of [low, high], ascending: denser toward both ends, neither included."""
    low, high = _number(low), _number(high)
    points = np.cos(np.pi * (2 * np.arange(K) + 1) / (2 * K))
    return 0.5 * (low + high) - 0.5 * (high - low) * points


@register_alpha("list")
def listed(K: int, values: Sequence[float]) -> np.ndarray:
    """The listed values, one a block."""
    return np.array([_number(value) for value in values])


@register_alpha("uniform")
def uniform(K: int, low: float = 0.0, high: float = 0.9) -> np.ndarray:
    """Independent uniform draws from [low, high), ascending; torch's seed decides them."""
    low, high = _number(low), _number(high)
    return low + (high - low) * np.sort(torch.rand(K, dtype=torch.float64, device="cpu").numpy())
