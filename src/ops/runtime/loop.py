"""A recurrence as one loop, which keeps a dynamic length in an exported graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def loop(advance: Callable[..., Tensor], x: Tensor, *inputs: Tensor) -> Tensor:
    """All n + 1 states of x <- advance(x, *inputs at k), k = 0 .. n - 1, the initial state first.

    Args:
        advance: pure function of tensors only; returns a new tensor of x's shape and dtype.
        x: the initial state.
        inputs: each (n, ...), n >= 1.
    Returns:
        (n + 1, *x.shape).
    """
    if torch.compiler.is_compiling():
        return _as_one_operator(advance, x, inputs)
    states = [x]
    for now in zip(*inputs, strict=True):
        states.append(advance(states[-1], *now))
    return torch.stack(states)


def _as_one_operator(advance: Callable[..., Tensor], x: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    # Imported here because it takes half a second. A prototype in torch, without a public name yet.
    from torch._higher_order_ops.scan import scan

    def body(x: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        after = advance(x, *now)
        # Outputs of the operator may not share memory.
        return after, after.clone()

    _, states = scan(body, x, inputs)
    return torch.cat((x[None], states))
