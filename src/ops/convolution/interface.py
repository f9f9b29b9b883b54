"""Causal and two-sided convolution along the length by FFT.

Backend "torch" applies torch.fft to one tile of the batch at a time, on every device. "native" is this project's own
transform for the CPU (`native.convolution`), which reads and writes (B, L, H) in place and keeps no spectra; it takes
less than half the time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ..runtime.autograd import as_outside, dense, gradients, graph_gradients, leaves, refuse_transforms
from ..runtime.backends import choose
from ..tensors import require_given, require_tensors

# Elements of one tile's padded input on a CPU: 4 MiB of float32. Larger work buffers are returned to the system after
# each use, and touching fresh pages costs more than the transforms.
_CPU_TILE = 1 << 20

# Fewest features for which the native backend is faster: it works on rows of sixteen, even if they are not full.
_NATIVE_FEATURES = 4


def convolve(u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None = None, backend: str = "auto") -> Tensor:
    """Convolve each feature with its own kernel.

        y[t] = sum_{s <= t} kernel[t - s] u[s]  +  sum_{s > t} reverse_kernel[s - t - 1] u[s]

    The reverse part starts at lag -1, as in the published S4, so that the present input is counted once. Kernels may
    be shorter than the input (absent lags are zero) or longer (lags that no output reaches are dropped). The transforms
    are long enough, or twisted (`native`), so that nothing wraps around.

    Args:
        u: (B, L, H) real, computed in the widest dtype of u and the kernels, but at least float32.
        kernel: (H, L_kernel) real, lags 0, 1, ...
        reverse_kernel: (H, L_reverse) real, lags -1, -2, ...; None for a causal convolution.
        backend: "torch", "native" (CPU, compiled by numba at the first call, about 10 s for forward and backward,
            and cached), or "auto": "native" on a CPU with numba for 4 features or more, else "torch".
    Returns:
        (B, L, H), in u's dtype, also inside an autocast region: transforms never run in half precision. Deviation from
        the exact sum, for either backend: about 3e-7 of the largest entry in float32, 1e-15 in float64. "native" first
        divides the kernel by the number of points, so float32 kernels with entries below 1e-33 lose digits.
    Raises:
        UsageError: shapes that do not fit, unknown backend, or one that cannot run here.
    A NaN or an infinite input reaches every output of its sample and feature, earlier ones too.
    Derivatives of every order exist; those of second and higher order are computed by backend "torch".
    >>> u = torch.arange(1.0, 6.0).view(1, 5, 1)
    >>> [round(y, 4) for y in convolve(u, 0.5 ** torch.arange(5.0).view(1, 5)).flatten().tolist()]
    [1.0, 2.5, 4.25, 6.125, 8.0625]
    """
    require_given("convolve", u=u, kernel=kernel)
    require_tensors("convolve", reverse_kernel=reverse_kernel)
    _check(u, kernel, reverse_kernel)
    backend = choose("convolve", backend, u, avoid=("native",) if u.shape[2] < _NATIVE_FEATURES else ())
    if torch.compiler.is_compiling():
        return convolve_op(u, kernel, reverse_kernel, backend)
    with torch.autocast(u.device.type, enabled=False):
        if backend == "native":
            inputs = _of_one_dtype(u, kernel, reverse_kernel)
            return _NativeConvolution.apply(*inputs).to(u.dtype)
        circular = _circular(u, kernel, reverse_kernel)
        return _CircularConvolution.apply(u.to(circular.dtype), circular).to(u.dtype)


def _of_one_dtype(u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    return u.to(dtype), kernel.to(dtype), None if reverse_kernel is None else reverse_kernel.to(dtype)


def _circular(u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None) -> Tensor:
    """(H, n): both kernels as one circular kernel, whose last point is lag -1, in the dtype of the transforms."""
    u, kernel, reverse_kernel = _of_one_dtype(u, kernel, reverse_kernel)
    length = u.shape[1]
    kernel = kernel[:, :length]
    reversed_lags = 0 if reverse_kernel is None else min(reverse_kernel.shape[1], length - 1)
    n = good_fft_size(length + max(kernel.shape[1] - 1, reversed_lags))
    parts = [kernel, kernel.new_zeros(kernel.shape[0], n - kernel.shape[1] - reversed_lags)]
    if reversed_lags:
        parts.append(reverse_kernel[:, :reversed_lags].flip(1))
    return torch.cat(parts, dim=1)


# The convolution inside torch.compile and torch.export: one operator, so that no complex spectrum is compiled. It keeps
# no spectra for the backward, which transforms u again.
@torch.library.custom_op("fractal_ssm::convolve", mutates_args=())
def convolve_op(u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None, backend: str) -> Tensor:
    with as_outside(recording=False):
        return dense(convolve(u, kernel, reverse_kernel, backend))


@convolve_op.register_fake
def _(u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None, backend: str) -> Tensor:
    return torch.empty_like(u, memory_format=torch.contiguous_format)


@torch.library.custom_op("fractal_ssm::convolve_backward", mutates_args=())
def convolve_backward_op(grad: Tensor, u: Tensor, kernels: list[Tensor], backend: str) -> list[Tensor]:
    absent = [None] * (2 - len(kernels))
    with torch.autocast(u.device.type, enabled=False), as_outside(recording=backend == "torch"):
        if backend == "native":
            inputs = _of_one_dtype(u, *kernels, *absent)
            found = _native().gradients(grad.to(inputs[0].dtype), *inputs, True, True)
            return [dense(of.to(t.dtype)) for of, t in zip(found, (u, *kernels), strict=False)]
        inputs = leaves(kernels, [True] * len(kernels))
        circular = _circular(u, *inputs, *absent)
        with torch.no_grad():
            grad_u, of_circular = _CircularCorrelation.apply(grad.to(circular.dtype), u.to(circular.dtype), circular)
        return [dense(grad_u.to(u.dtype)), *gradients(circular, inputs, of_circular)]


@convolve_backward_op.register_fake
def _(grad: Tensor, u: Tensor, kernels: list[Tensor], backend: str) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, *kernels)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.backend = inputs
    ctx.save_for_backward(*(tensor for tensor in tensors if tensor is not None))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
    u, *kernels = ctx.saved_tensors
    grad_u, grad_kernel, *grad_reverse = convolve_backward_op(grad, u, kernels, ctx.backend)
    return grad_u, grad_kernel, grad_reverse[0] if grad_reverse else None, None


convolve_op.register_autograd(_backward, setup_context=_save)


@functools.lru_cache(maxsize=1024)
def good_fft_size(at_least: int) -> int:
    """The smallest even n >= at_least whose only prime factors are 2, 3, 5 and 7.

    >>> [good_fft_size(n) for n in (1, 7, 8191, 16385)]
    [2, 8, 8192, 16464]
    """
    n = max(2, at_least + at_least % 2)
    while True:
        rest = n
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 2


class _NativeConvolution(torch.autograd.Function):
    """(u, kernel, reverse_kernel or None), all float32 or all float64, to y."""

    @staticmethod
    def forward(ctx, u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None) -> Tensor:
        ctx.save_for_backward(u, kernel, reverse_kernel)
        return _native().convolution(u, kernel, reverse_kernel)

    @staticmethod
    def backward(ctx, grad: Tensor):
        refuse_transforms("The gradient of convolve", grad)
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():
            needs = ctx.needs_input_grad
            return _native().gradients(grad, *inputs, needs[0], any(needs[1:]))

        def composed(*parts: Tensor | None) -> Tensor:
            return _CircularConvolution.apply(parts[0], _circular(*parts))

        return tuple(graph_gradients(composed, inputs, ctx.needs_input_grad, [grad]))


def _native() -> ModuleType:
    from . import native

    return native


class _CircularConvolution(torch.autograd.Function):
    """y = first L positions of the circular convolution of u (B, L, H), padded to n, with kernel (H, n)."""

    @staticmethod
    def forward(ctx, u: Tensor, kernel: Tensor) -> Tensor:
        B, L, H = u.shape
        n = kernel.shape[1]
        kernel_spectrum = torch.fft.rfft(kernel)
        y, spectra, product = torch.empty(B, L, H, dtype=u.dtype, device=u.device), [], None
        for tile, padded in _padded_tiles(u, n):
            spectrum = torch.fft.rfft(padded)
            product = torch.mul(spectrum, kernel_spectrum, out=_rows(product, spectrum))
            y[tile] = _first(product, n, L)
            spectra.append(spectrum)
        ctx.save_for_backward(u, kernel, kernel_spectrum, *spectra)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        refuse_transforms("The gradient of convolve", grad)
        u, kernel, kernel_spectrum, *spectra = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _CircularCorrelation.apply(grad, u, kernel)
        return _correlate(grad, kernel.shape[1], kernel_spectrum, spectra, *ctx.needs_input_grad)


class _CircularCorrelation(torch.autograd.Function):
    """The two gradients of `_CircularConvolution` as a differentiable function of (grad, u, kernel)."""

    @staticmethod
    def forward(ctx, grad: Tensor, u: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(grad, u, kernel)
        n = kernel.shape[1]
        spectra = [torch.fft.rfft(padded) for _, padded in _padded_tiles(u, n)]
        return _correlate(grad, n, torch.fft.rfft(kernel), spectra, True, True)

    @staticmethod
    def backward(ctx, grad_u: Tensor, grad_kernel: Tensor):
        # Both outputs are the trilinear form <grad, u * kernel> with one argument left open.
        grad, u, kernel = ctx.saved_tensors
        of_grad = _CircularConvolution.apply(grad_u, kernel) + _CircularConvolution.apply(u, grad_kernel)
        of_u, _ = _CircularCorrelation.apply(grad, u, grad_kernel)
        _, of_kernel = _CircularCorrelation.apply(grad, grad_u, kernel)
        return of_grad, of_u, of_kernel


def _correlate(
    grad: Tensor, n: int, kernel_spectrum: Tensor, spectra: list[Tensor], needs_u: bool, needs_kernel: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of u and of the kernel: products with conj(kernel_spectrum) and with conj(spectra), summed."""
    B, L, H = grad.shape
    grad_u = torch.empty(B, L, H, dtype=grad.dtype, device=grad.device) if needs_u else None
    total = torch.zeros_like(kernel_spectrum) if needs_kernel else None
    conjugate, product = torch.conj_physical(kernel_spectrum), None
    for (tile, padded), spectrum in zip(_padded_tiles(grad, n), spectra, strict=True):
        grad_spectrum = torch.fft.rfft(padded)
        if needs_u:
            product = torch.mul(grad_spectrum, conjugate, out=_rows(product, grad_spectrum))
            grad_u[tile] = _first(product, n, L)
        if needs_kernel:
            # Accumulate the conjugate of the gradient: that conjugates this buffer, not the spectrum saved by autograd.
            grad_spectrum.conj_physical_()
            if len(spectrum) == 1:
                total.addcmul_(spectrum[0], grad_spectrum[0])
            else:
                total += grad_spectrum.mul_(spectrum).sum(0)
    return grad_u, torch.fft.irfft(total.conj_physical_(), n=n) if needs_kernel else None


