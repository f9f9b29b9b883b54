"""The operator behind `ssm`, its hand-written backward, and the same map composed of differentiable parts.

`sweep` has the passes of both. On GPUs `triton_backend` has kernels that do all of a chunk at once and keep the states
at chunk borders in place of x.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from ..runtime.autograd import graph_gradients, refuse_transforms
from ..scan.custom_op import scan_op
from . import passes as sweep
from .pieces import input_matrix, output_matrix


def fused_kernels(u: Tensor, a: Tensor, B_bar: Tensor, C: Tensor, backend: str) -> ModuleType | None:
    """The module of the fused kernels where they are the way to run `ssm` on these tensors; a: (1 or B, 1 or L, P).

    They know neither D nor gamma.
    """
    if backend != "triton":
        return None
    from . import triton as triton_backend

    return triton_backend if triton_backend.applies(u, a, B_bar, C) else None


@torch.library.custom_op("fractal_ssm::ssm", mutates_args=())
def ssm_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    D: Tensor | None,
    gamma: Tensor | None,
    x0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
    checkpoint: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    kernels = fused_kernels(u, a, B_bar, C, backend) if D is None and gamma is None else None
    if kernels is not None:
        return kernels.forward(u, a, B_bar, C, x0, lengths, reverse, factor)
    # Inside autocast the products would silently drop to half precision.
    with torch.autocast(u.device.type, enabled=False):
        system = sweep.System(a, B_bar, C, D, gamma, x0, reverse, factor, backend)
        return sweep.forward(system, u, lengths, checkpoint)


@ssm_op.register_fake
def _(u, a, B_bar, C, D, gamma, x0, lengths, reverse, factor, backend, checkpoint):
    batch, length, _ = u.shape
    kernels = fused_kernels(u, a, B_bar, C, backend) if D is None and gamma is None else None
    if kernels is not None:
        x = B_bar.real.new_empty(batch, kernels.chunk_count(u, B_bar, C), a.shape[2], 2)
    else:
        x = a.new_empty(batch, sweep.kept_states(u, a.shape[2], checkpoint), a.shape[2])
    return u.new_empty(batch, length, C.shape[0]), a.new_empty(batch, a.shape[2]), x


@torch.library.custom_op("fractal_ssm::ssm_backward", mutates_args=())
def ssm_backward_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    D: Tensor | None,
    gamma: Tensor | None,
    x0: Tensor | None,
    lengths: Tensor | None,
    x: Tensor,
    gy: Tensor | None,
    gx_last: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
    need_gates: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not x.is_complex():
        # Only the fused forward keeps reals: the states at the borders of its chunks.
        from . import triton as triton_backend

        *found, gx0 = triton_backend.backward(
            u, a, B_bar, C, x0, lengths, x, gy, gx_last, reverse, factor, need_gates
        )
        gradients = [*found, None, None, gx0]
    else:
        with torch.autocast(u.device.type, enabled=False):
            system = sweep.System(a, B_bar, C, D, gamma, x0, reverse, factor, backend)
            gradients = sweep.backward(system, u, lengths, x, gy, gx_last, need_gates)
    # An operator returns no None.
    return tuple(a.new_empty(0) if g is None else g for g in gradients)


@ssm_backward_op.register_fake
def _(u, a, B_bar, C, D, gamma, x0, lengths, x, gy, gx_last, reverse, factor, backend, need_gates):
    wanted = (u, a if need_gates else None, B_bar, C, D, gamma if need_gates else None, x0)
    return tuple(
        a.new_empty(0) if t is None else torch.empty_like(t, memory_format=torch.contiguous_format) for t in wanted
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.reverse, ctx.factor, ctx.backend, _ = inputs
    # The states are an output only because an operator can keep nothing else; no gradient of theirs is made up.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[2])


def _backward(ctx: Any, gy: Tensor | None, gx_last: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    refuse_transforms("The backward of ssm")
    *inputs, lengths, x = ctx.saved_tensors
    needed = ctx.needs_input_grad[:7]
    options = (ctx.reverse, ctx.factor, ctx.backend)
    if torch.is_grad_enabled():

        def composed(*parts: Tensor | None) -> tuple[Tensor, Tensor]:
            return compose(scan_op, *parts, lengths, *options, False)

        gradients = graph_gradients(composed, inputs, needed, (gy, gx_last))
    else:
        gradients = ssm_backward_op(*inputs, lengths, x, gy, gx_last, *options, needed[1] or needed[5])
    return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None, None, None, None, None


ssm_op.register_autograd(_backward, setup_context=_save)


def compose(
    scan: Callable[..., Tensor],
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    D: Tensor | None,
    gamma: Tensor | None,
    x0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    factor: float,
    backend: str,
    checkpoint: bool,
) -> tuple[Tensor, Tensor]:
    """The same map from parts that autograd follows: for transforms, and for second derivatives."""

    def run(u, a, B_bar, C, D, gamma, x0):
        with torch.autocast(u.device.type, enabled=False):
            u = u.to(B_bar.real.dtype)
            v = torch.view_as_complex((u @ input_matrix(B_bar)).unflatten(-1, (-1, 2)))
            x = scan(a, v if gamma is None else gamma * v, x0, reverse, backend)
            y = torch.view_as_real(x).flatten(-2) @ output_matrix(C, factor)
            return y if D is None else torch.addcmul(y, D, u), _last(x, lengths, reverse)

    if checkpoint:
        return recompute(run, u, a, B_bar, C, D, gamma, x0, use_reentrant=False, preserve_rng_state=False)
    return run(u, a, B_bar, C, D, gamma, x0)


def _last(x: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    if lengths is None:
        return x[:, 0 if reverse else -1]
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]
