"""Launches of the fused kernels of `triton_kernels`, and the rule for when they run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ..scan import triton as scan_triton
from ..scan.custom_op import plain
from .arguments import Arguments
from .triton_kernels import ends_kernel, outputs_kernel, power_kernel, weights_kernel

# Whether backend 'triton' of `ssm` uses these kernels where `plan` finds them worthwhile, or two matrix products around
# the Triton scan. So far they have run in the interpreter only. TODO: set to True once they beat the products on a GPU
# (`python -m scripts.bench.gpu` times both) and `pytest -m gpu` passes there.
FUSED = False
# Precision of the products inside the kernels: "ieee" is exact float32; "tf32x3" splits each factor in two and takes
# three tensor-core products, nearly as exact and several times as fast; "tf32" takes one product with 10-bit mantissas,
# relative error about 1e-3. The last two are for NVIDIA only; tests and benchmarks run "tf32x3" too. The sums of the
# weight gradients always use "ieee", because split factors do not fit their registers.
PRECISION = "ieee"
# Most features in or out: with more, the extra products cost more than the memory traffic they save (see `plan`).
_MOST_FEATURES = 256
# Fewest steps: shorter sequences leave a block's chunks empty.
_SHORTEST = 256
# Programs that fill a large GPU twice; most and fewest steps (rows) of a chunk, of whose states 1 / rows is kept.
_PROGRAMS = 256
_MOST_ROWS, _FEWEST_ROWS = 64, 8
# Shared-memory buffers of the loops over features; more would prefetch further ahead, but costs registers.
STAGES = 2
# With 8 warps of 64 threads the gate gradients do not fit AMD's registers.
WARPS = {"cuda": 8, "hip": 4}


@dataclass(frozen=True)
class Plan:
    """Sizes of a launch: rows, steps of a chunk (a power of two); per block its chunks (block_m), modes (block_p),
    features summed over at a time (block_k) and features out (block_h); warps.

    The weight gradients take `sum_m` chunks and `sum_h` features per block.
    """

    rows: int
    block_m: int
    block_p: int
    block_k: int
    block_h: int
    sum_m: int
    sum_h: int
    warps: int

    def constants(self) -> dict[str, object]:
        return {
            "BLOCK_P": self.block_p,
            "BLOCK_K": self.block_k,
            "PRECISION": PRECISION,
            "num_warps": self.warps,
            "num_stages": STAGES,
        }


def plan(batch: int, length: int, modes: int, features: int, out_features: int) -> Plan | None:
    """Block sizes for a layer, or None where two products around a scan are faster.

    They are faster for short sequences and for more than 256 features: per position the fused forward saves about 40 P
    bytes (9 P ps at 4.3 TB/s) and costs one more product of 4 H P flops, which takes the same time at H = 93 in "ieee"
    (about 40 Tflop/s) and at H = 280 in "tf32x3" (about 120).
    """
    if length < _SHORTEST or max(features, out_features) > _MOST_FEATURES:
        return None
    rows = _MOST_ROWS
    while rows > _FEWEST_ROWS and batch * (length // (64 * rows)) < _PROGRAMS:
        rows //= 2
    chunks = triton.cdiv(length, rows)
    return Plan(
        rows=rows,
        block_m=64 if chunks > 32 else 32,
        block_p=32 if modes > 16 else 16,
        block_k=16,
        block_h=128 if out_features > 64 and features > 64 else 64,
        sum_m=32,
        sum_h=128 if out_features > 64 and features > 64 else 64,
        warps=WARPS["hip" if torch.version.hip else "cuda"],
    )


def plan_for(arguments: Arguments) -> Plan | None:
    u, B, C = arguments.u, arguments.B, arguments.C
    return plan(u.shape[0], u.shape[1], *B.shape, len(C))


def applies(arguments: Arguments) -> bool:
    """Whether the fused kernels run `ssm` on these arguments."""
    u, a, B, C = arguments.u, arguments.a, arguments.B, arguments.C
    return (
        FUSED
        and a.dtype == torch.complex64
        and u.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and a.shape[1] == 1
        and min(len(u), *B.shape, len(C)) > 0
        and plan_for(arguments) is not None
    )


def chunk_count(arguments: Arguments) -> int:
    return triton.cdiv(arguments.u.shape[1], plan_for(arguments).rows)


@dataclass(frozen=True)
class Direction:
    """One direction of the map: u to y, or gy to gu with the matrices exchanged and the walk reversed.

    weights: (2, features, P) and out_weights: (2, P, out_features) real; a (B or 1, P), x0, kick (B, P) complex64;
    at: (B,) int64, the step whose state `kick` is added to (adjoint) or that is returned (forward).
    """

    cut: Plan
    weights: Tensor
    a: Tensor
    out_weights: Tensor
    at: Tensor
    backward: bool
    adjoint: bool
    x0: Tensor | None = None
    kick: Tensor | None = None

    def carries(self, u: Tensor) -> Tensor:
        """(B, chunks, P), the state after each chunk of the walk."""
        batch, length, features = u.shape
        cut, modes, chunks = self.cut, self.weights.shape[2], triton.cdiv(length, self.cut.rows)
        ends = self.a.new_empty(batch, chunks, modes)
        ends_kernel[(batch * triton.cdiv(chunks, cut.block_m) * triton.cdiv(modes, cut.block_p),)](
            u,
            self.weights,
            _real(self.a),
            _real(ends if self.kick is None else self.kick),
            self.at,
            _real(ends),
            length,
            cut.rows,
            chunks,
            self._a_sample(),
            features,
            modes,
            BLOCK_M=cut.block_m,
            **self._constants(),
        )
        gates = self.a.conj().resolve_conj() if self.adjoint else self.a
        powers, count = torch.empty_like(gates), gates.numel()
        power_kernel[(triton.cdiv(count, 128),)](
            _real(gates), _real(powers), count, LOG_ROWS=cut.rows.bit_length() - 1, BLOCK=128
        )
        scan_triton.forward(powers[:, None], ends, None if self.adjoint else self.x0, self.adjoint, ends)
        return ends

    def outputs(self, u: Tensor, carries: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, L, out_features), and in the forward the states after the steps `at` (B, P)."""
        batch, length, features = u.shape
        cut, (_, modes, out_features) = self.cut, self.out_weights.shape
        programs = batch * triton.cdiv(carries.shape[1], cut.block_m)
        y = u.new_empty(batch, length, out_features)
        x_last = self.a.new_empty(0 if self.adjoint else batch, modes)
        outputs_kernel[(programs,)](
            u,
            self.weights,
            _real(self.a),
            _real(carries if self.kick is None else self.kick),
            self.at,
            _real(carries if self.x0 is None else self.x0),
            _real(carries),
            self.out_weights,
            y,
            _real(x_last),
            self.at,
            self.weights.new_empty(programs, cut.block_m, 2 * modes),
            length,
            cut.rows,
            carries.shape[1],
            self._a_sample(),
            features,
            modes,
            out_features,
            HAS_X0=self.x0 is not None,
            HAS_LAST=not self.adjoint,
            BLOCK_M=cut.block_m,
            BLOCK_H=cut.block_h,
            **self._constants(),
        )
        return y, x_last

    def sums(
        self, u: Tensor, other: Tensor, carries: Tensor, adjoint: Direction | None, adjoint_carries: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """(2, other features, P): the sum over positions of `other` times the state; with `adjoint`, ga per chunk."""
        batch, length, features = u.shape
        cut, other_features, (_, chunks, modes) = self.cut, other.shape[2], carries.shape
        groups = batch * triton.cdiv(chunks, cut.sum_m)
        blocks = triton.cdiv(modes, cut.block_p) * triton.cdiv(other_features, cut.sum_h)
        share = triton.cdiv(groups, max(1, _PROGRAMS // blocks))
        parts = triton.cdiv(groups, share)
        sums = self.weights.new_empty(parts, 2, other_features, modes)
        gate = adjoint is not None
        kick = adjoint.kick if gate else self.kick
        g_gate = torch.empty_like(carries) if gate else None
        weights_kernel[(parts * blocks,)](
            u,
            other,
            self.weights,
            adjoint.weights if gate else self.weights,
            _real(self.a),
            _real(carries if kick is None else kick),
            self.at,
            _real(carries if self.x0 is None else self.x0),
            _real(carries),
            _real(adjoint_carries),
            sums,
            _real(g_gate if gate else carries),
            length,
            cut.rows,
            chunks,
            share,
            groups,
            self._a_sample(),
            features,
            other_features,
            modes,
            HAS_X0=self.x0 is not None,
            GATE=gate,
            BLOCK_M=cut.sum_m,
            BLOCK_H=cut.sum_h,
            **self._constants() | {"HAS_KICK": kick is not None, "PRECISION": "ieee"},
        )
        return sums.sum(0), g_gate

    def _a_sample(self) -> int:
        return 2 * self.a.shape[1] if len(self.a) > 1 else 0

    def _constants(self) -> dict[str, object]:
        return {
            "BACKWARD": self.backward,
            "ADJOINT": self.adjoint,
            "HAS_KICK": self.kick is not None,
            **self.cut.constants(),
        }


def _forward_direction(arguments: Arguments) -> Direction:
    u, B, C, x0, lengths = arguments.u, arguments.B, arguments.C, arguments.x0, arguments.lengths
    batch, length, _ = u.shape
    at = torch.full((batch,), length, device=u.device) if lengths is None else lengths
    return Direction(
        cut=plan_for(arguments),
        weights=torch.stack([B.real.t(), B.imag.t()]),
        a=plain(arguments.a[:, 0]),
        out_weights=torch.stack([C.real.t(), -C.imag.t()]) * arguments.conj_factor,
        at=at - 1,
        backward=arguments.reverse,
        adjoint=False,
        x0=None if x0 is None else plain(x0),
    )


def _adjoint(forward: Direction, gx_last: Tensor | None) -> Direction:
    return Direction(
        cut=forward.cut,
        weights=forward.out_weights.transpose(1, 2).contiguous(),
        a=forward.a,
        out_weights=forward.weights.transpose(1, 2).contiguous(),
        at=forward.at,
        backward=forward.backward,
        adjoint=True,
        kick=None if gx_last is None else plain(gx_last),
    )


def forward(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """y, x_last, and the carries (B, chunks, P, 2) that the backward starts from."""
    direction, u = _forward_direction(arguments), arguments.u.contiguous()
    carries = direction.carries(u)
    y, x_last = direction.outputs(u, carries)
    return y, x_last, _real(carries)


def backward(
    arguments: Arguments, kept: Tensor, gy: Tensor | None, gx_last: Tensor | None, need_a: bool
) -> dict[str, Tensor | None]:
    """Gradients of u, a, B, C and x0 by name, None for those absent or not wanted; `kept` are the forward's carries."""
    direction = _forward_direction(arguments)
    adjoint = _adjoint(direction, gx_last)
    u, carries = arguments.u.contiguous(), torch.view_as_complex(kept)
    gy = u.new_zeros(*u.shape[:2], len(arguments.C)) if gy is None else gy.contiguous()
    adjoint_carries = adjoint.carries(gy)
    gu, _ = adjoint.outputs(gy, adjoint_carries)
    gW_in, _ = adjoint.sums(gy, u, adjoint_carries, None, adjoint_carries)
    gW_out, g_gate = direction.sums(u, gy, carries, adjoint if need_a else None, adjoint_carries)
    gB = torch.complex(gW_in[0], gW_in[1]).t().contiguous()
    gC = torch.complex(gW_out[0], -gW_out[1]) * arguments.conj_factor
    ga = None
    if need_a:
        over = 1 if len(direction.a) > 1 else (0, 1)
        ga = g_gate.sum(over, keepdim=True, dtype=torch.complex128).to(g_gate.dtype)
    gx0 = None if arguments.x0 is None else direction.a.conj() * adjoint_carries[:, 0]
    return {"u": gu, "a": ga, "B": gB, "C": gC, "x0": gx0}


def _real(t: Tensor) -> Tensor:
    return torch.view_as_real(t)
