"""Real parts of the modes: the paper's 1 .. R in every block, its other readings, and controls without any measure.

The option `real` of the layer replaces the decay rates -Re Lambda of the measure but not its frequencies or its
B_tilde. It takes one of these for all blocks, or a list of them that is repeated over the blocks:

    name                     rates of block k of R modes
    own                      those of the measure: 1 .. R for `fractional`, in every block
    whole-state              1 .. P over the whole state: block 0 has 1 .. R, block 1 starts at R + 1
    unit-mean                own / mean(own): the same ratios at a mean rate of 1
    constant                 `value`, 1/2 by default; a bare number is shorthand for it
    normal-part              (1 + alpha_k) / 2, of the normal part of the paper's operator
    exact-normal-part        (1 - alpha_k) / 2, of the normal part of tau and galerkin
    linear, geometric        from `low` to `high` in equal steps or ratios, over the blocks (over="blocks", one rate for
                             all modes of a block) or over the modes of every block (over="modes")
    random                   log-uniform between `low` and `high`, one draw a block or a mode, torch's seed

Source: arXiv 2605.08833 says "1 .. N" without saying of what; the rest are readings and controls of this project.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import UsageError
from ...registry import check_names
from ..options import check_choice, check_numbers

Real = str | float | Mapping[str, Any]
Rates = list[np.ndarray]

# The layer clips -Re Lambda at this value, so a slower start would have no gradient.
SLOWEST = 1e-4
_FASTEST = 1e30

# Arguments passed to a recipe beside its options, if its signature has them.
_RUNTIME = ("own", "alphas")


def decay_rates(real: Real | Sequence[Real], own: Rates, alphas: Sequence[float | None]) -> Rates:
    """Convert a `real` option to the decay rates of every block.

    Args:
        real: a name of the table, a number, a node with options ({"name": "geometric", "low": 0.01}), or a list of
            these, repeated to K.
        own: rates (p_k,) of the measures of the K blocks.
        alphas: alpha of each block, None for a measure without alpha.
    Returns:
        K arrays (p_k,) float64, at least 1e-4.
    Raises:
        UsageError: unknown name or option, a wrong count, or a rate outside [1e-4, 1e30].
    >>> decay_rates("whole-state", [np.ones(2), np.ones(2)], [0.0, 0.9])
    [array([1., 2.]), array([3., 4.])]
    """
    if isinstance(real, Sequence) and not isinstance(real, str):
        # A recipe gets all blocks even if only some take its rates.
        rates = [_rates(entry, own, alphas)[k] for k, entry in enumerate(repeated("real", real, len(own)))]
    else:
        rates = _rates(real, own, alphas)
    for values in rates:
        if np.isnan(values).any():
            raise UsageError(
                f"real={real} computes rates from alpha, and a measure of this layer has no alpha. Use "
                f"a number, real=0.5, or a fractional measure."
            )
        if not ((values >= SLOWEST) & (values <= _FASTEST)).all():
            raise UsageError(
                f"real={real} gives decay rates down to {min(values):g} and up to {max(values):g}. They lie between "
                f"{SLOWEST:g}, where the layer clips -Re Lambda, and {_FASTEST:g}."
            )
    return rates


def repeated(option: str, entries: Sequence[Any], K: int) -> list[Any]:
    """A list option repeated to K entries: block k has entry k modulo the length of the list.

    Raises:
        UsageError: the length does not divide K.
    >>> repeated("real", ["own", 0.1], 4)
    ['own', 0.1, 'own', 0.1]
    """
    if not entries or K % len(entries):
        raise UsageError(
            f"{option} lists {len(entries)} entries for n_alphas={K} blocks. Give one a block, or a list whose length "
            f"divides n_alphas; it is then repeated."
        )
    return list(entries) * (K // len(entries))


def _rates(real: Real, own: Rates, alphas: Sequence[float | None]) -> Rates:
    if isinstance(real, numbers.Real) and not isinstance(real, bool):
        real = {"name": "constant", "value": real}
    node = {"name": real} if isinstance(real, str) else real
    if not isinstance(node, Mapping) or "name" not in node:
        raise UsageError(
            f"real is a name, a number, a mapping with a name or a list of these, got {real!r}. "
            f"Known names: {', '.join(_RECIPES)}."
        )
    options = {key: value for key, value in node.items() if key != "name"}
    check_choice("real", node["name"], tuple(_RECIPES))
    recipe = _RECIPES[node["name"]]
    check_names(f"real={node['name']}", recipe, options, _RUNTIME)
    known = {"own": own, "alphas": alphas}
    return recipe(**options, **{key: known[key] for key in _RUNTIME if key in inspect.signature(recipe).parameters})


def _own(own: Rates) -> Rates:
    return own


def _whole_state(own: Rates) -> Rates:
    bounds = np.cumsum([len(rates) for rates in own])
    return np.split(np.arange(1.0, bounds[-1] + 1.0), bounds[:-1])


def _unit_mean(own: Rates) -> Rates:
    return [rates / rates.mean() for rates in own]


def _constant(own: Rates, value: float = 0.5) -> Rates:
    check_numbers(value=value)
    return [np.full(len(rates), float(value)) for rates in own]


def _normal_part(own: Rates, alphas: Sequence[float | None]) -> Rates:
    return _of_alpha(own, alphas, lambda alpha: 0.5 * (1 + alpha))


def _exact_normal_part(own: Rates, alphas: Sequence[float | None]) -> Rates:
    return _of_alpha(own, alphas, lambda alpha: 0.5 * (1 - alpha))


def _of_alpha(own: Rates, alphas: Sequence[float | None], rate: Callable[[float], float]) -> Rates:
    # nan for a block without alpha; `decay_rates` raises if that block uses these rates.
    return [
        np.full(len(rates), np.nan if alpha is None else rate(alpha)) for rates, alpha in zip(own, alphas, strict=True)
    ]


def _linear(own: Rates, low: float = 0.05, high: float = 0.5, over: str = "blocks") -> Rates:
    return _spread(own, low, high, over, lambda n: np.linspace(low, high, n))


def _geometric(own: Rates, low: float = 0.05, high: float = 0.5, over: str = "blocks") -> Rates:
    return _spread(own, low, high, over, lambda n: np.geomspace(low, high, n))


def _random(own: Rates, low: float = 0.05, high: float = 0.5, over: str = "blocks") -> Rates:
    def draw(n: int) -> np.ndarray:
        return low * (high / low) ** torch.rand(n, dtype=torch.float64, device="cpu").numpy()

    return _spread(own, low, high, over, draw)


def _spread(own: Rates, low: float, high: float, over: str, values: Any) -> Rates:
    check_numbers(low=low, high=high)
    check_choice("over", over, ("blocks", "modes"))
    if not 0 < low <= high < math.inf:
        raise UsageError(f"Decay rates spread from low to high need 0 < low <= high, got low={low:g}, high={high:g}.")
    if over == "modes":
        return [values(len(rates)) for rates in own]
    return [np.full(len(rates), rate) for rates, rate in zip(own, values(len(own)), strict=True)]


_RECIPES: dict[str, Callable[..., Rates]] = {
    "own": _own,
    "whole-state": _whole_state,
    "unit-mean": _unit_mean,
    "constant": _constant,
    "normal-part": _normal_part,
    "exact-normal-part": _exact_normal_part,
    "linear": _linear,
    "geometric": _geometric,
    "random": _random,
}