def _padded_tiles(u: Tensor, n: int) -> Iterator[tuple[slice, Tensor]]:
    """Tiles of the batch: the slice, and (b, H, n) holding u (b, L, H) over length, zeros after it.

    On a CPU a tile fits the cache, and all tiles share one buffer; on other devices the batch is one tile.
    """
    B, L, H = u.shape
    size = B if u.device.type != "cpu" else min(B, max(1, _CPU_TILE // (n * H)))
    buffer = torch.zeros(size, H, n, dtype=u.dtype, device=u.device)
    for start in range(0, B, size):
        tile = slice(start, min(start + size, B))
        padded = buffer[: tile.stop - start]
        transpose_into(padded[..., :L], u[tile])
        yield tile, padded


def transpose_into(out: Tensor, u: Tensor) -> None:
    """out (b, H, L), of any strides, = u (b, L, H) with the last axes exchanged."""
    if u.device.type != "cpu":
        out.copy_(u.transpose(1, 2))
        return
    for row, sample in zip(out, u, strict=True):
        # On a CPU, transposing into dense memory first is three times faster than into strided rows.
        row.copy_(sample.T.contiguous())


def _rows(buffer: Tensor | None, like: Tensor) -> Tensor:
    """The first tile's buffer, cut to the size of this tile: reused because touching fresh pages is slow."""
    return torch.empty_like(like) if buffer is None else buffer[: len(like)]


def _first(spectrum: Tensor, n: int, length: int) -> Tensor:
    """(b, H, n/2 + 1) back to the first `length` positions, (b, length, H)."""
    return torch.fft.irfft(spectrum, n=n)[..., :length].transpose(1, 2)


def _check(u: Tensor, kernel: Tensor, reverse_kernel: Tensor | None) -> None:
    kernels = [kernel] if reverse_kernel is None else [kernel, reverse_kernel]
    for given in (u, *kernels):
        if not given.is_floating_point() or given.device != u.device:
            raise UsageError(
                f"convolve takes real floating-point tensors on one device, got {given.dtype} on {given.device} beside "
                f"u of {u.dtype} on {u.device}. Convert it: tensor.to(device, torch.float32)."
            )
    if u.dim() != 3 or 0 in u.shape or any(k.dim() != 2 or k.shape[0] != u.shape[2] or k.shape[1] < 1 for k in kernels):
        raise UsageError(
            f"convolve takes u (B, L, H), none of them 0, and kernels (H, lags), got u {tuple(u.shape)} and "
            f"{', '.join(str(tuple(k.shape)) for k in kernels)}."
        )
