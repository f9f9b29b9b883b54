"""Backend `torch`: the sequence is cut into about sqrt(L) chunks that advance together.

With the sequence written as L = C chunks of M steps, M vector steps give every chunk's states from rest and the
products of its gates; C small steps give the state that enters each chunk; one broadcast adds its contribution. About
2 sqrt(L) small operators instead of L. The position inside the chunk is the *leading* axis of the work tensors: with
it in the middle, steps touch memory at power-of-two strides and cache aliasing costs up to 15 times.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def forward(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, out: Tensor) -> None:
    """Write the states to `out` (which may be `b`); shapes as in `custom_op`."""
    if reverse:
        a, b = a.flip(1), b.flip(1)
    batch, length, modes = b.shape
    steps = max(1, math.isqrt(length))
    chunks = -(-length // steps)
    local = _position_first(b, steps, chunks)
    single = _position_first(a, steps, chunks) if a.shape[1] > 1 else a[None].expand(steps, -1, -1, -1)
    # Computed in double precision for a constant gate: the rounding of its powers is the same in every chunk and would
    # accumulate.
    gates = single.to(_wide(a) if a.shape[1] == 1 else a.dtype, copy=True)
    for m in range(1, steps):
        local[m].addcmul_(single[m], local[m - 1])
        gates[m].mul_(gates[m - 1])

    entering = torch.empty_like(local[0])
    state = (torch.zeros_like(b[:, 0]) if x0 is None else x0).to(gates.dtype)
    for c in range(chunks):
        entering[:, c] = state
        state = torch.addcmul(local[-1][:, c].to(gates.dtype), gates[-1][:, c if gates.shape[2] > 1 else 0], state)
    local.addcmul_(gates.to(local.dtype), entering)

    x = local.permute(1, 2, 0, 3).reshape(batch, chunks * steps, modes)[:, :length]
    out.copy_(x.flip(1) if reverse else x)


def backward(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, reverse: bool, out: Tensor, need_a: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of b to `out` (which may be `g`); return the gradients of a (or None) and of x0 (or None)."""
    forward(shifted_conj(a, reverse), g, None, not reverse, out)
    first = -1 if reverse else 0
    dx0 = None if x0 is None else a[:, first].conj() * out[:, first]
    return (gate_gradient(a, x, x0, out, reverse) if need_a else None), dx0


def shifted_conj(a: Tensor, reverse: bool) -> Tensor:
    """Gates of the adjoint recurrence G_k = g_k + conj(a_{k+1}) G_{k+1}: conj(a_{k+1}) at position k."""
    if a.shape[1] == 1:
        return a.conj().resolve_conj()
    end = torch.zeros_like(a[:, :1])
    return (torch.cat([end, a[:, :-1]], 1) if reverse else torch.cat([a[:, 1:], end], 1)).conj().resolve_conj()


def gate_gradient(a: Tensor, x: Tensor, x0: Tensor | None, db: Tensor, reverse: bool) -> Tensor:
    """da_k = G_k conj(x_{k-1}), summed over the axes along which `a` is shared."""
    start = torch.zeros_like(x[:, :1]) if x0 is None else x0[:, None]
    previous = torch.cat([x[:, 1:], start], 1) if reverse else torch.cat([start, x[:, :-1]], 1)
    da = db * previous.conj()
    shared = [axis for axis in (0, 1) if a.shape[axis] == 1]
    return da.sum(shared, keepdim=True) if shared else da


def _wide(t: Tensor) -> torch.dtype:
    """float64 or complex128, whichever matches `t`; on MPS, which has neither, the dtype of `t`."""
    if t.device.type == "mps":
        return t.dtype
    return torch.complex128 if t.is_complex() else torch.float64


def _position_first(t: Tensor, steps: int, chunks: int) -> Tensor:
    """(B, L, P) to a new tensor (steps, B, chunks, P), the end padded with zeros."""
    batch, length, modes = t.shape
    padded = t.new_zeros(batch, chunks * steps, modes)
    padded[:, :length] = t
    return padded.view(batch, chunks, steps, modes).permute(2, 0, 1, 3).contiguous()
