"""The scan as one opaque operator, which torch.compile and torch.export neither trace nor rewrite.

Gradients, with g the gradient of x (forward direction; `reverse` mirrors the indices):

    G_k = g_k + conj(a_{k+1}) G_{k+1}          the same recurrence, run the other way
    db_k = G_k,   da_k = G_k conj(x_{k-1}),   dx_0 = conj(a_1) G_1

A backend module offers `forward(a, b, x0, reverse, out)` and `backward(a, x, x0, g, reverse, out, need_a)` on
contiguous tensors a (B or 1, L or 1, P), b = x = g = out (B, L, P), x0 (B, P) or None. `out` may be `b` (or `g`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..runtime.autograd import refuse_transforms
from .chunked import gate_gradient, shifted_conj


def implementation(name: str) -> ModuleType:
    """The module with `forward` and `backward` of a backend; imported at its first use."""
    if name == "native":
        from . import native

        return native
    if name == "triton":
        from . import triton

        return triton
    from . import chunked

    return chunked


def plain(t: Tensor) -> Tensor:
    """Contiguous, with lazy conjugation and negation carried out, so that a kernel may read it through a pointer."""
    return t.resolve_conj().resolve_neg().contiguous()


@torch.library.custom_op("fractal_ssm::scan", mutates_args=())
def scan_op(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, backend: str) -> Tensor:
    a, b, x0 = plain(a), plain(b), None if x0 is None else plain(x0)
    out = torch.empty_like(b)
    implementation(backend).forward(a, b, x0, reverse, out)
    return out


@scan_op.register_fake
def _(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, backend: str) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


@torch.library.custom_op("fractal_ssm::scan_backward", mutates_args=())
def scan_backward_op(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, reverse: bool, backend: str, need_a: bool
) -> tuple[Tensor, Tensor, Tensor]:
    a, x, g, x0 = plain(a), plain(x), plain(g), None if x0 is None else plain(x0)
    db = torch.empty_like(g)
    da, dx0 = implementation(backend).backward(a, x, x0, g, reverse, db, need_a)
    return a.new_empty(0) if da is None else da, db, a.new_empty(0) if dx0 is None else dx0


@scan_backward_op.register_fake
def _(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, reverse: bool, backend: str, need_a: bool
) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    da = torch.empty_like(a, memory_format=contiguous) if need_a else a.new_empty(0)
    dx0 = a.new_empty(0) if x0 is None else torch.empty_like(x0, memory_format=contiguous)
    return da, torch.empty_like(g, memory_format=contiguous), dx0


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, _, x0, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(a, output, x0)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
    refuse_transforms("The backward of scan")
    a, x, x0 = ctx.saved_tensors
    need_a, _, need_x0 = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():
        # For a second derivative: the same formulas, in operators that autograd records.
        db = scan_op(shifted_conj(a, ctx.reverse), g, None, not ctx.reverse, ctx.backend)
        first = -1 if ctx.reverse else 0
        da = gate_gradient(a, x, x0, db, ctx.reverse) if need_a else None
        return da, db, a[:, first].conj() * db[:, first] if need_x0 else None, None, None
    da, db, dx0 = scan_backward_op(a, x, x0, g, ctx.reverse, ctx.backend, need_a)
    return da if need_a else None, db, dx0 if need_x0 else None, None, None


scan_op.register_autograd(_backward, setup_context=_save)
