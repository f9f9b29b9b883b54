"""The functions, their gradients, and the rule for when compiled passes replace torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..runtime.autograd import graph_gradients, is_batch_of_gradients, leaves, may_bypass_dispatcher
from ..runtime.presence import numba_obstacle

# Below this many elements torch's operators are as fast, since an autograd function in Python costs some 10 us.
_SMALL = 32768


def passes_fit(*tensors: Tensor) -> bool:
    """Whether the compiled passes may run on these tensors: large, real, of one dtype, and on the CPU.

    torch's operators are needed where something intercepts them (torch.compile, torch.export, tracers, transforms,
    dispatch modes) and for a batch of gradients (`is_grads_batched`), which arrives as one tensor.
    """
    first = tensors[0]
    return (
        may_bypass_dispatcher(*tensors)
        and first.numel() >= _SMALL
        and not numba_obstacle()
        and first.dtype in (torch.float32, torch.float64)
        and all(t.dtype == first.dtype and t.layout == torch.strided for t in tensors)
        and not any(is_batch_of_gradients(t) for t in tensors)
    )


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), elementwise, in the dtype of x."""
    return _GELU.apply(x) if passes_fit(x) else _gelu(x)


def gated(v: Tensor, w: Tensor, silu: bool = False) -> Tensor:
    """v sigmoid(w), or v w sigmoid(w) with `silu`, elementwise; v and w of one shape."""
    if not passes_fit(v, w) or v.shape != w.shape:
        return _silu_gated(v, w) if silu else _gated(v, w)
    return _Gated.apply(v, w, silu)


def through_torch(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], g: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of `function`, made of torch's operators; differentiable themselves if autograd is recording."""
    if torch.is_grad_enabled():
        return tuple(graph_gradients(function, inputs, needed, [g]))
    with torch.enable_grad():
        given = leaves(inputs, needed)
        out = function(*given)
    wanted = [t for t, need in zip(given, needed, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, g))
    return tuple(next(found) if need else None for need in needed)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gated(v: Tensor, w: Tensor) -> Tensor:
    return v * w.sigmoid()


def _silu_gated(v: Tensor, w: Tensor) -> Tensor:
    return v * F.silu(w)


def _native() -> Any:
    from . import native

    return native


class _GELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _native().gelu(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not passes_fit(g, x):
            return through_torch(_gelu, (x,), (True,), g)
        return _native().gelu_gradient(g, x)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, w: Tensor, silu: bool) -> Tensor:
        ctx.save_for_backward(v, w)
        ctx.silu = silu
        return _native().gated(v, w, silu)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        v, w = ctx.saved_tensors
        if torch.is_grad_enabled() or not passes_fit(g, v, w):
            function = _silu_gated if ctx.silu else _gated
            return *through_torch(function, (v, w), ctx.needs_input_grad[:2], g), None
        return *_native().gated_gradients(g, v, w, ctx.silu), None
