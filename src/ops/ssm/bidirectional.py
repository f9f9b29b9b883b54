"""Both directions of a bidirectional diagonal SSM in one operator, sharing the products at its input and output.

In the notation of `passes`, with the states X_f and X_b of the two scans side by side in one (B L, 4P) array:

    V = gain (U W_B),  X = [scan(V), reverse scan(V)],  Y = D U + X W_C
    [G_f, G_b] = dY W_C^T,  adjoint scans in place,  G = G_f + G_b,  then as in one direction

so U is read once and Y written once, in six products instead of twelve. Pieces are whole samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..runtime.autograd import graph_gradients, refuse_transforms
from ..runtime.backends import choose
from ..scan.custom_op import implementation, plain, scan_op
from ..scan.interface import prove
from ..tensors import require_given
from .arguments import DIFFERENTIABLE, SCHEMA, TENSORS, Arguments
from .interface import check_shapes, prepared, ssm
from .op import compose, like_wanted
from .passes import Prepared, Sums
from .pieces import Piece, Scratch, longest_whole, most_rows, pieces

# The only backend whose scans can read and write some of the modes of an array.
_BACKEND = "native"


def bidirectional_ssm(
    u: Tensor,
    Lambda_bar: Tensor,
    B: Tensor,
    C: Tensor,
    C_backward: Tensor,
    conj_sym: bool = True,
    input_gain: Tensor | None = None,
    checkpoint: bool = False,
    D: Tensor | None = None,
) -> Tensor:
    """y of `ssm` with C and D, plus y of `ssm` with C_backward and `reverse`: both directions, each from rest.

    Args:
        u, Lambda_bar, B, input_gain, checkpoint: as for `ssm`; the same in both directions.
        C, C_backward: (H_out, P) complex.
        conj_sym, D: as for `ssm`.
    Returns:
        (B, L, H_out) in the dtype of u, twice differentiable in every tensor argument.
    Raises:
        UsageError: shapes that do not fit.
    """
    require_given("bidirectional_ssm", C_backward=C_backward)
    shared = {"conj_sym": conj_sym, "input_gain": input_gain, "checkpoint": checkpoint}
    arguments = prepared(u, Lambda_bar, B, C, D=D, x0=None, **shared)
    check_shapes(u, Lambda_bar, B, C_backward, None, input_gain, D)
    name = choose("scan", "auto", u.device, proof=prove)
    # To recompute a sample in several pieces, each direction has to run by itself.
    if name != _BACKEND or (checkpoint and u.shape[1] > longest_whole(u, len(B))):
        backward = ssm(u, Lambda_bar, B, C_backward, reverse=True, **shared)[0]
        return ssm(u, Lambda_bar, B, C, D=D, **shared)[0] + backward
    y, _ = bidirectional_op(*arguments._replace(backend=_BACKEND), C_backward.to(arguments.C.dtype))
    return y.to(u.dtype)


class _BothWays(Prepared):
    """The system with X = [X_f, X_b]: C holds both output matrices side by side."""

    def __init__(self, arguments: Arguments, C_backward: Tensor):
        super().__init__(arguments._replace(C=torch.cat([plain(arguments.C), plain(C_backward)], 1)))

    def states(self, piece: Piece, u: Tensor, v: Tensor, x: Tensor) -> None:
        """Write the states of whole samples to x (B, L, 2P); v (B, L, P) is scratch for the input gain B u."""
        self.drive(piece, u, v)
        a, scan = plain(piece.of(self.a)), implementation(_BACKEND)
        scan.forward(a, v, None, False, x)
        scan.forward(a, v, None, True, x, column=v.shape[2])


def _whole_samples(u: Tensor, modes: int, checkpoint: bool) -> list[Piece]:
    batch, length, _ = u.shape
    return pieces(batch, length, max(length, most_rows(u, 2 * modes, checkpoint)))


@torch.library.custom_op(
    "fractal_ssm::bidirectional_ssm",
    mutates_args=(),
    schema=f"({SCHEMA}, Tensor C_backward) -> (Tensor y, Tensor kept)",
)
def bidirectional_op(*given: Any) -> tuple[Tensor, Tensor]:
    *values, C_backward = given
    arguments = Arguments(*values)
    u, checkpoint, (batch, length, _), modes = arguments.u, arguments.checkpoint, arguments.u.shape, len(arguments.B)
    with torch.autocast(u.device.type, enabled=False):
        system, work = _BothWays(arguments, C_backward), _whole_samples(u, modes, checkpoint)
        y = u.new_empty(batch, length, len(arguments.C))
        x = arguments.a.new_empty(batch, 0 if checkpoint else length, 2 * modes)
        v, scratch = Scratch(x, modes, work), Scratch(x, 2 * modes, work) if checkpoint else None
        for piece in work:
            states = x[piece.samples] if scratch is None else scratch.of(piece)
            system.states(piece, u[piece.samples], v.of(piece), states)
            system.output(u[piece.samples], states, y[piece.samples])
    return y, x


@bidirectional_op.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor]:
    arguments = Arguments(*given[:-1])
    batch, length, _ = arguments.u.shape
    kept = arguments.a.new_empty(batch, 0 if arguments.checkpoint else length, 2 * len(arguments.B))
    return arguments.u.new_empty(batch, length, arguments.C.shape[0]), kept


@torch.library.custom_op(
    "fractal_ssm::bidirectional_ssm_backward",
    mutates_args=(),
    schema=f"({SCHEMA}, Tensor C_backward, Tensor kept, Tensor gy, bool need_gates) -> "
    f"({', '.join(['Tensor'] * (len(DIFFERENTIABLE) + 1))})",
)
def bidirectional_backward_op(*given: Any) -> tuple[Tensor, ...]:
    *values, C_backward, x, gy, need_gates = given
    arguments = Arguments(*values)
    u, modes = arguments.u, len(arguments.B)
    recomputed = x.shape[1] != u.shape[1]
    with torch.autocast(u.device.type, enabled=False):
        system, work = _BothWays(arguments, C_backward), _whole_samples(u, modes, recomputed)
        sums, scan = Sums(system, u, need_gates), implementation(_BACKEND)
        v, g = Scratch(x, modes, work), Scratch(x, 2 * modes, work)
        scratch = Scratch(x, 2 * modes, work) if recomputed else None
        for piece in work:
            samples = piece.samples
            states = x[samples] if scratch is None else scratch.of(piece)
            if scratch is not None:
                system.states(piece, u[samples], v.of(piece), states)
            adjoint = g.of(piece)
            sums.add_output(piece, u[samples], states, gy[samples], adjoint)
            gates = plain(piece.of(system.a))
            ga, _ = scan.backward(gates, states, None, adjoint, False, adjoint, need_gates)
            ga_backward, _ = scan.backward(gates, states, None, adjoint, True, adjoint, need_gates, column=modes)
            if need_gates:
                sums.add_gate(piece, ga + ga_backward)
            total = torch.add(adjoint[..., :modes], adjoint[..., modes:], out=v.of(piece))
            sums.add_input(piece, u[samples], total)
        found = sums.gradients()
    # Clone: with one output feature the halves would be views of the same memory, which an operator may not return.
    halves = found["C"].tensor_split(2, 1)
    found["C"], gC_backward = (half.clone(memory_format=torch.contiguous_format) for half in halves)
    values = [arguments.a.new_empty(0) if (g := found.get(name)) is None else g for name in DIFFERENTIABLE]
    return *values, gC_backward


@bidirectional_backward_op.register_fake
def _(*given: Any) -> tuple[Tensor, ...]:
    *values, C_backward, _, _, need_gates = given
    of_backward = torch.empty_like(C_backward, memory_format=torch.contiguous_format)
    return *like_wanted(Arguments(*values), need_gates), of_backward


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *values, C_backward = inputs
    ctx.set_materialize_grads(False)
    ctx.options = values[len(TENSORS) :]
    ctx.save_for_backward(*values[: len(TENSORS)], C_backward, output[1])


def _backward(ctx: Any, gy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    refuse_transforms("The backward of bidirectional_ssm")
    if gy is None:
        return (None,) * (len(Arguments._fields) + 1)
    *tensors, C_backward, kept = ctx.saved_tensors
    arguments = Arguments(*tensors, *ctx.options)
    *of_arguments, needs_C_backward = ctx.needs_input_grad
    needed = dict(zip(Arguments._fields, of_arguments, strict=True))
    if torch.is_grad_enabled():
        found, of_C_backward = _composed_gradients(arguments, C_backward, needed, needs_C_backward, gy)
    else:
        gates = needed["a"] or needed["input_gain"]
        *values, of_C_backward = bidirectional_backward_op(*arguments, C_backward, kept, gy, gates)
        found = dict(zip(DIFFERENTIABLE, values, strict=True))
    gradients = [found.get(name) if need else None for name, need in needed.items()]
    return *gradients, of_C_backward if needs_C_backward else None


def _composed_gradients(
    arguments: Arguments, C_backward: Tensor, needed: dict[str, bool], needs_C_backward: bool, gy: Tensor
) -> tuple[dict[str, Tensor | None], Tensor | None]:
    def both(*tensors: Tensor | None) -> Tensor:
        *parts, matrix = tensors
        one = arguments._replace(**dict(zip(DIFFERENTIABLE, parts, strict=True)), checkpoint=False)
        other = one._replace(C=matrix, D=None, reverse=True)
        return compose(scan_op, one)[0] + compose(scan_op, other)[0]

    inputs = [*(getattr(arguments, name) for name in DIFFERENTIABLE), C_backward]
    wanted = [*(needed[name] for name in DIFFERENTIABLE), needs_C_backward]
    *found, of_C_backward = graph_gradients(both, inputs, wanted, [gy])
    return dict(zip(DIFFERENTIABLE, found, strict=True)), of_C_backward


bidirectional_op.register_autograd(_backward, setup_context=_save)
