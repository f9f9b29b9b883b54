"""A SISO layer's system inside torch.compile and torch.export: its complex arithmetic as one opaque operator.

inductor's code for complex tensors is wrong in places, so they are hidden from it: the operator takes the layer's real
parameters and returns a real kernel or output (or the state). Its body is the eager code, on a copy of the layer with
the operator's tensors as parameters. Its backward pass recomputes the result with gradients; for a kernel the cost does
not depend on the batch.

The layer is passed as a string of its class and options: an operator takes tensors, numbers and text only, and a graph
that is exported or stored must mean the same in another process. Pure functions of tensors and options would need the
same string and a registered name, and would repeat each layer's equations (`Lambda`, `dt`, `fold`).
"""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import Tensor

from ...ops.runtime.autograd import as_outside, dense, gradients, leaves
from ..stateful import full_precision
from .system import HasSystem, System

_KINDS: dict[str, type[HasSystem]] = {}


def register_kind(kind: type[HasSystem]) -> None:
    """Register a layer class, so that the operator finds it by its name."""
    _KINDS[_name(kind)] = kind


class OpaqueSystem(System):
    """The system of `layer` at a dt_scale, with every method as one operator that is opaque to a compiler."""

    def __init__(self, layer: HasSystem, dt_scale: float | Tensor):
        self._tensors = {name: getattr(layer, name) for name in layer.roles if getattr(layer, name) is not None}
        self._scale = 1.0
        if isinstance(dt_scale, Tensor):
            self._tensors["dt_scale"] = dt_scale
        else:
            self._scale = float(dt_scale)
        options = [f"{name}={getattr(layer, name, None)!r}" for name in layer.options]
        self._kind = ";".join([_name(type(layer)), *options])

    def kernel(self, length: int) -> Tensor:
        """See `System`."""
        return self._call("kernel", length)

    def free_response(self, x: Tensor, length: int) -> Tensor:
        """See `System`."""
        return self._call("free_response", length, x=x)

    def last_state(self, u: Tensor, x0: Tensor | None, lengths: Tensor | None) -> Tensor:
        """See `System`."""
        inputs = {"u": u, "x": x0, "lengths": lengths}
        return self._call("last_state", u.shape[1], **{k: v for k, v in inputs.items() if v is not None})

    def advance(self, x: Tensor, steps: int | Tensor) -> Tensor:
        """Not available: a compiled graph calls `kernel`, `free_response` and `last_state` only."""
        raise NotImplementedError

    final_state = step = advance

    def _call(self, what: str, length: int, **inputs: Tensor) -> Tensor:
        tensors = {**self._tensors, **inputs}
        spec = ";".join([what, " ".join(tensors), self._kind])
        return siso_op(list(tensors.values()), spec, length, self._scale)


@torch.library.custom_op("fractal_ssm::siso", mutates_args=())
def siso_op(tensors: list[Tensor], spec: str, length: int, scale: float) -> Tensor:
    with as_outside(recording=False):
        return dense(_evaluate(tensors, spec, length, scale))


@siso_op.register_fake
def _(tensors: list[Tensor], spec: str, length: int, scale: float) -> Tensor:
    what, layer, inputs = _rebuilt(tensors, spec)
    C = layer.C
    if what == "kernel":
        return C.new_empty(C.shape[0], layer.d_model, length)
    if what == "free_response":
        return C.new_empty(inputs["x"].shape[0], length, layer.d_output)
    return C.new_empty(inputs["u"].shape[0], *C.shape[1:3], dtype=C.dtype.to_complex())


@torch.library.custom_op("fractal_ssm::siso_backward", mutates_args=())
def siso_backward_op(
    grad: Tensor, tensors: list[Tensor], needed: list[bool], spec: str, length: int, scale: float
) -> list[Tensor]:
    with as_outside(recording=True):
        inputs = leaves(tensors, needed)
        return gradients(_evaluate(inputs, spec, length, scale), inputs, grad)


@siso_backward_op.register_fake
def _(grad: Tensor, tensors: list[Tensor], needed: list[bool], spec: str, length: int, scale: float) -> list[Tensor]:
    wanted = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in wanted]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.spec, ctx.length, ctx.scale = inputs
    ctx.needed = [tensor.requires_grad for tensor in tensors]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[list[Tensor | None], None, None, None]:
    found = iter(siso_backward_op(grad, list(ctx.saved_tensors), ctx.needed, ctx.spec, ctx.length, ctx.scale))
    return [next(found) if need else None for need in ctx.needed], None, None, None


siso_op.register_autograd(_backward, setup_context=_save)


def _evaluate(tensors: list[Tensor], spec: str, length: int, scale: float) -> Tensor:
    what, layer, inputs = _rebuilt(tensors, spec)
    with full_precision(layer.C.device):
        system = layer.system(inputs.get("dt_scale", scale))
        if what == "kernel":
            return system.kernel(length)
        if what == "free_response":
            return system.free_response(inputs["x"], length)
        return system.last_state(inputs["u"], inputs.get("x"), inputs.get("lengths"))


def _rebuilt(tensors: list[Tensor], spec: str) -> tuple[str, HasSystem, dict[str, Tensor]]:
    """(requested quantity, the layer rebuilt around these parameters, the remaining tensors)."""
    what, names, kind, *options = spec.split(";")
    given = dict(zip(names.split(), tensors, strict=True))
    layer = object.__new__(_KINDS[kind])
    values = dict.fromkeys(layer.roles)
    values |= {name: given.pop(name) for name in layer.roles if name in given}
    values |= {name: ast.literal_eval(value) for name, value in (option.split("=", 1) for option in options)}
    # Bypasses nn.Module's bookkeeping: nothing has to be registered.
    layer.__dict__.update(values)
    return what, layer, given


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
