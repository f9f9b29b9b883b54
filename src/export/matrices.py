"""The chunk matrices of a layer's discrete system, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.siso import System
from .chunks import CHUNK, ChunkMatrices

_DOUBLINGS = CHUNK.bit_length() - 1


def of_modes(Lambda_bar: Tensor) -> ChunkMatrices:
    """x_k = Lambda_bar x_{k-1} + v_k and y = x for P modes, (P,) complex128: one group a mode, (re, im) in and out."""
    modes = len(Lambda_bar)
    ones = torch.ones_like(Lambda_bar)[:, None]
    powers = torch.cat((ones, Lambda_bar[:, None].expand(-1, CHUNK)), dim=1).cumprod(dim=1)  # (P, Q + 1)
    lag = _lags()
    within = torch.where(lag >= 0, powers[:, lag.clamp(min=0)], 0)
    return ChunkMatrices(
        within=_as_real(within),
        into=_as_real(powers[:, :CHUNK].flip(1)[..., None]),
        out_of=_as_real(powers[:, None, 1:]),
        powers=torch.view_as_real(powers[:, [1 << k for k in range(_DOUBLINGS + 1)]].T.reshape(-1, modes, 1)),
    )


def of_system(system: System, D: Tensor) -> ChunkMatrices:
    """One input and c outputs per feature: D (c, H) float64, and a complex128 system with c rows of C per feature.

    The matrices are obtained from the system's responses to an impulse and to each unit state.
    """
    channels, features = D.shape
    kernel = system.kernel(CHUNK)  # (c, H, Q)
    kernel = torch.cat((kernel[..., :1] + D[..., None], kernel[..., 1:]), dim=-1)
    lag = _lags()
    within = torch.where(lag >= 0, kernel[..., lag.clamp(min=0)], 0)  # (c, H, r, q)
    impulses = torch.eye(CHUNK, dtype=D.dtype)[..., None].expand(-1, -1, features)
    into = _flat(system.final_state(impulses)).transpose(0, 1)  # (H, Q, N)
    states = into.shape[-1]
    basis = torch.view_as_complex(torch.eye(states, dtype=D.dtype).view(states, 1, -1, 2).repeat(1, features, 1, 1))
    out_of = system.free_response(basis, CHUNK).unflatten(-1, (channels, features))  # (N, Q, c, H)
    powers = torch.stack([_flat(system.advance(basis, 1 << k)).transpose(0, 1) for k in range(_DOUBLINGS + 1)])
    return ChunkMatrices(
        within=within.permute(1, 2, 3, 0).flatten(2),
        into=into,
        out_of=out_of.permute(3, 0, 1, 2).flatten(2),
        powers=_pairs(powers),
    )


def _lags() -> Tensor:
    """(Q, Q) lags q - r, with inputs r as rows and outputs q as columns."""
    position = torch.arange(CHUNK)
    return position - position[:, None]


def _as_real(matrix: Tensor) -> Tensor:
    """Complex (P, R, S) as real matrices (P, 2 R, 2 S) that multiply row vectors in the same way."""
    rows = torch.stack((torch.view_as_real(matrix), torch.view_as_real(1j * matrix)), dim=2)  # (P, R, 2, S, 2)
    return rows.flatten(3).flatten(1, 2)


def _flat(state: Tensor) -> Tensor:
    """(..., P) complex to (..., 2 P), interleaved."""
    return torch.view_as_real(state.resolve_conj()).flatten(-2)


def _pairs(powers: Tensor) -> Tensor:
    """(k, G, N, N) as (k, G, N / 2, 2) if every matrix only multiplies pairs of states by complex numbers."""
    half = powers.shape[-1] // 2
    blocks = powers.unflatten(-1, (half, 2)).unflatten(-3, (half, 2))  # (k, G, half, 2, half, 2)
    diagonal = blocks.diagonal(dim1=-4, dim2=-2)  # (k, G, 2, 2, half)
    factor = diagonal[..., 0, :, :].movedim(-1, -2)
    turned = torch.diag_embed(torch.view_as_complex(factor.contiguous()))
    return factor if torch.equal(_as_real(turned.flatten(0, 1)).view_as(powers), powers) else powers
