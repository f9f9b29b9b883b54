"""The linear recurrence x_k = a_k x_{k-1} + b_k that every layer here runs along the sequence.

One operation, four backends with the same signature and the same gradients:

    reference   a Python loop that autograd differentiates; slow, the oracle of the tests
    torch       chunked, plain torch, any device
    native      CPU, one pass over memory, compiled by numba at the first call and cached on disk
    triton      CUDA and ROCm
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import UsageError
from ..runtime.backends import choose
from ..runtime.proof import waves
from ..tensors import require_switches
from . import reference
from .custom_op import scan_op
from .packed import checked_boundaries, packed_scan

__all__ = ["prove", "scan"]

_HALF = (torch.float16, torch.bfloat16)


def scan(
    a: Tensor,
    b: Tensor,
    x0: Tensor | None = None,
    reverse: bool = False,
    backend: str = "auto",
    dim: int | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Solve x_k = a_k x_{k-1} + b_k along the sequence (x_k = a_k x_{k+1} + b_k with `reverse`).

    Args:
        a: gates, real or complex: (P,) constant; (L, P) varying but shared by the batch; (B, L, P) full. A 3-D `a`
            may have size 1 in its first two dimensions, so (B, 1, P) is one constant gate per sample. With `dim`: any
            shape that broadcasts to b's.
        b: (B, L, P), L >= 1; with `dim` any shape. Any strides.
        x0: (B, P), the state before the first step (after the last one with `reverse`); None is zero. (S, P) for S
            packed sequences; with `dim` b's shape without that axis.
        reverse: run from the end of the sequence to its beginning.
        backend: "auto", "reference", "torch", "native" or "triton".
        dim: the sequence axis of b, for b of any number of axes; None: axis 1 of (B, L, P).
        cu_seqlens: (S + 1,) int64 or int32, 0, ..., L: b (1, L, P) holds S sequences, the s-th from cu_seqlens[s] to
            cu_seqlens[s + 1], each with its own initial state. One pass on a CPU; elsewhere the sequences are padded
            internally.
    Returns:
        x: the shape of b, in the promoted dtype of the arguments; contiguous where b is (B, L, P). float16 and bfloat16
        are computed in float32 (complex64 beside a complex argument) and rounded once, at the end. Twice differentiable
        in a, b and x0. Inside forward-mode derivatives and torch.func transforms "auto" takes "reference", the only
        backend that they can follow. The same inputs give the same bits on every run (on the CPU: with the same number
        of threads).
    Raises:
        UsageError: shapes, dtypes or devices that do not fit, or a named backend that cannot run here.

    >>> scan(torch.tensor([0.5]), torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])).flatten().tolist()
    [1.0, 2.5, 4.25, 6.125]
    >>> scan(torch.tensor(0.5), torch.tensor([1.0, 2.0, 3.0, 4.0]), dim=0).tolist()
    [1.0, 2.5, 4.25, 6.125]
    >>> scan(torch.tensor([0.5]), torch.ones(1, 4, 1), cu_seqlens=torch.tensor([0, 1, 4])).flatten().tolist()
    [1.0, 1.0, 1.5, 1.75]
    """
    _check_tensors(a, b, x0)
    require_switches("scan", reverse=reverse)
    if dim is not None:
        return _along(dim, a, b, x0, reverse, backend, cu_seqlens)
    boundaries = None if cu_seqlens is None else checked_boundaries("scan", cu_seqlens, b)
    _check(a, b, x0, None if boundaries is None else len(boundaries) - 1)
    dtype = torch.promote_types(a.dtype, b.dtype)
    if x0 is not None:
        dtype = torch.promote_types(dtype, x0.dtype)
    compute = _compute_dtype(dtype)
    name = choose("scan", backend, b.device, proof=prove)
    if a.dim() < 3:
        a = a.reshape((1,) * (3 - a.dim()) + tuple(a.shape))
    a, b = a.to(compute), b.to(compute)
    x0 = None if x0 is None else x0.to(compute)
    if boundaries is not None:
        x = packed_scan(a, b, x0, boundaries, reverse, name)
    else:
        x = reference.scan(a, b, x0, reverse) if name == "reference" else scan_op(a, b, x0, reverse, name)
    return x.to(dtype)


