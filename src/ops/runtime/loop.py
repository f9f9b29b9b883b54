"""A recurrence as one loop, also in a graph that is exported: its length stays free there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def loop(advance: Callable[..., Tensor], x: Tensor, *inputs: Tensor) -> Tensor:
    """The states before each step of x <- advance(x, *inputs at k), k = 0 .. n - 1, and the one after the last.

    Args:
        advance: pure function of tensors alone, to a new tensor like x.
        x: the first state.
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
    # Loaded here: it costs half a second. A prototype of torch's, without a public name yet.
    from torch._higher_order_ops.scan import scan

    def body(x: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        after = advance(x, *now)
        # Outputs of the operator may not share memory.
        return after, after.clone()

    _, states = scan(body, x, inputs)
    return torch.cat((x[None], states))
