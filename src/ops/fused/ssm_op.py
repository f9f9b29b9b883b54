"""The operator behind `ssm`, its hand-written backward, and the same map composed of differentiable parts.

With X = [Re x, Im x] interleaved, (B L, 2P), and real matrices W_B (H, 2P), W_C (2P, H_out) made of B_bar and C:

    V = U W_B,  X = scan(V) in place,  Y = X W_C
    G = adjoint scan(dY W_C^T) in place,  dU = G W_B^T,  dW_B = U^T G,  dW_C = X^T dY

so that products are real (a quarter of the complex flops each way) and the complex layout costs no copy. On GPUs
`triton_backend` has kernels that do all of a chunk at once and keep the states at chunk borders in place of x.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from ..scan.backends import implementation
from ..scan.custom_op import plain, scan_op
from ..transforms import refuse_transforms


# With `checkpoint` the states exist for this share of the sequence at a time, but for no fewer steps than the second.
_SLABS = 16
_SHORTEST_SLAB = 64


def input_matrix(B_bar: Tensor) -> Tensor:
    """(P, H) complex to W_B (H, 2P) real."""
    return torch.view_as_real(B_bar.t().resolve_conj().contiguous()).flatten(1)


def output_matrix(C: Tensor, factor: float) -> Tensor:
    """(H_out, P) complex to W_C (2P, H_out) real, with X W_C = factor Re(C x)."""
    return torch.stack([C.real, -C.imag], dim=-1).mul(factor).flatten(1).t()


def fused_kernels(u: Tensor, a: Tensor, B_bar: Tensor, C: Tensor, backend: str) -> ModuleType | None:
    """The module of the fused kernels where they are the way to run `ssm` on these tensors; a: (1 or B, 1 or L, P)."""
    if backend != "triton":
        return None
    from . import triton_backend

    return triton_backend if triton_backend.applies(u, a, B_bar, C) else None


def _states(
    u: Tensor, a: Tensor, B_bar: Tensor, x0: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    x = torch.view_as_complex((u.reshape(-1, u.shape[2]) @ input_matrix(B_bar)).view(*u.shape[:2], len(B_bar), 2))
    implementation(backend).forward(plain(a), x, None if x0 is None else plain(x0), reverse, x)
    return x


def flat(x: Tensor) -> Tensor:
    """(B, L, P) complex to (B L, 2P) real, the same memory."""
    return torch.view_as_real(x).view(x.shape[0] * x.shape[1], 2 * x.shape[2])


def _last(x: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    if lengths is None:
        return x[:, 0 if reverse else -1]
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]


def _slabs(length: int, reverse: bool) -> list[slice]:
    """The sequence in the order of the recurrence, cut where recomputation starts anew: at most `_SLABS` pieces."""
    size = max(_SHORTEST_SLAB, -(-length // _SLABS))
    slabs = [slice(start, min(length, start + size)) for start in range(0, length, size)]
    return slabs[::-1] if reverse else slabs


def _of(a: Tensor, slab: slice) -> Tensor:
    return a if a.shape[1] == 1 else a[:, slab]


def _forward_by_slabs(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    x0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, x_last and (B, slabs - 1, P) the states between slabs; no more states than those of a slab at a time."""
    y = u.new_empty(*u.shape[:2], len(C))
    W_C, state, between = output_matrix(C, factor), x0, []
    x_last = a.new_zeros(u.shape[0], a.shape[2])
    for slab in _slabs(u.shape[1], reverse):
        x = _states(u[:, slab], _of(a, slab), B_bar, state, reverse, backend)
        y[:, slab] = (flat(x) @ W_C).view(*x.shape[:2], -1)
        state = _last(x, None, reverse).clone()
        between.append(state)
        if lengths is not None:
            row, at, inside = _last_steps(lengths, slab)
            x_last = torch.where(inside[:, None], x[row, at], x_last)
    return y, state if lengths is None else x_last, torch.stack(between, 1)[:, :-1].clone()


def _last_steps(lengths: Tensor, slab: slice) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) each: 0 .. B - 1, where in the slab the sample's last step is, and whether it is there at all."""
    at = lengths - 1 - slab.start
    size = slab.stop - slab.start
    return torch.arange(len(lengths), device=lengths.device), at.clamp(0, size - 1), (at >= 0) & (at < size)