def _along(
    dim: int, a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, backend: str, cu_seqlens: Tensor | None
) -> Tensor:
    """`scan` along any axis: the axes before it become the batch, those after it the modes."""
    if isinstance(dim, bool) or not isinstance(dim, int) or not -b.dim() <= dim < b.dim():
        raise UsageError(f"scan takes dim as an axis of b, of shape {tuple(b.shape)}, got {dim!r}.")
    dim %= b.dim()
    if cu_seqlens is not None:
        raise UsageError(
            f"scan with cu_seqlens takes b of shape (1, total, P) and no dim, got {tuple(b.shape)} and dim={dim}. Move "
            f"the sequence there: b.movedim({dim}, 1)."
        )
    rest = (*b.shape[:dim], *b.shape[dim + 1 :])
    if a.dim() > b.dim() or any(m not in (1, n) for m, n in zip(a.shape[::-1], b.shape[::-1], strict=False)):
        raise UsageError(f"scan takes a of a shape that broadcasts to b's, {tuple(b.shape)}, got {tuple(a.shape)}.")
    if x0 is not None and tuple(x0.shape) != rest:
        raise UsageError(f"scan takes x0 of b's shape without axis {dim}, {rest}, got {tuple(x0.shape)}.")
    a = a.reshape((1,) * (b.dim() - a.dim()) + tuple(a.shape))
    before, after = math.prod(b.shape[:dim]), math.prod(b.shape[dim + 1 :])
    # Gates that vary over any of the leading axes are expanded over all of them; otherwise the batch shares them.
    lead = b.shape[:dim] if any(size != 1 for size in a.shape[:dim]) else (1,) * dim
    a = a.expand(*lead, a.shape[dim], *b.shape[dim + 1 :]).reshape(math.prod(lead), a.shape[dim], after)
    flat = b.reshape(before, b.shape[dim], after)
    return scan(a, flat, None if x0 is None else x0.reshape(before, after), reverse, backend).view(b.shape)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype in _HALF:
        return torch.float32
    if dtype == torch.complex32:
        return torch.complex64
    return dtype


def _check_tensors(a: Tensor, b: Tensor, x0: Tensor | None) -> None:
    for name, given in (("a", a), ("b", b), ("x0", x0)):
        if name == "x0" and given is None:
            continue
        if not isinstance(given, Tensor):
            raise UsageError(f"scan takes tensors, got {name} of type {type(given).__name__}: use torch.as_tensor.")
        if given.layout != torch.strided:
            raise UsageError(f"scan takes dense tensors, got {name} of layout {given.layout}: use {name}.to_dense().")


def _check(a: Tensor, b: Tensor, x0: Tensor | None, sequences: int | None) -> None:
    if b.dim() != 3 or b.shape[1] == 0:
        raise UsageError(f"scan takes b of shape (B, L, P) with L >= 1, got {tuple(b.shape)}; dim names another axis.")
    batch, length, modes = b.shape
    sequences = batch if sequences is None else sequences
    allowed = f"({modes},), ({length}, {modes}) or ({batch}, {length}, {modes}) beside b {tuple(b.shape)}"
    fits = 1 <= a.dim() <= 3 and a.shape[-1] == modes
    if a.dim() == 2:
        fits = fits and a.shape[0] == length
    if a.dim() == 3:
        fits = fits and a.shape[0] in (1, batch) and a.shape[1] in (1, length)
    if not fits:
        raise UsageError(f"scan takes a of shape {allowed}, got {tuple(a.shape)}.")
    if x0 is not None and tuple(x0.shape) != (sequences, modes):
        raise UsageError(f"scan takes x0 of shape ({sequences}, {modes}), got {tuple(x0.shape)}.")
    for name, tensor in (("a", a), ("b", b), ("x0", x0)):
        if tensor is None:
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise UsageError(f"scan takes real or complex floating-point tensors, got {name} of {tensor.dtype}.")
        if tensor.device != b.device:
            raise UsageError(
                f"scan needs its tensors on one device, got {name} on {tensor.device} and b on {b.device}."
            )


def prove(backend: str, device: torch.device) -> list[Tensor]:
    """The case that checks the Triton kernels on a device: several chunks on a GPU, gates constant and varying."""
    results, length = [], 300 if device.type == "cuda" else 70
    for gates in ((1, 1, 3), (1, length, 3)):
        a = (0.9 * waves(*gates, device=device, complex=True)).requires_grad_()
        b, x0 = (waves(*size, device=device, complex=True).requires_grad_() for size in ((2, length, 3), (2, 3)))
        x = scan_op(a, b, x0, False, backend)
        results += [x.detach(), *torch.autograd.grad(x, (a, b, x0), waves(*x.shape, device=device, complex=True))]
    return results
