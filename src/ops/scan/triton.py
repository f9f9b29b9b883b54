"""Backend `triton`: launches of the kernels in `triton_kernels`, with block sizes and chunks chosen by shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from .triton_kernels import scan_kernel, shared_gate_kernel

# Values in one warp's tile, 64 or 32 registers per thread; the adjoint holds two to four such tiles.
_TILE, _ADJOINT_TILE = 2048, 1024
# A row of a tile: 32 threads with one 16-byte access each.
_WIDEST = 128
# Warps that keep enough loads in flight to saturate the memory of one multiprocessor.
_WARPS_PER_PROCESSOR = 8
# Fewest steps in a chunk, so that the pass over the chunk ends stays cheap.
_SHORTEST = 64


@dataclass(frozen=True)
class Plan:
    """Partition of one launch: tile (block_l steps, block_w reals), warps, chunks of `rows` steps (a power of two)."""

    block_l: int
    block_w: int
    rows: int
    chunks: int
    warps: int = 1


def plan(batch: int, length: int, width: int, processors: int, adjoint: bool) -> Plan:
    """Blocks and chunks for `batch` samples of `length` steps of `width` reals on `processors` multiprocessors."""
    block_w = min(_WIDEST, triton.next_power_of_2(width))
    block_l = min(256, (_ADJOINT_TILE if adjoint else _TILE) // block_w)
    programs = max(1, batch * triton.cdiv(width, block_w))
    wanted = triton.cdiv(processors * _WARPS_PER_PROCESSOR, programs)
    rows = triton.next_power_of_2(max(_SHORTEST, block_l, triton.cdiv(length, wanted)))
    if rows >= length:
        return Plan(block_l, block_w, rows, 1)
    return Plan(block_l, block_w, rows, triton.cdiv(length, rows))


def forward(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, out: Tensor) -> None:
    """Write the states to `out` (which may be `b`); shapes as in `custom_op`."""
    _walk(a, b, x0, out, descend=reverse, adjoint=False)


def backward(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, reverse: bool, out: Tensor, need_a: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of b to `out` (which may be `g`); return the gradients of a (or None) and of x0 (or None)."""
    constant, shared = a.shape[1] == 1, a.shape[0] == 1 and a.shape[1] > 1
    in_walk = need_a and not shared
    da = torch.empty_like(x) if in_walk and not constant else None
    sums = _walk(a, g, x0, out, not reverse, adjoint=True, states=x if in_walk else None, da=da)
    first = -1 if reverse else 0
    dx0 = None if x0 is None else a[:, first].conj() * out[:, first]
    if not need_a:
        return None, dx0
    if shared:
        return _shared_gates(out, x, x0, reverse), dx0
    if not constant:
        return da, dx0
    wide = torch.complex128 if x.is_complex() else torch.float64
    over = (0, 1) if a.shape[0] == 1 else 1
    return sums.sum(over, keepdim=True, dtype=wide).to(x.dtype), dx0


def _walk(
    a: Tensor,
    b: Tensor,
    x0: Tensor | None,
    out: Tensor,
    descend: bool,
    adjoint: bool,
    states: Tensor | None = None,
    da: Tensor | None = None,
) -> Tensor | None:
    """One scan of `b` into `out`, or its adjoint; with `states` the gate gradient too, into `da` when it has rows.

    Returns:
        With `states` and a constant gate, the gate gradient summed over the steps of each chunk: (B, chunks, P).
    """
    batch, length, modes = b.shape
    width = _real(b).shape[2]
    cut = plan(batch, length, width, _processors(b.device), adjoint)
    constant = a.shape[1] == 1
    starts = None
    if cut.chunks > 1:
        ends = b.new_empty(batch, cut.chunks, modes)
        products = torch.empty_like(a) if constant else torch.empty_like(ends)
        _launch(cut, a, b, None, ends, descend, adjoint, products=products)
        starts = torch.empty_like(ends)
        whole = Plan(cut.block_l, cut.block_w, triton.next_power_of_2(cut.chunks), 1)
        _launch(whole, products, ends, None if adjoint else x0, starts, descend=False, adjoint=False)
    if states is not None and constant:
        da = b.new_empty(batch, cut.chunks, modes)
    _launch(cut, a, b, x0, out, descend, adjoint, starts=starts, states=states, da=da)
    return da if constant else None


def _launch(
    cut: Plan,
    a: Tensor,
    b: Tensor,
    x0: Tensor | None,
    out: Tensor,
    descend: bool,
    adjoint: bool,
    starts: Tensor | None = None,
    states: Tensor | None = None,
    da: Tensor | None = None,
    products: Tensor | None = None,
) -> None:
    batch, length, _ = b.shape
    complex_, real_b = b.is_complex(), _real(b)
    width, real_a = real_b.shape[2], _real(a)
    programs = batch * cut.chunks * triton.cdiv(width, cut.block_w)
    if programs == 0:
        return
    unused = real_b
    scan_kernel[(programs,)](
        real_a,
        real_b,
        unused if x0 is None else _real(x0),
        unused if starts is None else _real(starts),
        _real(out),
        unused if states is None else _real(states),
        unused if da is None else _real(da),
        unused if products is None else _real(products),
        length,
        width,
        cut.rows,
        cut.chunks,
        cut.rows.bit_length() - 1,
        a.shape[1] * width if a.shape[0] > 1 else 0,
        width,
        COMPLEX=complex_,
        DESCEND=descend,
        ADJOINT=adjoint,
        CONSTANT=a.shape[1] == 1,
        HAS_X0=x0 is not None,
        ENDS=products is not None,
        GATE_GRADIENT=states is not None,
        BLOCK_L=cut.block_l,
        BLOCK_W=cut.block_w,
        num_warps=cut.warps,
    )


def _shared_gates(G: Tensor, x: Tensor, x0: Tensor | None, reverse: bool) -> Tensor:
    batch, length, modes = x.shape
    da = x.new_empty(1, length, modes)
    width = _real(x).shape[2]
    block_w = min(_WIDEST, triton.next_power_of_2(width))
    block_l = max(4, 512 // block_w)
    shared_gate_kernel[(triton.cdiv(length, block_l) * triton.cdiv(width, block_w),)](
        _real(G),
        _real(x),
        _real(x if x0 is None else x0),
        _real(da),
        batch,
        length,
        width,
        DESCEND=reverse,
        COMPLEX=x.is_complex(),
        HAS_X0=x0 is not None,
        BLOCK_L=block_l,
        BLOCK_W=block_w,
        num_warps=1,
    )
    return da


def _real(t: Tensor) -> Tensor:
    return torch.view_as_real(t).flatten(-2) if t.is_complex() else t


@cache
def _processors(device: torch.device) -> int:
    # Triton's interpreter runs one program at a time.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
