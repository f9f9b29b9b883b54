"""The S5 layer: the function and the initial distribution of the published layer."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ... import hippo
from ...errors import UsageError
from ...ops.discretize import check_method
from ...registry import register_layer
from ..options import check_C_init, check_flags, check_parameter, check_sizes
from ..ssm import Continuous, DiagonalSSM
from ..ssm_init import feedthrough, lecun_normal, log_steps, output_matrix
from ..stateful import real_parameter

# Largest real part that `clip_eigs` lets an eigenvalue have.
_CLIPPED_REAL_PART = -1e-4


@register_layer("s5")
class S5(DiagonalSSM):
    """S5 state space layer: x' = Lambda x + B_tilde u, y = 2 Re(C_tilde x) + D u, discretised with a step per mode.

    The initial eigenvalues are those of the normal part of HiPPO-LegS of order d_state / blocks, with real part -1/2,
    the same for each block.

    Args:
        d_model: H, features in and out.
        d_state: P of the paper, the real size of the state over all blocks; half as many complex modes are stored
            with conj_sym. A multiple of `blocks`.
        blocks: J, number of equal blocks on the diagonal at initialisation.
        conj_sym: keep one of each conjugate pair; needs an even block size d_state / blocks.
        bidirectional: add a second scan over the reversed sequence with its own C.
        clip_eigs: use min(Re Lambda, -1e-4), so that training cannot make a mode grow.
        C_init: "trunc_standard_normal", "lecun_normal" or "complex_normal".
        discretization: "zoh" or "bilinear".
        dt_min, dt_max: range of the initial steps, log-uniform, in units of one sample.
        checkpoint: recompute the states in the backward pass instead of keeping them: less memory, more time.
    Parameters: Lambda_re, Lambda_im, log_dt (P,); B (P, H, 2); C and, if bidirectional, C_backward (H, P, 2), last axis
        (re, im); D (H,). With P modes stored and d directions: 3 P + 2 P H + 2 d P H + H numbers.
    `dt_scale` is the `step_rescale` of the paper: a number, one a sample or one a position.
    Raises:
        UsageError: sizes that do not divide, an unknown C_init or discretization, an invalid step range.
    Source: arXiv 2208.04933, sections 3, 4 and appendix B; defaults of the published code.
    """

    roles: ClassVar[dict[str, str]] = {**DiagonalSSM.roles, "Lambda_re": "A", "Lambda_im": "A", "log_dt": "dt"}
    read_in_place: ClassVar[tuple[str, ...]] = ("B", "C", "D")

    def __init__(
        self,
        d_model: int,
        d_state: int = 256,
        blocks: int = 8,
        conj_sym: bool = True,
        bidirectional: bool = False,
        clip_eigs: bool = False,
        C_init: str = "trunc_standard_normal",
        discretization: str = "zoh",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        checkpoint: bool = False,
    ):
        check_sizes("S5", d_model=d_model, d_state=d_state, blocks=blocks)
        check_parameter("S5", d_model=d_model, d_state=d_state)
        check_parameter("S5", d_state=d_state, blocks=blocks, block_size=d_state // blocks)
        check_flags("S5", conj_sym=conj_sym, bidirectional=bidirectional, clip_eigs=clip_eigs, checkpoint=checkpoint)
        check_C_init(C_init)
        check_method(discretization)
        Lambda, V = _block_modes(d_state, blocks, conj_sym)
        B = V.mH @ lecun_normal((d_state, d_model), fan_in=d_state).to(V.dtype)
        C = [output_matrix(C_init, d_model, len(Lambda), d_state, V) for _ in range(2 if bidirectional else 1)]
        super().__init__(
            B=B,
            C=C[0],
            D=feedthrough(d_model),
            C_backward=C[1] if bidirectional else None,
            conj_sym=conj_sym,
            checkpoint=checkpoint,
        )
        self.clip_eigs = clip_eigs
        self.discretization = discretization
        self.Lambda_re = real_parameter(Lambda.real)
        self.Lambda_im = real_parameter(Lambda.imag)
        self.log_dt: nn.Parameter = real_parameter(log_steps(len(Lambda), dt_min, dt_max))

    @property
    def Lambda(self) -> Tensor:
        """(P,) complex eigenvalues, clipped if clip_eigs."""
        real = self.Lambda_re.clamp(max=_CLIPPED_REAL_PART) if self.clip_eigs else self.Lambda_re
        return torch.complex(real, self.Lambda_im)

    def _continuous(self) -> Continuous:
        return Continuous(self.Lambda, self.B_tilde, torch.exp(self.log_dt), self.discretization)

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        return (
            f"d_model={self.d_model}, n_modes={self.n_modes}, bidirectional={self.bidirectional}, "
            f"conj_sym={self.conj_sym}, discretization={self.discretization}"
        )


def _block_modes(d_state: int, blocks: int, conj_sym: bool) -> tuple[Tensor, Tensor]:
    """Lambda (P,) and V (d_state, P) of `blocks` equal blocks, each the normal part of LegS."""
    if d_state % blocks:
        raise UsageError(f"S5 splits d_state into equal blocks, but {blocks} does not divide {d_state}.")
    order = d_state // blocks
    if conj_sym and order % 2:
        raise UsageError(
            f"S5 with conj_sym keeps one of each conjugate pair, so the block size d_state / blocks must be even; "
            f"got {d_state} / {blocks} = {order}. Change one of them, or pass conj_sym=False."
        )
    diagonal = hippo.diagonalize(hippo.operator("legs", order), method="normal")
    kept = diagonal.Lambda.imag < 0 if conj_sym else slice(None)
    Lambda, V = diagonal.Lambda[kept], diagonal.V[:, kept]
    return torch.from_numpy(np.tile(Lambda, blocks)), torch.from_numpy(np.kron(np.eye(blocks), V))