@torch.library.custom_op("fractal_ssm::ssm", mutates_args=())
def ssm_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    x0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
    checkpoint: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    kernels = fused_kernels(u, a, B_bar, C, backend)
    if kernels is not None:
        return kernels.forward(u, a, B_bar, C, x0, lengths, reverse, factor)
    # Inside autocast the products would silently drop to half precision.
    with torch.autocast(u.device.type, enabled=False):
        if checkpoint:
            return _forward_by_slabs(u, a, B_bar, C, x0, lengths, reverse, factor, backend)
        x = _states(u, a, B_bar, x0, reverse, backend)
        y = (flat(x) @ output_matrix(C, factor)).view(*u.shape[:2], len(C))
    return y, _last(x, lengths, reverse).clone(), x


@ssm_op.register_fake
def _(u, a, B_bar, C, x0, lengths, reverse, factor, backend, checkpoint):
    batch, length, _ = u.shape
    kernels = fused_kernels(u, a, B_bar, C, backend)
    if kernels is not None:
        x = B_bar.real.new_empty(batch, kernels.chunk_count(u, B_bar, C), a.shape[2], 2)
    else:
        x = a.new_empty(batch, len(_slabs(length, reverse)) - 1 if checkpoint else length, a.shape[2])
    return u.new_empty(batch, length, C.shape[0]), a.new_empty(batch, a.shape[2]), x


@torch.library.custom_op("fractal_ssm::ssm_backward", mutates_args=())
def ssm_backward_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    x0: Tensor | None,
    lengths: Tensor | None,
    x: Tensor,
    gy: Tensor | None,
    gx_last: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
    need_a: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    nothing = a.new_empty(0)
    if not x.is_complex():
        # Only the fused forward keeps reals: the states at the borders of its chunks.
        from . import triton_backend

        gu, ga, gB, gC, gx0 = triton_backend.backward(
            u, a, B_bar, C, x0, lengths, x, gy, gx_last, reverse, factor, need_a
        )
        return gu, nothing if ga is None else ga, gB, gC, nothing.clone() if gx0 is None else gx0
    with torch.autocast(u.device.type, enabled=False):
        options = (reverse, factor, backend, need_a)
        if x.shape[1] == u.shape[1]:
            row, at = slice(None), 0 if reverse else -1
            if lengths is not None:
                row, at = torch.arange(len(u), device=u.device), lengths - 1
            ends = [] if gx_last is None else [(row, at, gx_last)]
            gu, ga, gB, gC, gx0 = _gradients(u, a, B_bar, C, x0, x, gy, ends, *options)
        else:
            gu, ga, gB, gC, gx0 = _gradients_by_slabs(u, a, B_bar, C, x0, lengths, x, gy, gx_last, *options)
    return gu, nothing if ga is None else ga, gB, gC, nothing.clone() if gx0 is None else gx0


def _gradients(u, a, B_bar, C, x0, x, gy, ends, reverse, factor, backend, need_a):
    """Of u, a (or None), B_bar, C and x0 (or None), with all states at hand.

    ends: (rows, positions, gradient) of states that are outputs themselves.
    """
    u_flat, x_flat = u.reshape(-1, u.shape[2]), flat(x)
    if gy is None:
        g, gC = torch.zeros_like(x), torch.zeros_like(C)
    else:
        gy_flat = gy.reshape(-1, gy.shape[2])
        W_C = output_matrix(C, factor)
        gW_C = (gy_flat.t() @ x_flat).view(C.shape[0], -1, 2)
        gC = torch.complex(gW_C[..., 0] * factor, gW_C[..., 1] * -factor)
        g = torch.view_as_complex((gy_flat @ W_C.t()).view(*x.shape, 2))
    for row, at, gradient in ends:
        g[row, at] += gradient
    start = None if x0 is None else plain(x0)
    ga, gx0 = implementation(backend).backward(plain(a), x, start, g, reverse, g, need_a)
    g_flat = flat(g)
    gu = (g_flat @ input_matrix(B_bar).t()).view(u.shape)
    gB = torch.view_as_complex((u_flat.t() @ g_flat).view(u.shape[2], -1, 2)).t().contiguous()
    return gu, ga, gB, gC, gx0


