"""Kernels of diagonal systems: sums of powers of N modes at L positions, without an (H, N, L) tensor.

    vandermonde      K[h, l] = 2 Re sum_n C[h, n] w[h, n]^l            modes -> positions
    vandermonde_sum  Z[h, n] = sum_l s[h, l] w[h, n]^l                 positions -> modes, the transpose

Two-level split: with l = M q + j, M about sqrt(L), w^l = (w^M)^q w^j. Two tables of about sqrt(L) powers each are
built by doubling (T[m : 2m] = T[0 : m] w^m: a complex product per entry and no exp), read as real tables
of interleaved (re, im), and joined by one batched real product of shapes (Q, 2N) and (2N, M). Cost per feature:
O(N sqrt(L)) for the tables, 2 N L real multiply-adds for the product.

On a GPU the same sums run as Triton kernels (`triton`), which split each tile of positions in the same way.

Accuracy: the factors w^(2^k) are squared in the precision of `w`, so an entry of the table carries at most log2(L)
roundings of the working precision. Give `w` in complex128 with complex64 coefficients: the phase after L steps is then
as accurate as the kernel's own precision, even at L = 16,384, where a float32 exponent loses two digits.

Each function is the other's gradient:
    dL/dC = 2 conj(Z(g)),   dL/dw = 2 conj(C sum_l (l+1) g[l+1] w^l);   dL/ds = Re sum_n conj(G) w^l,
so derivatives of every order exist, and none divides by w (the bilinear rule may place a mode at exactly 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from ..runtime.autograd import refuse_transforms
from ..runtime.backends import choose
from ..runtime.keops import lazy_tensor
from ..runtime.proof import waves

__all__ = ["tiles_in_blocks", "vandermonde", "vandermonde_sum"]

_NEXT_TO_ZERO = 1e-18
# Elements of a tile of the batch on a CPU: 2 MiB of float32, and the same again for its products.
_CPU_TILE = 1 << 19
_REAL, _COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)


def vandermonde(coefficient: Tensor, w: Tensor, length: int, backend: str = "auto") -> Tensor:
    """K[..., h, l] = 2 Re sum_n coefficient[..., h, n] w[h, n]^l for l = 0 .. length-1; 0^0 = 1.

    Args:
        coefficient: (..., H, N) complex; its precision is the working precision and sets the result's.
        w: (H, N) complex, |w| <= 1 for a stable system; complex128 recommended (see the module's docstring).
        length: L >= 1, a whole number.
        backend: "torch" (the split above), "triton" (CUDA and ROCm), "keops" (a compiled reduction without tables:
            slower on a CPU, for comparisons), or "auto": "triton" where it can run on a device, else "torch".
    Returns:
        (..., H, L) real, float32 for complex64 coefficients and float64 for complex128.
    Raises:
        UsageError: shapes or dtypes that do not fit, unknown backend, or one that cannot run here.
    >>> C = torch.ones(1, 1, dtype=torch.complex128)
    >>> vandermonde(C, 0.5 * C, 4).tolist()
    [[2.0, 1.0, 0.5, 0.25]]
    """
    _check(coefficient, w, length)
    backend = choose("vandermonde", backend, w, proof=prove)
    if backend == "keops":
        return _vandermonde_keops(coefficient, w, length)
    rows = coefficient.reshape(-1, *w.shape).transpose(0, 1)
    kernel = _Vandermonde.apply(rows, w, length, backend)
    return kernel.transpose(0, 1).reshape(*coefficient.shape[:-1], length)


def vandermonde_sum(sequence: Tensor, w: Tensor, newest_last: bool = False, backend: str = "auto") -> Tensor:
    """Z[..., h, n] = sum_l sequence[..., h, l] w[h, n]^l, l = 0 .. L-1; with `newest_last`, w^(L-1-l) instead.

    With `newest_last` it is the last state of x_k = w x_{k-1} + u_k for input `sequence`, started at rest.

    Args:
        sequence: (..., H, L), float32 or float64, L >= 1; any strides.
        w: (H, N) complex.
        newest_last: count the powers from the end.
        backend: as in `vandermonde`; "keops", which does not implement this sum, runs "torch".
    Returns:
        (..., H, N) complex of the sequence's precision.
    Raises:
        UsageError: shapes or dtypes that do not fit, unknown backend, or one that cannot run here.
    """
    _check_sum(sequence, w)
    backend = choose("vandermonde_sum", backend, w, proof=prove)
    rows = sequence.reshape(-1, *sequence.shape[-2:]).transpose(0, 1)
    sums = _VandermondeSum.apply(rows, w, newest_last, backend)
    return sums.transpose(0, 1).reshape(*sequence.shape[:-1], w.shape[-1])


def prove(backend: str, device: torch.device) -> list[Tensor]:
    """The case that checks the Triton kernels on a device: both sums, with all gradients."""
    coefficient = waves(2, 2, 5, device=device, complex=True).requires_grad_()
    w = (0.95 * waves(2, 5, device=device, complex=True)).to(torch.complex128).requires_grad_()
    sequence = waves(2, 2, 150, device=device).requires_grad_()
    kernel, sums = _Vandermonde.apply(coefficient, w, 150, backend), _VandermondeSum.apply(sequence, w, True, backend)
    weights = waves(*kernel.shape, device=device), waves(*sums.shape, device=device, complex=True)
    gradients = torch.autograd.grad((kernel, sums), (coefficient, w, sequence), weights)
    return [kernel.detach(), sums.detach(), *gradients]


def tiles_in_blocks(sequence: Tensor, M: int, Q: int) -> Iterator[Tensor]:
    """(H, R, L) of any strides as (H, r Q, M), r rows at a time: L padded with zeros *in front* to Q M, then cut.

    A tile fits the cache of a CPU; on other devices all R rows are one tile. Each is a view of (r Q, H, M): its
    (M, H) matrices are transposed one by one, and a batched product takes the view without a copy.
    """
    H, R, L = sequence.shape
    size = R if sequence.device.type != "cpu" else max(1, _CPU_TILE // (Q * M * H))
    for rows in sequence.permute(1, 2, 0).split(size):
        padded = F.pad(rows, (0, 0, Q * M - L, 0)) if Q * M > L else rows
        yield padded.reshape(-1, M, H).mT.contiguous().transpose(0, 1)


class _Vandermonde(torch.autograd.Function):
    """rows of coefficients (H, R, N) and w (H, N) to (H, R, L)."""

    @staticmethod
    def forward(ctx, coefficient: Tensor, w: Tensor, length: int, backend: str) -> Tensor:
        ctx.save_for_backward(coefficient, w)
        ctx.backend = backend
        if backend == "triton":
            return _triton().expand(coefficient, w, length)
        H, R, N = coefficient.shape
        inner, outer = _tables(w, length, R, coefficient.dtype)
        # Re(a b) is the real inner product of conj(a) and b.
        left = coefficient.conj()[:, :, None] * outer.conj()[:, None]
        kernel = torch.bmm(_as_real(left.reshape(H, -1, N)), _as_real(inner).transpose(1, 2))
        return kernel.view(H, R, -1)[..., :length].mul(2)

    @staticmethod
    def backward(ctx, grad: Tensor):
        refuse_transforms("The gradient of vandermonde", grad)
        coefficient, w = ctx.saved_tensors
        R = coefficient.shape[1]
        needs_w = ctx.needs_input_grad[1]
        sequences = torch.cat((grad, _shifted(grad)), dim=1) if needs_w else grad
        sums = _VandermondeSum.apply(sequences, w, False, ctx.backend)
        grad_w = (2 * (coefficient * sums[:, R:]).sum(1).conj()).to(w.dtype) if needs_w else None
        return 2 * sums[:, :R].conj(), grad_w, None, None


class _VandermondeSum(torch.autograd.Function):
    """rows of sequences (H, R, L) and w (H, N) to (H, R, N)."""

    @staticmethod
    def forward(ctx, sequence: Tensor, w: Tensor, newest_last: bool, backend: str) -> Tensor:
        ctx.save_for_backward(sequence, w)
        ctx.newest_last, ctx.backend = newest_last, backend
        if backend == "triton":
            return _triton().collapse(sequence, w, newest_last)
        H, R, L = sequence.shape
        # Work in tiles that stay in the cache, so that the multiplication by the outer table is cheap.
        inner, outer = _tables(w, L, 1 if newest_last else R, sequence.dtype.to_complex(), falling=newest_last)
        Q, M = outer.shape[1], inner.shape[1]
        if newest_last:
            tiles = tiles_in_blocks(sequence, M, Q)
        else:
            tiles = [F.pad(sequence, (0, Q * M - L)).reshape(H, R * Q, M)]
        partial = (torch.bmm(tile, _as_real(inner)).view(H, -1, Q, w.shape[1], 2) for tile in tiles)
        return torch.cat([torch.view_as_complex(tile).mul_(outer[:, None]).sum(2) for tile in partial], dim=1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        refuse_transforms("The gradient of vandermonde_sum", grad)
        sequence, w = ctx.saved_tensors
        grad_sequence = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_sequence = 0.5 * _Vandermonde.apply(grad.conj(), w, sequence.shape[-1], ctx.backend)
            grad_sequence = grad_sequence.flip(-1) if ctx.newest_last else grad_sequence
        if ctx.needs_input_grad[1]:
            oldest_last = sequence.flip(-1) if ctx.newest_last else sequence
            slope = _VandermondeSum.apply(_shifted(oldest_last), w, False, ctx.backend)
            grad_w = (grad * slope.conj()).sum(1).to(w.dtype)
        return grad_sequence, grad_w, None, None


def _tables(w: Tensor, length: int, rows: int, dtype: torch.dtype, falling: bool = False) -> tuple[Tensor, Tensor]:
    """w^j for j < M as (H, M, N), and w^(M q) for q < Q as (H, Q, N), with Q M >= length; reversed if `falling`.

    The work besides the product is N (M + rows Q) per feature, least for M about sqrt(rows L).
    """
    M = min(1 << math.ceil(math.log2(length * rows) / 2), 1 << math.ceil(math.log2(length)))
    inner, w_M = _powers(w, M, dtype, falling)
    outer, _ = _powers(w_M, -(-length // M), dtype, falling)
    return inner, outer


def _powers(w: Tensor, count: int, dtype: torch.dtype, falling: bool) -> tuple[Tensor, Tensor]:
    """w^0 .. w^(count-1) as (H, count, N) in `dtype`, and w^(smallest power of two >= count) in w's own precision.

    The exponents rise along the table, or fall from count-1 to 0.
    """
    table = torch.empty(w.shape[0], count, w.shape[1], dtype=dtype, device=w.device)
    table[:, -1 if falling else 0] = 1
    done, power = 1, w
    while done < count:
        block = min(done, count - done)
        known, new = slice(block), slice(done, done + block)
        if falling:
            known, new = slice(count - block, count), slice(count - done - block, count - done)
        torch.mul(table[:, known], power[:, None].to(dtype), out=table[:, new])
        done, power = done + block, power * power
    return torch.view_as_complex(normal_numbers(torch.view_as_real(table))), power


def normal_numbers(table: Tensor) -> Tensor:
    """Set real entries to 0 if the product of two could be denormal: a CPU multiplies denormals ten times slower."""
    return F.hardshrink(table, math.sqrt(torch.finfo(table.dtype).tiny))


def _shifted(sequence: Tensor) -> Tensor:
    """(l + 1) s[l + 1], padded with one zero: the derivative of sum_l s[l] w^l by w has these coefficients."""
    weight = torch.arange(1, sequence.shape[-1], dtype=sequence.dtype, device=sequence.device)
    return F.pad(sequence[..., 1:] * weight, (0, 1))


def _as_real(table: Tensor) -> Tensor:
    """(H, rows, N) complex to (H, rows, 2N) real, interleaved."""
    return torch.view_as_real(table.resolve_conj()).flatten(-2)


def _vandermonde_keops(coefficient: Tensor, w: Tensor, length: int) -> Tensor:
    # KeOps has no integer power of a complex number; exp(l log w) in the working precision has its phase error.
    # log(0) times position 0 would be nan, so replace 0 by a number that has the same powers and derivatives.
    log_w = torch.log(w + _NEXT_TO_ZERO * (w == 0)).to(coefficient.dtype)
    position = torch.arange(length, dtype=log_w.real.dtype, device=w.device).to(log_w.dtype)
    shape = coefficient.shape
    exponent = lazy_tensor(log_w.expand(shape).reshape(-1, 1, shape[-1], 1).contiguous())
    weight = lazy_tensor(coefficient.reshape(-1, 1, shape[-1], 1).contiguous())
    at = lazy_tensor(position.view(1, length, 1, 1))
    total = ((exponent * at).exp() * weight).sum(dim=2)
    return 2 * total.reshape(*shape[:-1], length).real


def _triton() -> ModuleType:
    from . import triton

    return triton


def _check(coefficient: Tensor, w: Tensor, length: int) -> None:
    _check_dense("vandermonde", coefficient, w)
    fits = w.dim() == 2 and w.numel() > 0 and coefficient.shape[-2:] == w.shape
    if not (fits and coefficient.dtype in _COMPLEX and w.dtype in _COMPLEX):
        raise UsageError(
            f"vandermonde takes complex coefficients (..., H, N) and complex w (H, N), H and N at least 1, in "
            f"complex64 or complex128, got {tuple(coefficient.shape)} {coefficient.dtype} and {tuple(w.shape)} "
            f"{w.dtype}."
        )
    if isinstance(length, bool) or not isinstance(length, (int, np.integer, torch.SymInt)) or length < 1:
        raise UsageError(f"vandermonde needs a length, a whole number >= 1, got {length!r}.")


def _check_sum(sequence: Tensor, w: Tensor) -> None:
    _check_dense("vandermonde_sum", sequence, w)
    fits = w.dim() == 2 and w.numel() > 0 and sequence.dim() >= 2 and sequence.shape[-2] == w.shape[0]
    if not (fits and sequence.shape[-1] >= 1 and sequence.dtype in _REAL and w.dtype in _COMPLEX):
        raise UsageError(
            f"vandermonde_sum takes a real sequence (..., H, L) in float32 or float64 and w (H, N) in complex64 or "
            f"complex128, H, L and N at least 1, got {tuple(sequence.shape)} {sequence.dtype} and {tuple(w.shape)} "
            f"{w.dtype}."
        )


def _check_dense(what: str, *given: Tensor) -> None:
    for tensor in given:
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            kind = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UsageError(f"{what} takes dense tensors, got {kind}.")
    if given[0].device != given[1].device:
        raise UsageError(f"{what} needs its tensors on one device, got {given[0].device} and {given[1].device}.")
