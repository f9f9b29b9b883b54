"""The discrete system of S4: a dense transition made of a diagonal and a low-rank part.

Two ways to the kernel K_l = C A_bar^l B_bar:

powers   K_(M q + j) = (C A_bar^(M q)) (A_bar^j B_bar): a table of about sqrt(L) rows, one of about sqrt(L) columns,
         both built by doubling with A_bar^(2^k), and one product. The powers are squared log2(L) times, in float64:
         O(N^3 log L + N L) per feature, all of it matrix products, exact for every length, with C as it is.
cauchy   the frequency response by sums over poles and an inverse transform (`ops.cauchy`): O(N L) per feature, linear
         in N, but it needs C (I - A_bar^L), which costs the same powers unless the folded C is the parameter.

A system with a contractive A_bar (P = Q: every published one) cannot amplify rounding errors in its powers.
State: (B, H, P) complex, half of each conjugate pair. Inside, the real system of order 2P on interleaved (re, im).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...ops.cauchy import dplr_response
from ...ops.step import NativeStep, SeparateStep
from ...ops.vandermonde import in_blocks
from ..siso import System


@dataclass(frozen=True, eq=False)
class LowRankSystem(System):
    """x' = (diag(Lambda) - P Q^H) x + B u over conjugate pairs, y = 2 Re(C x), bilinear with step dt.

    Attributes:
        Lambda: (H, P) complex128, Re < 0.
        B: (H, P) complex128.
        P, Q: (rank, H, P) complex128.
        C: (rows, H, P) complex128, folded if `fold_length` is given; rows as in `DiagonalSystem`.
        dt: (H,) float64.
        dtype: complex dtype of the layer, in which kernels and states are returned.
        fold_length: F if C stands for C (I - A_bar^F), None if C is itself.
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
            return self._responses(self._B_bar[..., None], length)[:, :, 0]
        if self.fold_length is not None and length <= self.fold_length:
            points, C = self.fold_length, self.C
        else:
            points, C = length, self.folded(length)
        response = dplr_response(
            *(value.to(self.dtype) for value in (self.Lambda, self.P, self.Q, self.B, C)),
            self.dt.to(self.dtype.to_real()),
            points,
            "auto" if self.backend == "cauchy" else self.backend,
        )
        return torch.fft.irfft(response, n=points)[..., :length]

    def free_response(self, x: Tensor, length: int) -> Tensor:
        """C A_bar^(l+1) x, (B, length, c H)."""
        start = self._power(0) @ _to_real(x).permute(1, 2, 0).double()
        return self._responses(start, length).permute(2, 3, 0, 1).flatten(2)

    def advance(self, x: Tensor, steps: int | Tensor) -> Tensor:
        """A_bar^steps x, by the binary digits of `steps`."""
        most = steps if isinstance(steps, int) else int(steps.max())
        remaining = torch.as_tensor(steps, device=x.device)
        columns = _to_real(x).permute(1, 2, 0).double()
        for bit in range(most.bit_length()):
            columns = torch.where(remaining >> bit & 1 == 1, self._power(bit) @ columns, columns)
        return _to_complex(columns.permute(2, 0, 1)).to(self.dtype)

    def gather(self, u: Tensor) -> Tensor:
        """sum_k A_bar^(L-1-k) B_bar u_k."""
        inner, outer = _split(u.shape[1])
        M, Q = 1 << inner, 1 << outer
        columns = self._columns(self._B_bar[..., None], inner).squeeze(2).flip(2).to(u.dtype)
        states = torch.bmm(in_blocks(u.permute(2, 0, 1), M, Q), columns.mT)
        # Blocks are joined in pairs, then pairs of pairs; a batched product broadcast over the batch would copy.
        for level in range(outer):
            older, newer = states.unflatten(1, (-1, 2)).unbind(2)
            states = torch.baddbmm(newer, older, self._power(inner + level).mT.to(u.dtype))
        return _to_complex(states.transpose(0, 1))

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """One position, by the low-rank form: O(rank P) per feature."""
        diagonal, B_bar, P, Q, C = self._step_tensors
        feedback = (torch.view_as_real(x)[None] * Q).sum((-2, -1))[..., None]
        x = torch.addcmul(B_bar * u[..., None], diagonal, x)
        for P_r, feedback_r in zip(P, feedback, strict=True):
            x = x - P_r * feedback_r
        return x, (torch.view_as_real(x)[:, None] * C).sum((-2, -1)).flatten(1)

    def native_step(self, D: Tensor) -> NativeStep:
        """See `System`; by the same form."""
        E, P_E, Q_E = self._resolvent
        parts = 2 * E - 1, _to_complex(self._B_bar), self.unfolded(), 4 * P_E, Q_E
        diagonal, B_bar, C, P, Q = (part.to(self.dtype) for part in parts)
        return SeparateStep(diagonal, B_bar, C, D, P, Q)

    def folded(self, length: int) -> Tensor:
        """C (I - A_bar^length), (rows, H, P) complex128."""
        rows = self._C_row.transpose(0, 1)
        return _functional_to_complex((rows - rows @ self._matrix_power(length)).transpose(0, 1))

    def unfolded(self) -> Tensor:
        """C itself, (rows, H, P) complex128."""
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
    def _A_bar(self) -> Tensor:
        """(H, 2P, 2P) = 2 (I - dt A / 2)^-1 - I, on interleaved (re, im)."""
        E, P_E, Q_E = self._resolvent
        outer = torch.einsum("rhi,rhj->hij", _to_real(P_E), _functional(Q_E))
        diagonal = 2 * E - 1
        even = torch.arange(0, outer.shape[-1], 2, device=outer.device)
        rotation = torch.zeros_like(outer)
        rotation[:, even, even] = diagonal.real
        rotation[:, even + 1, even + 1] = diagonal.real
        rotation[:, even, even + 1] = -diagonal.imag
        rotation[:, even + 1, even] = diagonal.imag
        return rotation - 4 * outer

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
        matrix = torch.eye(row.shape[-1], dtype=row.dtype, device=row.device) - self._matrix_power(self.fold_length)
        return torch.linalg.solve(matrix, row.transpose(0, 1), left=False).transpose(0, 1)

    def _matrix_power(self, exponent: int) -> Tensor:
        result = None
        for bit in range(exponent.bit_length()):
            if exponent >> bit & 1:
                result = self._power(bit) if result is None else result @ self._power(bit)
        return result

    @functools.cached_property
    def _squares(self) -> list[Tensor]:
        return [self._A_bar]

    def _power(self, k: int) -> Tensor:
        """A_bar^(2^k), squared once and kept."""
        while len(self._squares) <= k:
            last = self._squares[-1]
            self._squares.append(last @ last)
        return self._squares[k]

    def _columns(self, start: Tensor, doublings: int) -> Tensor:
        """A_bar^j start for j < 2^doublings: (H, 2P, R) to (H, 2P, R, 2^doublings)."""
        columns = start[..., None]
        for k in range(doublings):
            columns = torch.cat((columns, (self._power(k) @ columns.flatten(2)).view_as(columns)), dim=-1)
        return columns

    def _responses(self, start: Tensor, length: int) -> Tensor:
        """C A_bar^l start for l < length: (H, 2P, R) to (rows, H, R, length)."""
        inner, outer = _split(length)
        real = self.dtype.to_real()
        features, _, R = start.shape
        columns = self._columns(start, inner).flatten(2).to(real)
        rows = self._C_row.permute(1, 0, 2)[:, :, None]
        for k in range(outer):
            rows = torch.cat((rows, (rows.flatten(1, 2) @ self._power(inner + k)).view_as(rows)), dim=2)
        product = rows.flatten(1, 2).to(real) @ columns
        product = product.view(features, -1, 1 << outer, R, 1 << inner).permute(1, 0, 3, 2, 4)
        return product.flatten(3)[..., :length]

    @functools.cached_property
    def _step_tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What a step multiplies by: (H, P), (H, P), (rank, H, P), (rank, 1, H, P, 2), (c, H, P, 2)."""
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


def _split(length: int) -> tuple[int, int]:
    """Binary logarithms of the two table sizes, whose product is the power of two that holds `length`."""
    total = max(0, (length - 1).bit_length())
    return total - total // 2, total // 2


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
