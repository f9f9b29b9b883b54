"""The operator behind `ssm`, its hand-written backward, and the same map composed of differentiable parts.

`passes` computes both. For GPUs `triton` has fused kernels that process whole chunks and keep the states at chunk
borders instead of x.
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
from . import passes
from .arguments import DIFFERENTIABLE, SCHEMA, TENSORS, Arguments
from .pieces import input_matrix, output_matrix


def fused_kernels(arguments: Arguments) -> ModuleType | None:
    """The module of the fused kernels if `ssm` should use them, else None. They support neither D nor input_gain."""
    if arguments.backend != "triton" or arguments.D is not None or arguments.input_gain is not None:
        return None
    from . import triton

    return triton if triton.applies(arguments) else None


@torch.library.custom_op(
    "fractal_ssm::ssm", mutates_args=(), schema=f"({SCHEMA}) -> (Tensor y, Tensor x_last, Tensor kept)"
)
def ssm_op(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    arguments = Arguments(*given)
    kernels = fused_kernels(arguments)
    if kernels is not None:
        return kernels.forward(arguments)
    # Inside autocast the products would silently drop to half precision.
    with torch.autocast(arguments.u.device.type, enabled=False):
        return passes.forward(arguments)


@ssm_op.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    arguments = Arguments(*given)
    u, a, C, (batch, length, _), modes = arguments.u, arguments.a, arguments.C, arguments.u.shape, arguments.a.shape[2]
    kernels = fused_kernels(arguments)
    if kernels is not None:
        kept = a.real.new_empty(batch, kernels.chunk_count(arguments), modes, 2)
    else:
        kept = a.new_empty(batch, passes.kept_states(u, modes, arguments.checkpoint), modes)
    return u.new_empty(batch, length, C.shape[0]), a.new_empty(batch, modes), kept


@torch.library.custom_op(
    "fractal_ssm::ssm_backward",
    mutates_args=(),
    schema=f"({SCHEMA}, Tensor kept, Tensor? gy, Tensor? gx_last, bool need_gates) -> "
    f"({', '.join(['Tensor'] * len(DIFFERENTIABLE))})",
)
def ssm_backward_op(*given: Any) -> tuple[Tensor, ...]:
    *values, kept, gy, gx_last, need_gates = given
    arguments = Arguments(*values)
    if not kept.is_complex():
        # Only the fused forward keeps reals: the states at the borders of its chunks.
        from . import triton

        found = triton.backward(arguments, kept, gy, gx_last, need_gates)
    else:
        with torch.autocast(arguments.u.device.type, enabled=False):
            found = passes.backward(arguments, kept, gy, gx_last, need_gates)
    # A custom operator cannot return None.
    return tuple([arguments.a.new_empty(0) if (g := found.get(name)) is None else g for name in DIFFERENTIABLE])


@ssm_backward_op.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    return like_wanted(Arguments(*given[: len(Arguments._fields)]), need_gates=given[-1])


def like_wanted(arguments: Arguments, need_gates: bool) -> tuple[Tensor, ...]:
    """One tensor for each gradient that the backward operators return, empty where there is none."""
    wanted = {name: getattr(arguments, name) for name in DIFFERENTIABLE}
    if not need_gates:
        wanted |= {"a": None, "input_gain": None}
    return tuple(
        arguments.a.new_empty(0) if t is None else torch.empty_like(t, memory_format=torch.contiguous_format)
        for t in wanted.values()
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    # The kept states are an output only so that autograd saves them; they receive no gradient.
    ctx.set_materialize_grads(False)
    ctx.options = inputs[len(TENSORS) :]
    ctx.save_for_backward(*inputs[: len(TENSORS)], output[2])


def _backward(ctx: Any, gy: Tensor | None, gx_last: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    refuse_transforms("The backward of ssm")
    *tensors, kept = ctx.saved_tensors
    arguments = Arguments(*tensors, *ctx.options)
    needed = dict(zip(Arguments._fields, ctx.needs_input_grad, strict=True))
    if torch.is_grad_enabled():
        found = _composed_gradients(arguments, needed, (gy, gx_last))
    else:
        gates = needed["a"] or needed["input_gain"]
        found = dict(zip(DIFFERENTIABLE, ssm_backward_op(*arguments, kept, gy, gx_last, gates), strict=True))
    return tuple([found.get(name) if need else None for name, need in needed.items()])


def _composed_gradients(
    arguments: Arguments, needed: dict[str, bool], gradients: tuple[Tensor | None, Tensor | None]
) -> dict[str, Tensor | None]:
    def of_tensors(*tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = dict(zip(DIFFERENTIABLE, tensors, strict=True))
        return compose(scan_op, arguments._replace(**parts, checkpoint=False))

    inputs = [getattr(arguments, name) for name in DIFFERENTIABLE]
    wanted = [needed[name] for name in DIFFERENTIABLE]
    return dict(zip(DIFFERENTIABLE, graph_gradients(of_tensors, inputs, wanted, gradients), strict=True))


ssm_op.register_autograd(_backward, setup_context=_save)


def compose(scan: Callable[..., Tensor], arguments: Arguments) -> tuple[Tensor, Tensor]:
    """The same map composed of operators that autograd records, for transforms and second derivatives."""

    def run(u, a, B, C, D, input_gain, x0):
        with torch.autocast(u.device.type, enabled=False):
            u = u.to(B.real.dtype)
            v = torch.view_as_complex((u @ input_matrix(B)).unflatten(-1, (-1, 2)))
            v = v if input_gain is None else input_gain * v
            x = scan(a, v, x0, arguments.reverse, arguments.backend)
            y = torch.view_as_real(x).flatten(-2) @ output_matrix(C, arguments.conj_factor)
            y = y if D is None else torch.addcmul(y, D, u)
            return y, _last(x, arguments.lengths, arguments.reverse)

    tensors = [getattr(arguments, name) for name in DIFFERENTIABLE]
    if arguments.checkpoint:
        return recompute(run, *tensors, use_reentrant=False, preserve_rng_state=False)
    return run(*tensors)


def _last(x: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    if lengths is None:
        return x[:, 0 if reverse else -1]
    return x[torch.arange(x.shape[0], device=x.device), lengths - 1]
