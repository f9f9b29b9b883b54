"""Both directions of a bidirectional diagonal SSM in one operator, which share what goes in and what comes out.

With the notation of `sweep`, X_f and X_b the states of the two scans, side by side in one (B L, 4P) array:

    V = gamma (U W_B),  X = [scan(V), reverse scan(V)],  Y = D U + X W_C
    [G_f, G_b] = dY W_C^T,  adjoint scans in place,  G = G_f + G_b,  then as in one direction

so U is read once and Y written once, in seven products instead of twelve. Pieces are whole samples.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..runtime.autograd import backend_to_follow, graph_gradients, refuse_transforms
from ..runtime.backends import choose, implementation
from ..scan.custom_op import plain, scan_op
from .interface import check_shapes, computed_in, ssm, with_axes
from .op import compose
from .passes import Sums, System
from .pieces import Piece, Scratch, most_rows, pieces, product, rows

# The backend whose scans can write to, and read from, a part of the modes of an array.
_BACKEND = "native"


def two_way_ssm(
    u: Tensor,
    Lambda_bar: Tensor,
    B_bar: Tensor,
    C: Tensor,
    C_backward: Tensor,
    conj_sym: bool = True,
    gamma: Tensor | None = None,
    checkpoint: bool = False,
    D: Tensor | None = None,
) -> Tensor:
    """y of `ssm` with C and D, plus y of `ssm` with C_backward and `reverse`: a layer that runs both ways, from rest.

    Args:
        u, Lambda_bar, B_bar, gamma, checkpoint: as for `ssm`; the same in both directions.
        C, C_backward: (H_out, P) complex.
        conj_sym, D: as for `ssm`.
    Returns:
        (B, L, H_out) in the dtype of u, differentiable in every tensor argument, and twice.
    Raises:
        UsageError: shapes that do not fit.
    """
    name = backend_to_follow(choose("auto", u.device), "auto")
    # Recomputation by pieces of a sample needs the states of one direction at a time.
    if name != _BACKEND or (checkpoint and u.shape[1] > most_rows(u, 2 * len(B_bar), checkpoint)):
        options = {"conj_sym": conj_sym, "gamma": gamma, "checkpoint": checkpoint}
        backward = ssm(u, Lambda_bar, B_bar, C_backward, reverse=True, **options)[0]
        return ssm(u, Lambda_bar, B_bar, C, D=D, **options)[0] + backward
    for matrix in (C, C_backward):
        check_shapes(u, Lambda_bar, B_bar, matrix, None, gamma, D)
    real, full = computed_in(u, Lambda_bar)
    a, B_bar, C, C_backward = (t.to(full) for t in (Lambda_bar, B_bar, C, C_backward))
    D = None if D is None else D.to(real)
    gamma = None if gamma is None else with_axes(gamma.to(full if gamma.is_complex() else real))
    factor = 2.0 if conj_sym else 1.0
    y, _ = two_way_op(u.to(real), with_axes(a), B_bar, C, C_backward, D, gamma, factor, checkpoint)
    return y.to(u.dtype)


class _BothWays(System):
    """The system with X = [X_f, X_b]: C holds both output matrices side by side."""

    def states(self, piece: Piece, u: Tensor, v: Tensor, x: Tensor) -> None:
        """Write the states of whole samples to x (B, L, 2P); v (B, L, P) is for what drives them."""
        self.drive(piece, u, v)
        a, scan = plain(piece.of(self.a)), implementation(_BACKEND)
        scan.forward(a, v, None, False, x)
        scan.forward(a, v, None, True, x, column=v.shape[2])


def _system(a, B_bar, C, C_backward, D, gamma, factor) -> _BothWays:
    return _BothWays(a, B_bar, torch.cat([plain(C), plain(C_backward)], 1), D, gamma, None, False, factor, _BACKEND)


def _whole_samples(u: Tensor, modes: int, checkpoint: bool) -> list[Piece]:
    batch, length, _ = u.shape
    return pieces(batch, length, max(length, most_rows(u, 2 * modes, checkpoint)))


@torch.library.custom_op("fractal_ssm::two_way_ssm", mutates_args=())
def two_way_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    C_backward: Tensor,
    D: Tensor | None,
    gamma: Tensor | None,
    factor: float,
    checkpoint: bool,
) -> tuple[Tensor, Tensor]:
    (batch, length, _), modes = u.shape, len(B_bar)
    with torch.autocast(u.device.type, enabled=False):
        system, work = _system(a, B_bar, C, C_backward, D, gamma, factor), _whole_samples(u, modes, checkpoint)
        y = u.new_empty(batch, length, len(C))
        x = a.new_empty(batch, 0 if checkpoint else length, 2 * modes)
        v, scratch = Scratch(x, modes, work), Scratch(x, 2 * modes, work) if checkpoint else None
        for piece in work:
            states = x[piece.samples] if scratch is None else scratch.of(piece)
            system.states(piece, u[piece.samples], v.of(piece), states)
            system.output(u[piece.samples], states, y[piece.samples])
    return y, x


@two_way_op.register_fake
def _(u, a, B_bar, C, C_backward, D, gamma, factor, checkpoint):
    batch, length, _ = u.shape
    return u.new_empty(batch, length, C.shape[0]), a.new_empty(batch, 0 if checkpoint else length, 2 * len(B_bar))


@torch.library.custom_op("fractal_ssm::two_way_ssm_backward", mutates_args=())
def two_way_backward_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    C_backward: Tensor,
    D: Tensor | None,
    gamma: Tensor | None,
    x: Tensor,
    gy: Tensor,
    factor: float,
    need_gates: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    modes, recomputed = len(B_bar), x.shape[1] != u.shape[1]
    with torch.autocast(u.device.type, enabled=False):
        system, work = _system(a, B_bar, C, C_backward, D, gamma, factor), _whole_samples(u, modes, recomputed)
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
        gu, ga, gB, gC, gD, ggamma = sums.gradients()
    # Copies: of one output feature the halves are views of one memory, which an operator may not return.
    gC, gC_backward = (half.clone(memory_format=torch.contiguous_format) for half in gC.tensor_split(2, 1))
    return tuple(a.new_empty(0) if g is None else g for g in (gu, ga, gB, gC, gC_backward, gD, ggamma))


@two_way_backward_op.register_fake
def _(u, a, B_bar, C, C_backward, D, gamma, x, gy, factor, need_gates):
    wanted = (u, a if need_gates else None, B_bar, C, C_backward, D, gamma if need_gates else None)
    return tuple(
        a.new_empty(0) if t is None else torch.empty_like(t, memory_format=torch.contiguous_format) for t in wanted
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.factor, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, gy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    refuse_transforms("The backward of two_way_ssm")
    if gy is None:
        return (None,) * 9
    *inputs, x = ctx.saved_tensors
    needed = ctx.needs_input_grad[:7]
    if torch.is_grad_enabled():
        gradients = graph_gradients(partial(_composed, ctx.factor), inputs, needed, [gy])
    else:
        gradients = two_way_backward_op(*inputs, x, gy, ctx.factor, needed[1] or needed[6])
    return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None, None


def _composed(factor, u, a, B_bar, C, C_backward, D, gamma):
    return sum(
        compose(scan_op, u, a, B_bar, matrix, feedthrough, gamma, None, None, reverse, factor, _BACKEND, False)[0]
        for matrix, feedthrough, reverse in ((C, D, False), (C_backward, None, True))
    )


two_way_op.register_autograd(_backward, setup_context=_save)
