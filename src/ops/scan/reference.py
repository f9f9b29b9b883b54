"""The oracle: the recurrence exactly as written, step by step, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool) -> Tensor:
    """x_k = a_k x_{k-1} + b_k for a (B or 1, L or 1, P), b (B, L, P), x0 (B, P) or None; one graph node per step."""
    state = torch.zeros_like(b[:, 0]) if x0 is None else x0
    states: list[Tensor] = []
    # One unbind for all steps: the gradient of L separate slices would touch L full-size tensors.
    inputs = b.unbind(1)
    gates = a.unbind(1) if a.shape[1] > 1 else (a[:, 0],) * len(inputs)
    for k in reversed(range(len(inputs))) if reverse else range(len(inputs)):
        state = gates[k] * state + inputs[k]
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, dim=1)
