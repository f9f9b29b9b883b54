"""The passes of `ssm_op` over a batch, piece by piece, with all states kept or recomputed for the backward.

With X = [Re x, Im x] interleaved, (B L, 2P), and real matrices W_B (H, 2P), W_C (2P, H_out) built from B and C:

    V = gain (U W_B),  X = scan(V) in place,  Y = D U + X W_C
    G = adjoint scan(dY W_C^T) in place,  dgain = G conj(U W_B),  G' = conj(gain) G
    dU = D dY + G' W_B^T,  dW_B = U^T G',  dW_C = X^T dY,  dD = sum of dY U

so that the products are real (a quarter of the complex flops) and the complex layout costs no copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..scan.custom_op import implementation, plain
from .arguments import Arguments
from .pieces import (
    Piece,
    Scratch,
    input_matrix,
    most_rows,
    output_matrix,
    parts,
    pieces,
    product,
    rows,
    sum_of_outer,
)


class Prepared:
    """An SSM ready to run: parameters that kernels can read through pointers, and the real matrices W_B and W_C."""

    def __init__(self, arguments: Arguments):
        arguments = arguments.in_memory()
        self.a, self.B, self.C, self.D = arguments.a, arguments.B, arguments.C, arguments.D
        self.input_gain, self.x0, self.reverse = arguments.input_gain, arguments.x0, arguments.reverse
        self.conj_factor, self.backend = arguments.conj_factor, arguments.backend
        # Position of a piece's last state.
        self.end = 0 if self.reverse else -1
        self.W_B, self.W_C = input_matrix(self.B), output_matrix(self.C, self.conj_factor)

    def drive(self, piece: Piece, u: Tensor, v: Tensor) -> None:
        """v = input_gain B u of a piece."""
        product(rows(u), self.W_B, v)
        if self.input_gain is not None:
            v.mul_(piece.of(self.input_gain))

    def states(self, piece: Piece, u: Tensor, start: Tensor | None, x: Tensor) -> None:
        """Write the states of a piece to x, from `start` or from rest."""
        self.drive(piece, u, x)
        implementation(self.backend).forward(plain(piece.of(self.a)), x, start, self.reverse, x)

    def output(self, u: Tensor, x: Tensor, y: Tensor) -> None:
        """y = D u + conj_factor Re(C x) of a piece."""
        if self.D is not None:
            torch.mul(u, self.D, out=y)
        product(rows(x), self.W_C, y, add=self.D is not None)


class Sums:
    """The gradients: that of u, which every piece writes its part of, and the sums that every piece adds to.

    need_gates: whether the gradients of a and input_gain are wanted.
    """

    def __init__(self, system: Prepared, u: Tensor, need_gates: bool):
        self._system, self._gates = system, need_gates
        features, modes = u.shape[2], len(system.B)
        self._gu = torch.empty_like(u, memory_format=torch.contiguous_format)
        self._gW_B = sum_of_outer(u, features, 2 * modes)
        self._gW_C = sum_of_outer(u, len(system.C), 2 * system.C.shape[1])
        self._ga = torch.zeros_like(system.a) if need_gates else None
        self._gD = None if system.D is None else torch.zeros_like(system.D)
        gain = system.input_gain if need_gates else None
        self._gain_gradient = None if gain is None else torch.zeros_like(gain)

    def add_output(self, piece: Piece, u: Tensor, x: Tensor, gy: Tensor | None, g: Tensor) -> None:
        """Add to the gradients of C and D; write the gradient that y passes on to the states x to g."""
        if self._gD is not None:
            self._feedthrough(u, gy, self._gu[piece[:2]])
        if gy is None:
            g.zero_()
            return
        self._gW_C.addmm_(rows(gy).t(), rows(x))
        product(rows(gy), self._system.W_C.t(), g)

    def add_gate(self, piece: Piece, ga: Tensor) -> None:
        """Add to the gradient of a."""
        piece.of(self._ga).add_(ga)

    def add_input(self, piece: Piece, u: Tensor, g: Tensor) -> None:
        """Gradients of u, B and input_gain from g, the gradient of the scan's input; overwrites g."""
        if self._gain_gradient is not None:
            v = torch.empty_like(g)
            product(rows(u), self._system.W_B, v)
            total = piece.of(self._gain_gradient)
            found = v.conj_physical_().mul_(g).sum_to_size(total.shape)
            total.add_(found if total.is_complex() else found.real)
        if self._system.input_gain is not None:
            g.mul_(piece.of(self._system.input_gain).conj())
        self._gW_B.addmm_(rows(u).t(), rows(g))
        product(rows(g), self._system.W_B.t(), self._gu[piece[:2]], add=self._gD is not None)

    def gradients(self) -> dict[str, Tensor | None]:
        """Gradients by argument name; None for an argument that is absent or whose gradient is not wanted."""
        gB = torch.view_as_complex(self._gW_B.contiguous().view(len(self._gW_B), -1, 2)).t().contiguous()
        gC = self._gW_C.contiguous().view(len(self._gW_C), -1, 2)
        gC = torch.complex(gC[..., 0] * self._system.conj_factor, gC[..., 1] * -self._system.conj_factor)
        return {"u": self._gu, "a": self._ga, "B": gB, "C": gC, "D": self._gD, "input_gain": self._gain_gradient}

    def _feedthrough(self, u: Tensor, gy: Tensor | None, gu: Tensor) -> None:
        if gy is None:
            gu.zero_()
        elif self._system.backend == "native":
            from .native import feedthrough_gradients

            u, gy = plain(rows(u)), plain(rows(gy))
            self._gD += feedthrough_gradients(u, gy, self._system.D, gu.view(u.shape))
        else:
            self._gD += torch.mul(gy, u, out=gu).sum((0, 1))
            torch.mul(gy, self._system.D, out=gu)