def _gradients_by_slabs(u, a, B_bar, C, x0, lengths, between, gy, gx_last, reverse, factor, backend, need_a):
    """The same from the states between slabs: each slab's states are made again, and its adjoint handed on."""
    gu = torch.empty_like(u, memory_format=torch.contiguous_format)
    gB, gC = torch.zeros_like(B_bar), torch.zeros_like(C)
    ga = torch.zeros_like(a, memory_format=torch.contiguous_format) if need_a else None
    adjoint = gx_last if lengths is None else None
    slabs = _slabs(u.shape[1], reverse)
    for index in reversed(range(len(slabs))):
        slab = slabs[index]
        start = between[:, index - 1] if index else x0
        ends = [] if adjoint is None else [(slice(None), 0 if reverse else -1, adjoint)]
        if lengths is not None and gx_last is not None:
            row, at, inside = _last_steps(lengths, slab)
            ends.append((row, at, torch.where(inside[:, None], gx_last, torch.zeros_like(gx_last))))
        u_slab, a_slab, gy_slab = u[:, slab], _of(a, slab), None if gy is None else gy[:, slab]
        x = _states(u_slab, a_slab, B_bar, start, reverse, backend)
        parts = _gradients(u_slab, a_slab, B_bar, C, start, x, gy_slab, ends, reverse, factor, backend, need_a)
        gu[:, slab], adjoint = parts[0], parts[4]
        gB += parts[2]
        gC += parts[3]
        if ga is not None:
            _of(ga, slab).add_(parts[1])
    return gu, ga, gB, gC, adjoint


@ssm_backward_op.register_fake
def _(u, a, B_bar, C, x0, lengths, x, gy, gx_last, reverse, factor, backend, need_a):
    contiguous = torch.contiguous_format
    like = [torch.empty_like(t, memory_format=contiguous) for t in (u, B_bar, C)]
    ga = torch.empty_like(a, memory_format=contiguous) if need_a else a.new_empty(0)
    gx0 = a.new_empty(0) if x0 is None else torch.empty_like(x0, memory_format=contiguous)
    return like[0], ga, like[1], like[2], gx0


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, a, B_bar, C, x0, lengths, ctx.reverse, ctx.factor, ctx.backend, _ = inputs
    # The states are an output only because an operator can keep nothing else; no gradient of theirs is made up.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, a, B_bar, C, x0, lengths, output[2])


def _backward(ctx: Any, gy: Tensor | None, gx_last: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    refuse_transforms("The backward of ssm")
    u, a, B_bar, C, x0, lengths, x = ctx.saved_tensors
    needed = ctx.needs_input_grad[:5]
    options = (ctx.reverse, ctx.factor, ctx.backend)
    if torch.is_grad_enabled():
        gradients = _twice_differentiable((u, a, B_bar, C, x0), needed, lengths, gy, gx_last, *options)
    else:
        gradients = ssm_backward_op(u, a, B_bar, C, x0, lengths, x, gy, gx_last, *options, needed[1])
    return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None, None, None, None, None


ssm_op.register_autograd(_backward, setup_context=_save)


def _twice_differentiable(inputs, needed, lengths, gy, gx_last, reverse, factor, backend):
    u, a, B_bar, C, x0 = inputs
    outputs = compose(scan_op, u, a, B_bar, C, x0, None, lengths, reverse, factor, backend, False)
    # The state does not depend on C: where nothing else wants a gradient, it has none.
    pairs = [(out, g) for out, g in zip(outputs, (gy, gx_last), strict=True) if g is not None and out.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    found = iter(
        torch.autograd.grad(
            [out for out, _ in pairs], wanted, [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    )
    return [next(found) if need else None for need in needed]


def compose(
    scan: Callable[..., Tensor],
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    x0: Tensor | None,
    gamma: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
    checkpoint: bool,
) -> tuple[Tensor, Tensor]:
    """The same map from parts that autograd follows: for a gain per step, and for second derivatives."""

    def run(u, a, B_bar, C, x0, gamma):
        with torch.autocast(u.device.type, enabled=False):
            v = torch.view_as_complex((u.to(B_bar.real.dtype) @ input_matrix(B_bar)).unflatten(-1, (-1, 2)))
            x = scan(a, v if gamma is None else gamma * v, x0, reverse, backend)
            y = torch.view_as_real(x).flatten(-2) @ output_matrix(C, factor)
        return y.to(u.dtype), _last(x, lengths, reverse)

    if checkpoint:
        return recompute(run, u, a, B_bar, C, x0, gamma, use_reentrant=False, preserve_rng_state=False)
    return run(u, a, B_bar, C, x0, gamma)
