"""The scan of sequences of different lengths that are concatenated into one sample.

On a CPU the native kernels take one pass and reset the state at every boundary. Elsewhere the sequences are padded to
the longest, scanned as a batch, and packed again. No value of one sequence reaches another, not even NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ..runtime.autograd import refuse_transforms
from .chunked import shifted_conj
from .custom_op import plain, scan_op
from .reference import scan as reference_scan


def packed_scan(a: Tensor, b: Tensor, x0: Tensor | None, boundaries: Tensor, reverse: bool, backend: str) -> Tensor:
    """States x (1, total, P) for a (1, 1 or total, P), b (1, total, P) and x0 (S, P) or None, all of one dtype."""
    if backend == "native":
        return packed_scan_op(a, b, x0, boundaries, reverse)
    rows = Rows(boundaries, reverse)
    a = rows.unpack(a) if a.shape[1] > 1 else a
    args = a, rows.unpack(b), x0, reverse
    x = reference_scan(*args) if backend == "reference" else scan_op(*args, backend)
    return rows.pack(x)


class Rows:
    """Packed sequences to a padded batch and back; the padding follows the last step of each sequence's walk.

    Args:
        boundaries: (S + 1,) int64, 0, ..., total.
        reverse: the walk goes backward, so the padding is in front.
    """

    def __init__(self, boundaries: Tensor, reverse: bool = False):
        self.lengths = boundaries.diff()
        longest = int(self.lengths.max())
        start = boundaries[1:] - longest if reverse else boundaries[:-1]
        position = start[:, None] + torch.arange(longest, device=boundaries.device)
        self._valid = (position >= boundaries[:-1, None]) & (position < boundaries[1:, None])
        self._position = position.clamp(0, int(boundaries[-1]) - 1)

    def unpack(self, packed: Tensor, fill: float = 0.0) -> Tensor:
        """(1, total, ...) to (S, longest, ...)."""
        valid = self._valid.view(*self._valid.shape, *[1] * (packed.dim() - 2))
        return packed[0][self._position].masked_fill(~valid, fill)

    def pack(self, padded: Tensor) -> Tensor:
        """(S, longest, ...) to (1, total, ...)."""
        return padded[self._valid][None]


@torch.library.custom_op("fractal_ssm::packed_scan", mutates_args=())
def packed_scan_op(a: Tensor, b: Tensor, x0: Tensor | None, boundaries: Tensor, reverse: bool) -> Tensor:
    from . import native

    a, b, x0 = plain(a), plain(b), None if x0 is None else plain(x0)
    out = torch.empty_like(b)
    native.forward(a, b, x0, reverse, out, boundaries=boundaries)
    return out


@packed_scan_op.register_fake
def _(a: Tensor, b: Tensor, x0: Tensor | None, boundaries: Tensor, reverse: bool) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


@torch.library.custom_op("fractal_ssm::packed_scan_backward", mutates_args=())
def packed_scan_backward_op(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, boundaries: Tensor, reverse: bool, need_a: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from . import native

    a, x, g, x0 = plain(a), plain(x), plain(g), None if x0 is None else plain(x0)
    db = torch.empty_like(g)
    da, dx0 = native.backward(a, x, x0, g, reverse, db, need_a, boundaries=boundaries)
    return a.new_empty(0) if da is None else da, db, a.new_empty(0) if dx0 is None else dx0


@packed_scan_backward_op.register_fake
def _(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, boundaries: Tensor, reverse: bool, need_a: bool
) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    da = torch.empty_like(a, memory_format=contiguous) if need_a else a.new_empty(0)
    dx0 = a.new_empty(0) if x0 is None else torch.empty_like(x0, memory_format=contiguous)
    return da, torch.empty_like(g, memory_format=contiguous), dx0


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, _, x0, boundaries, ctx.reverse = inputs
    ctx.save_for_backward(a, output, x0, boundaries)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
    refuse_transforms("The backward of scan")
    a, x, x0, boundaries = ctx.saved_tensors
    need_a, _, need_x0 = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        # For a second derivative: the same formulas, in operators that autograd records.
        db = packed_scan_op(shifted_conj(a, ctx.reverse), g, None, boundaries, not ctx.reverse)
        starts = boundaries[1:] - 1 if ctx.reverse else boundaries[:-1]
        before = torch.zeros_like(x[0, starts]) if x0 is None else x0
        shifted = x.roll(-1 if ctx.reverse else 1, dims=1).index_copy(1, starts, before[None])
        da = (db * shifted.conj()).sum_to_size(a.shape) if need_a else None
        gates = a[:, starts] if a.shape[1] > 1 else a
        return da, db, (gates.conj() * db[:, starts])[0] if need_x0 else None, None, None
    da, db, dx0 = packed_scan_backward_op(a, x, x0, g, boundaries, ctx.reverse, need_a)
    return da if need_a else None, db, dx0 if need_x0 else None, None, None


packed_scan_op.register_autograd(_backward, setup_context=_save)


def checked_boundaries(what: str, cu_seqlens: Any, b: Tensor) -> Tensor:
    """cu_seqlens as int64, for a packed b (1, total, ...).

    Raises:
        UsageError: not a strictly increasing 0, ..., total (values are checked on a CPU only), wrong type, shape, dtype
            or device, or a batch of more than one sample.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise UsageError(
            f"{what} takes cu_seqlens as an int64 tensor, got {type(cu_seqlens).__name__}: torch.tensor(cu_seqlens)."
        )
    if b.dim() != 3 or b.shape[0] != 1:
        raise UsageError(
            f"{what} with cu_seqlens takes packed sequences as one sample, (1, total, ...), got {tuple(b.shape)}. "
            f"Padded sequences go with lengths instead."
        )
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int64, torch.int32):
        raise UsageError(
            f"{what} takes cu_seqlens of shape (sequences + 1,), int64 or int32, got {cu_seqlens.dtype} "
            f"{tuple(cu_seqlens.shape)}. From lengths: F.pad(lengths.cumsum(0), (1, 0))."
        )
    if cu_seqlens.device != b.device:
        raise UsageError(f"{what} needs cu_seqlens on {b.device}, got {cu_seqlens.device}: cu_seqlens.to({b.device}).")
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        right = cu_seqlens[0] == 0 and cu_seqlens[-1] == b.shape[1] and bool((cu_seqlens.diff() > 0).all())
        if not right:
            raise UsageError(
                f"{what} takes cu_seqlens from 0 to {b.shape[1]}, the total length, every sequence of at least one "
                f"position; got {cu_seqlens.tolist()}."
            )
    return cu_seqlens.to(torch.int64)
