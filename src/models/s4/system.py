"""The discrete system of S4: a dense transition made of a diagonal and a low-rank part.

Two methods for the kernel K_l = C A_bar^l B_bar:

powers   K_(M q + j) = (C A_bar^(M q)) (A_bar^j B_bar): the product of a table of about sqrt(L) rows and a table of
         about sqrt(L) states, both built by doubling with A_bar^(2^k). The powers are in float64. Up to 2^k about
         N / rank they stay diagonal plus low rank; after that each doubling squares a matrix: O(N^3 log(L / N) + N L)
         per feature, all in matrix products, exact for every length, with an unfolded C.
cauchy   the frequency response by sums over poles and an inverse transform (`ops.cauchy`): O(N L) per feature, linear
         in N. It needs C (I - A_bar^L), which costs the same powers unless the folded C is the parameter. Also in
         float64.

A contractive A_bar (P = Q, as in every published system) cannot amplify rounding errors in its powers.
State: (B, H, P) complex, one of each conjugate pair. The code uses the real system of order 2P on interleaved (re, im).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from ...ops.cauchy import dplr_response
from ...ops.step import NativeStep, SISOStep
from ...ops.vandermonde import tiles_in_blocks
from ..siso import System

# Levels of blocks of the state that are joined within each tile.
_TILE_LEVELS = 3


@dataclass(frozen=True, eq=False)
class LowRankSystem(System):
    """x' = (diag(Lambda) - P Q^H) x + B u over conjugate pairs, y = 2 Re(C x), bilinear with step dt.

    Attributes:
        Lambda: (H, P) complex128, Re < 0.
        B: (H, P) complex128.
        P, Q: (rank, H, P) complex128.
        C: (rows, H, P) complex128, folded if `fold_length` is given; rows as in `DiagonalSystem`.
        dt: (H,) float64.
        dtype: complex dtype of the layer, in which states are returned; kernels have the corresponding real dtype.
        fold_length: F if the attribute C holds C (I - A_bar^F), None if it holds C.
        backend: "powers", or "cauchy", "keops", "triton" for the sums over poles.
    """

    Lambda: Tensor
    B: Tensor
    P: Tensor
    Q: Tensor
    C: Tensor
    dt: Tensor
    dtype: torch.dtype
    fold_length: int | None
    backend: str

    def kernel(self, length: int) -> Tensor:
        """K[r, h, l], (rows, H, length)."""
        if self.backend == "powers":
            return self._responses(self._inputs(_split(length)[0]), 1, length)[:, :, 0]
        if self.fold_length is not None and length <= self.fold_length:
            points, C = self.fold_length, self.C
        else:
            points, C = length, self.folded(length)
        # In float64: if the damping is in the low-rank term (fourier, legt, fractional-tau), the sums are evaluated
        # close to their poles and cancel; float32 gave gradients of A that were wrong by a third.
        backend = "auto" if self.backend == "cauchy" else self.backend
        response = dplr_response(self.Lambda, self.P, self.Q, self.B, C, self.dt, points, backend)
        return torch.fft.irfft(response, n=points)[..., :length].to(self.dtype.to_real())

    def free_response(self, x: Tensor, length: int) -> Tensor:
        """C A_bar^(l+1) x, (B, length, c H)."""
        start = self._advanced(_to_real(x).transpose(0, 1).double(), 0)
        states = self._doubled(start, _split(length)[0])
        return rearrange(self._responses(states, x.shape[0], length), "c H B l -> B l (c H)")

    def advance(self, x: Tensor, steps: int | Tensor) -> Tensor:
        """A_bar^steps x, by the binary digits of `steps`."""
        most = steps if isinstance(steps, int) else int(steps.max())
        remaining = torch.as_tensor(steps, device=x.device).reshape(-1, 1)
        states = _to_real(x).transpose(0, 1).double()
        for bit in range(most.bit_length()):
            states = torch.where(remaining >> bit & 1 == 1, self._advanced(states, bit), states)
        return _to_complex(states.transpose(0, 1)).to(self.dtype)

    def final_state(self, u: Tensor) -> Tensor:
        """sum_k A_bar^(L-1-k) B_bar u_k."""
        inner, outer = _split(u.shape[1])
        inputs = self._inputs(inner).to(u.dtype).flip(1)
        powers = [self._power(inner + level) for level in range(outer)]
        first, last = [power.to(u.dtype) for power in powers[:_TILE_LEVELS]], powers[_TILE_LEVELS:]
        tiles = tiles_in_blocks(u.permute(2, 0, 1), 1 << inner, 1 << outer)
        # The first levels have the most rows, and run while a tile is in the cache. The last levels have few rows, for
        # which converting a power to the lower precision does not pay.
        states = torch.cat([_joined(torch.bmm(tile, inputs), first) for tile in tiles], dim=1)
        states = _joined(states.double(), last).to(u.dtype)
        return _to_complex(states.transpose(0, 1))

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Advance by one position with the low-rank form: O(rank P) per feature.

        If each sample has its own dt, the system has B H features, ordered sample by sample.
        """
        if x.shape[1] != len(self.dt):
            x_all, y = self.step(x.flatten(0, 1)[None], u.reshape(1, -1))
            return x_all.view(x.shape), y.view(-1, *u.shape).transpose(0, 1).flatten(1)
        diagonal, B_bar, P, Q, C = self._step_tensors
        feedback = (torch.view_as_real(x)[None] * Q).sum((-2, -1))[..., None]
        x = torch.addcmul(B_bar * u[..., None], diagonal, x)
        for P_r, feedback_r in zip(P, feedback, strict=True):
            x = x - P_r * feedback_r
        return x, (torch.view_as_real(x)[:, None] * C).sum((-2, -1)).flatten(1)

    def native_step(self, D: Tensor) -> NativeStep:
        """See `System`; uses the same low-rank form."""
        E, P_E, Q_E = self._resolvent
        parts = 2 * E - 1, _to_complex(self._B_bar), self.unfolded(), 4 * P_E, Q_E
        diagonal, B_bar, C, P, Q = (part.to(self.dtype) for part in parts)
        return SISOStep(diagonal, B_bar, C, D, P, Q)

    def folded(self, length: int) -> Tensor:
        """C (I - A_bar^length), (rows, H, P) complex128."""
        rows = folded = self._C_row.transpose(0, 1)
        for bit in _digits(length):
            folded = self._read_after(folded, bit)
        return _functional_to_complex((rows - folded).transpose(0, 1))

    def unfolded(self) -> Tensor:
        """The unfolded C, (rows, H, P) complex128."""
        return _functional_to_complex(self._C_row)

    @functools.cached_property
    def _resolvent(self) -> tuple[Tensor, Tensor, Tensor]:
        """(I - dt A / 2)^-1 = diag(E) - 2 P_E Re(Q_E . ): E (H, P), P_E and Q_E (rank, H, P), by Woodbury."""
        E = 1 / (1 - 0.5 * self.dt[:, None] * self.Lambda)
        P_E, Q_E = self.P * E, self.Q.conj() * E
        inner = 2 * (self.Q.conj()[:, None] * P_E[None]).real.sum(-1).permute(2, 0, 1)
        inner = inner + torch.diag_embed((2 / self.dt)[:, None].expand(-1, len(self.P)))
        weight = torch.linalg.inv(inner).to(E.dtype)  # (H, rank, rank)
        return E, torch.einsum("rhp,hrs->shp", P_E, weight), Q_E

    @functools.cached_property
    def _B_bar(self) -> Tensor:
        """(H, 2P) = dt (I - dt A / 2)^-1 B."""
        E, P_E, Q_E = self._resolvent
        feedback = 2 * (Q_E * self.B).real.sum(-1, keepdim=True)
        return self.dt[:, None] * _to_real(E * self.B - (P_E * feedback).sum(0))

    @functools.cached_property
    def _C_row(self) -> Tensor:
        """(rows, H, 2P): y = C_row x on interleaved (re, im), with C unfolded."""
        row = 2 * _functional(self.C)
        if self.fold_length is None:
            return row
        identity = torch.eye(row.shape[-1], dtype=row.dtype, device=row.device)
        matrix = identity - functools.reduce(torch.matmul, map(self._power, _digits(self.fold_length)))
        return torch.linalg.solve(matrix, row.transpose(0, 1), left=False).transpose(0, 1)

    @functools.cached_property
    def _low_rank_powers(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        E, P_E, Q_E = self._resolvent
        return [(2 * E - 1, _to_real(-4 * P_E).transpose(0, 1), _functional(Q_E).transpose(0, 1))]

    def _low_rank_power(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """A_bar^m = diag(D^m) + U^T V for m = 2^k: D^m (H, P), U and V (H, rank m, 2P).

        A_bar^2m = D^2m + (D^m U)^T V + U^T (V A_bar^m): the rank doubles, and no product is as large as A_bar's square.
        """
        known = self._low_rank_powers
        while len(known) <= k:
            D, U, V = known[-1]
            after = self._read_after(V, len(known) - 1)
            known.append((D * D, torch.cat((_scaled(U, D), U), dim=1), torch.cat((V, after), dim=1)))
        return known[k]

    @functools.cached_property
    def _dense_from(self) -> int:
        """From this k on A_bar^(2^k) is kept as a dense matrix, as its low-rank part has almost full rank."""
        rank, _, P = self.P.shape
        return max(0, (2 * P // rank).bit_length() - 1)

    @functools.cached_property
    def _dense_powers(self) -> dict[int, Tensor]:
        return {}

    def _power(self, k: int) -> Tensor:
        """A_bar^(2^k), (H, 2P, 2P), cached."""
        known = self._dense_powers
        if k not in known:
            if k <= self._dense_from:
                D, U, V = self._low_rank_power(k)
                known[k] = torch.baddbmm(_rotation(D), U.mT, V)
            else:
                last = self._power(k - 1)
                known[k] = last @ last
        return known[k]

    def _advanced(self, states: Tensor, k: int) -> Tensor:
        """A_bar^(2^k) x for every row x of states (H, R, 2P)."""
        if k >= self._dense_from:
            return states @ self._power(k).mT
        D, U, V = self._low_rank_power(k)
        return torch.baddbmm(_scaled(states, D), states @ V.mT, U)

    def _read_after(self, rows: Tensor, k: int) -> Tensor:
        """row A_bar^(2^k) for every row of (H, R, 2P)."""
        if k >= self._dense_from:
            return rows @ self._power(k)
        D, U, V = self._low_rank_power(k)
        return torch.baddbmm(_scaled(rows, D.conj()), rows @ U.mT, V)

    @functools.cached_property
    def _known_inputs(self) -> dict[int, Tensor]:
        return {}

    def _inputs(self, doublings: int) -> Tensor:
        """A_bar^j B_bar for j < 2^doublings, (H, 2^doublings, 2P), cached for the kernel and the final state."""
        if doublings not in self._known_inputs:
            self._known_inputs[doublings] = self._doubled(self._B_bar[:, None], doublings)
        return self._known_inputs[doublings]

    def _doubled(self, states: Tensor, doublings: int) -> Tensor:
        """A_bar^j x for j < 2^doublings and every row x of (H, R, 2P): (H, 2^doublings R, 2P), j first."""
        for k in range(doublings):
            states = torch.cat((states, self._advanced(states, k)), dim=1)
        return states

    def _responses(self, states: Tensor, R: int, length: int) -> Tensor:
        """C A_bar^l x for l < length, from `_doubled` of R rows x: (rows, H, R, length)."""
        inner, outer = _split(length)
        real = self.dtype.to_real()
        rows, k = self._C_row.transpose(0, 1), inner
        while k < min(self._dense_from, inner + outer):
            rows = torch.cat((rows, self._read_after(rows, k)), dim=1)
            k += 1
        if k < inner + outer:
            rows, *squares = _Doublings.apply(rows, self._power(k), inner + outer - k)
            self._dense_powers.update(enumerate(squares, k + 1))
        product = torch.bmm(rows.to(real), states.to(real).mT)
        # A position is l = j 2^inner + i: the rows hold the powers for j, the states those for i.
        product = rearrange(product, "H (j c) (i R) -> c H R (j i)", j=1 << outer, i=1 << inner)
        return product[..., :length]

    @functools.cached_property
    def _step_tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Factors of a step: diagonal (H, P), B_bar (H, P), P (rank, H, P), Q (rank, 1, H, P, 2), C (c, H, P, 2)."""
        E, P_E, Q_E = self._resolvent
        real = self.dtype.to_real()
        Q = torch.view_as_real(Q_E.conj().resolve_conj())[:, None]
        return (
            (2 * E - 1).to(self.dtype),
            _to_complex(self._B_bar).to(self.dtype),
            (4 * P_E).to(self.dtype),
            Q.to(real),
            self._C_row.unflatten(-1, (-1, 2)).to(real),
        )


def _joined(states: Tensor, powers: list[Tensor]) -> Tensor:
    """Join the states (H, R, 2P) of neighbouring blocks, oldest first, in pairs, once for each power."""
    for power in powers:
        older, newer = states.unflatten(1, (-1, 2)).unbind(2)
        states = torch.baddbmm(newer, older, power.mT)
    return states


class _Doublings(torch.autograd.Function):
    """rows (H, R, N) and A (H, N, N) to rows A^q for q < 2^count, (H, 2^count R, N), and A^2, A^4 .. A^(2^(count-1)).

    A single autograd function, so that the matrix products of the backward pass also add up the gradients of a power.
    """

    @staticmethod
    def forward(ctx, rows: Tensor, A: Tensor, count: int) -> tuple[Tensor, ...]:
        H, R, N = rows.shape
        table, powers = rows.new_empty(H, R << count, N), [A]
        table[:, :R] = rows
        for k in range(count):
            done = R << k
            table[:, done : 2 * done] = table[:, :done] @ powers[k]
            if k + 1 < count:
                powers.append(powers[k] @ powers[k])
        ctx.save_for_backward(table, *powers)
        ctx.set_materialize_grads(False)
        return table, *powers[1:]

    @staticmethod
    def backward(ctx, grad_table: Tensor | None, *grad_powers: Tensor | None):
        table, *powers = ctx.saved_tensors
        total, grads = None, [None, *grad_powers]
        for power, grad in zip(reversed(powers), reversed(grads), strict=True):
            if total is not None:
                grad = _product_added(grad, total, power.mT)
                grad = _product_added(grad, power.mT, total)
            if grad_table is not None:
                head, tail = grad_table.chunk(2, dim=1)
                grad = _product_added(grad, table[:, : tail.shape[1]].mT, tail)
                grad_table = torch.baddbmm(head, tail, power.mT)
            total = grad
        return grad_table, total, None


def _product_added(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left, right) if total is None else torch.baddbmm(total, left, right)


def _split(length: int) -> tuple[int, int]:
    """Binary logarithms of the two table sizes; their product is the smallest power of two >= `length`."""
    total = max(0, (length - 1).bit_length())
    return total - total // 2, total // 2


def _digits(number: int) -> list[int]:
    """Positions of the ones in the binary form of `number`."""
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


def _scaled(rows: Tensor, diagonal: Tensor) -> Tensor:
    """diagonal (H, P) complex times every row of (H, R, 2P), interleaved."""
    return _to_real(torch.view_as_complex(rows.unflatten(-1, (-1, 2))) * diagonal[:, None])


def _rotation(diagonal: Tensor) -> Tensor:
    """The complex diagonal (H, P) as a matrix (H, 2P, 2P) on interleaved (re, im)."""
    matrix = diagonal.real.new_zeros(len(diagonal), 2 * diagonal.shape[1], 2 * diagonal.shape[1])
    even = torch.arange(0, matrix.shape[-1], 2, device=matrix.device)
    matrix[:, even, even] = diagonal.real
    matrix[:, even + 1, even + 1] = diagonal.real
    matrix[:, even, even + 1] = -diagonal.imag
    matrix[:, even + 1, even] = diagonal.imag
    return matrix


def _to_real(vector: Tensor) -> Tensor:
    """(..., P) complex to (..., 2P), interleaved."""
    return torch.view_as_real(vector.resolve_conj()).flatten(-2)


def _to_complex(vector: Tensor) -> Tensor:
    """(..., 2P) interleaved to (..., P) complex."""
    return torch.view_as_complex(vector.unflatten(-1, (-1, 2)).contiguous())


def _functional(vector: Tensor) -> Tensor:
    """The row f with f . x = Re sum(vector x) on interleaved x: (re, -im)."""
    return _to_real(vector.conj())


def _functional_to_complex(row: Tensor) -> Tensor:
    """The vector with row . x = 2 Re sum(vector x)."""
    return 0.5 * _to_complex(row).conj()