def kept_states(u: Tensor, modes: int, checkpoint: bool) -> int:
    """Number of states kept per sample for the backward: all, or those between the parts of a sample."""
    return parts(u.shape[1], most_rows(u, modes, checkpoint)) - 1 if checkpoint else u.shape[1]


def forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """y, x_last and the states to keep (B, L or parts - 1, P)."""
    system, u, lengths, checkpoint = Prepared(arguments), arguments.u, arguments.lengths, arguments.checkpoint
    (batch, length, _), modes = u.shape, len(system.B)
    work = pieces(batch, length, most_rows(u, modes, checkpoint), system.reverse)
    y = u.new_empty(batch, length, len(system.C))
    kept = system.a.new_empty(batch, kept_states(u, modes, checkpoint), modes)
    x_last = kept.new_zeros(batch, modes)
    scratch = Scratch(kept, modes, work) if checkpoint else None
    state = None
    for piece in work:
        samples, steps, part = piece
        if part == 0:
            state = None if system.x0 is None else system.x0[samples]
        x = kept[samples, steps] if scratch is None else scratch.of(piece)
        system.states(piece, u[samples, steps], state, x)
        system.output(u[samples, steps], x, y[samples, steps])
        state = x[:, system.end].clone()
        if checkpoint and part < kept.shape[1]:
            kept[samples, part] = state
        if lengths is None:
            x_last[samples] = state
        else:
            row, at, inside = _last_steps(lengths[samples], steps)
            x_last[samples] = torch.where(inside[:, None], x[row, at], x_last[samples])
    return y, x_last, kept


def backward(
    arguments: Arguments, kept: Tensor, gy: Tensor | None, gx_last: Tensor | None, need_gates: bool
) -> dict[str, Tensor | None]:
    """Gradients by argument name; None for an argument that is absent or whose gradient is not wanted."""
    system, u, lengths = Prepared(arguments), arguments.u, arguments.lengths
    (batch, length, _), modes = u.shape, len(system.B)
    # kept holds all L states of a sample, or one fewer than it has parts.
    recomputed = kept.shape[1] != length
    work = pieces(batch, length, most_rows(u, modes, recomputed), system.reverse)
    sums, g = Sums(system, u, need_gates), Scratch(kept, modes, work)
    scratch = Scratch(kept, modes, work) if recomputed else None
    gx0 = None if system.x0 is None else torch.empty_like(system.x0)
    adjoint, last = None, work[-1].part if work else 0
    for piece in reversed(work):
        samples, steps, part = piece
        if part == last:
            adjoint = None if gx_last is None or lengths is not None else gx_last[samples]
        start, x = _states(system, piece, u, kept, scratch)
        ends = g.of(piece)
        sums.add_output(piece, u[samples, steps], x, None if gy is None else gy[samples, steps], ends)
        if adjoint is not None:
            ends[:, system.end] += adjoint
        if lengths is not None and gx_last is not None:
            row, at, inside = _last_steps(lengths[samples], steps)
            ends[row, at] += torch.where(inside[:, None], gx_last[samples], 0)
        gates = plain(piece.of(system.a))
        ga, adjoint = implementation(system.backend).backward(gates, x, start, ends, system.reverse, ends, need_gates)
        if need_gates:
            sums.add_gate(piece, ga)
        sums.add_input(piece, u[samples, steps], ends)
        if gx0 is not None and part == 0:
            gx0[samples] = adjoint
    return sums.gradients() | {"x0": gx0}


def _states(
    system: Prepared, piece: Piece, u: Tensor, kept: Tensor, scratch: Scratch | None
) -> tuple[Tensor | None, Tensor]:
    """The state that enters the piece, and the states within, recomputed into `scratch` if it is given."""
    samples, steps, part = piece
    if part:
        # With all states kept, the state of the step before; otherwise the one kept for this part.
        at = part - 1 if scratch is not None else steps.stop if system.reverse else steps.start - 1
        start = plain(kept[samples, at])
    else:
        start = None if system.x0 is None else system.x0[samples]
    if scratch is None:
        return start, kept[samples, steps]
    system.states(piece, u[samples, steps], start, x := scratch.of(piece))
    return start, x


def _last_steps(lengths: Tensor, steps: slice) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) each: 0 .. B - 1, the position of each sample's last step within the piece, and whether it is in it."""
    at = lengths - 1 - steps.start
    size = steps.stop - steps.start
    return torch.arange(lengths.shape[0], device=lengths.device), at.clamp(0, size - 1), (at >= 0) & (at < size)
