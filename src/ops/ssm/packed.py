"""The diagonal SSM over sequences concatenated into one sample: products over all positions, and one packed scan."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from ..scan import scan
from .pieces import input_matrix, output_matrix


def packed_ssm(
    u: Tensor,
    Lambda_bar: Tensor,
    B: Tensor,
    C: Tensor,
    boundaries: Tensor,
    x0: Tensor | None = None,
    *,
    C_backward: Tensor | None = None,
    conj_sym: bool = True,
    input_gain: Tensor | None = None,
    checkpoint: bool = False,
    D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`ssm`, and with C_backward `bidirectional_ssm`, of S sequences in one sample.

    Args:
        u: (1, total, H), in the precision of B.
        Lambda_bar, input_gain: (P,) or (1, total, P).
        boundaries: (S + 1,) int64, 0, ..., total.
        x0: (S, P), the state before each sequence; None is zero.
        checkpoint: recompute the states in the backward, all at once.
    Returns:
        y: (1, total, H_out);  x_last: (S, P), the state of the forward direction after each sequence.
    """
    conj_factor = 2.0 if conj_sym else 1.0

    def run(u, Lambda_bar, B, C, C_backward, x0, input_gain, D):
        v = torch.view_as_complex((u @ input_matrix(B)).unflatten(-1, (-1, 2)))
        v = v if input_gain is None else input_gain * v
        x = scan(Lambda_bar, v, x0, cu_seqlens=boundaries)
        y = torch.view_as_real(x).flatten(-2) @ output_matrix(C, conj_factor)
        if C_backward is not None:
            backward = scan(Lambda_bar, v, reverse=True, cu_seqlens=boundaries)
            y = y + torch.view_as_real(backward).flatten(-2) @ output_matrix(C_backward, conj_factor)
        return (y if D is None else torch.addcmul(y, D, u)), x[0, boundaries[1:] - 1]

    tensors = u, Lambda_bar, B, C, C_backward, x0, input_gain, D
    if checkpoint:
        return recompute(run, *tensors, use_reentrant=False, preserve_rng_state=False)
    return run(*tensors)
