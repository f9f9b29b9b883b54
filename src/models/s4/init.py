"""The normal parts that the published S4 and S4D start from, eigenvectors with the phases of the published code."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import hippo

# The imaginary part of V^H B is cut to this in the published code, "to avoid very large values".
_INPUT_CLIP = 2.0


def normal_part(measure: str, d_state: int) -> tuple[Tensor, Tensor]:
    """Half of the eigensystem of the normal part of -A: Lambda (N/2,) and V (N, N/2), complex128.

    -A + P P^T = -c I - S has the eigenvalues Lambda; those with negative imaginary part are kept, most negative
    first, and pairs at zero by one vector. The eigenvectors' phases are LAPACK's for the Hermitian i S, as in the
    published code: clipping V^H B makes the result depend on them.
    """
    operator = hippo.operator(measure, d_state)
    # P P^T and c I are symmetric, so S is all that is antisymmetric in A.
    skew = 0.5 * (operator.A - operator.A.T)
    omega, V = torch.linalg.eigh(torch.from_numpy(1j * skew))
    n = d_state // 2
    shift = float(hippo.dplr(operator).Lambda[0].real)
    return torch.complex(torch.full((n,), shift, dtype=torch.float64), omega[:n]), V[:, :n]


def clipped_input(measure: str, V: Tensor) -> Tensor:
    """V^H B of a measure with its imaginary part cut to [-2, 2]."""
    B = V.mH @ torch.from_numpy(hippo.operator(measure, V.shape[0]).B).to(V.dtype)
    return torch.complex(B.real, B.imag.clamp(-_INPUT_CLIP, _INPUT_CLIP))
