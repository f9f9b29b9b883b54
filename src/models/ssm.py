"""The diagonal MIMO state space layer that S5, LRU and FRACTAL share: everything but where the modes come from.

    x_k = Lambda_bar x_{k-1} + gamma B_tilde u_k,    y_k = f Re(C_tilde x_k) + D u_k

Suffixes: B batch, L length, H features, P modes. f is 2 when one of each conjugate pair is kept, else 1.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..ops.ssm import bidirectional_ssm, ssm
from ..ops.step import MIMO_BATCH, MIMOStep, NativeStep
from .base import broadcast_dt_scale, check_lengths, valid_mask
from .stateful import StatefulLayer, full_precision, real_parameter

__all__ = ["DiagonalSSM", "StepMatrices", "broadcast_dt_scale", "check_lengths", "full_precision", "real_parameter"]


class StepMatrices(NamedTuple):
    """One step as real products: B u = u @ input and y = x @ output + D u, x seen as interleaved (re, im)."""

    Lambda: Tensor  # (P,), Lambda_bar where the step does not depend on time
    input: Tensor  # (H, 2P)
    output: Tensor  # (2P, H)
    input_gain: Tensor | None = None  # (B or 1, P), of B u where the step depends on time


class DiagonalSSM(StatefulLayer):
    """A linear layer over time with a diagonal complex state, many inputs and many outputs.

    A subclass says how the modes go from one position to the next (`_discretise`).

    Cost per position and direction: 4 P H multiply-adds for the two products, P complex ones for the scan.
    Memory: O(B L (H + P)), never O(B L H P).

    The backward direction of a bidirectional layer is the same system run over the reversed sequence, with an output
    matrix of its own; both directions see the present input, as in S5.

    A NaN or an infinite input reaches no earlier output and no other sample, and no gradient of an earlier input; the
    gradients of B and D sum over all positions, and are NaN.

    Precision: as in `StatefulLayer`; the whole recurrence is computed in the parameters' precision.

    Args:
        B: (P, H) complex, initial B_tilde.
        C: (H, P) complex, initial C_tilde.
        D: (H,) real, initial feedthrough.
        C_backward: (H, P) complex for a bidirectional layer, None for a causal one.
        conj_sym: each mode stands for itself and its conjugate, so y takes twice the real part.
        checkpoint: recompute the states in the backward, piece by piece, instead of keeping them: equal gradients for
            about a fifth more time; of the layer's peak little more than y and the gradient of u is left (2 B L H
            numbers), which saves much where there are as many modes as features and little where there are few.
    """

    roles: ClassVar[dict[str, str]] = {"B": "B", "C": "C", "C_backward": "C", "D": "D"}
    read_in_place: ClassVar[tuple[str, ...]] = ("C", "D")

    def __init__(
        self,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        C_backward: Tensor | None = None,
        conj_sym: bool = True,
        checkpoint: bool = False,
    ):
        n_modes, d_model = len(B), len(D)
        super().__init__(d_model, bidirectional=C_backward is not None, state_shape=(n_modes,))
        self.n_modes = n_modes
        self.conj_sym = conj_sym
        self.checkpoint = checkpoint
        self.B = real_parameter(B)
        self.C = real_parameter(C)
        self.C_backward = real_parameter(C_backward) if C_backward is not None else None
        self.D = real_parameter(D)

    @property
    def B_tilde(self) -> Tensor:
        """(P, H) complex input matrix in the eigenbasis."""
        return torch.view_as_complex(self.B)

    @property
    def C_tilde(self) -> Tensor:
        """(H, P) complex output matrix in the eigenbasis (of the forward direction)."""
        return torch.view_as_complex(self._output(self.C))

    def _output(self, C: Tensor) -> Tensor:
        """(H, P, 2) output weights from a stored C or C_backward; a layer may store fewer than it uses."""
        return C

    @abstractmethod
    def _discretise(self, dt_scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lambda_bar, gamma and B_tilde: (P, H) complex.

        Lambda_bar and gamma have shape (P,), (B, 1, P), (1, L, P) or (B, L, P); dt_scale is a number or a 0-d tensor,
        or has shape (B, 1, 1) or (B, L, 1).
        """

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """The layer over a sequence; see `SequenceLayer.forward`. The state is x: (B, P) complex."""
        self._check_input(u, state, lengths, return_state)
        with full_precision(u.device):
            scale = broadcast_dt_scale(dt_scale, u)
            modes = self._discretise(scale.to(self.D.dtype) if isinstance(scale, Tensor) else scale)
            y, x_last = self._run(self._as_computed(u), *modes, state, lengths)
        return y.to(u.dtype), x_last if return_state else None

    def _advance(self, parts: StepMatrices, u: Tensor, state: Any) -> tuple[Tensor, Any]:
        Bu = torch.view_as_complex((u @ parts.input).view(u.shape[0], self.n_modes, 2))
        x = torch.addcmul(Bu if parts.input_gain is None else parts.input_gain * Bu, parts.Lambda, state)
        return torch.addmm(self.D * u, torch.view_as_real(x).view(u.shape[0], 2 * self.n_modes), parts.output), x

    def _run(
        self,
        u: Tensor,
        Lambda_bar: Tensor,
        gamma: Tensor,
        B_tilde: Tensor,
        x0: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        if lengths is not None:
            # A zeroed tail leaves the backward direction at rest when it reaches the last valid position.
            u = u.masked_fill(~valid_mask(lengths, u.shape[1])[..., None], 0.0)
        input_gain = None
        if gamma.dim() == 1:
            B_tilde = gamma[:, None] * B_tilde
        else:
            input_gain = gamma
        system, options = (u, Lambda_bar, B_tilde, self.C_tilde), self._options(input_gain)
        if self.C_backward is None:
            y, x_last = ssm(*system, x0, lengths=lengths, **options)
        else:
            y, x_last = (
                bidirectional_ssm(*system, torch.view_as_complex(self._output(self.C_backward)), **options),
                None,
            )
        return y, x_last

    def _options(self, input_gain: Tensor | None) -> dict[str, Any]:
        return {"conj_sym": self.conj_sym, "input_gain": input_gain, "checkpoint": self.checkpoint, "D": self.D}

    def _build_step(self) -> StepMatrices:
        Lambda_bar, gamma, B_tilde = self._discretise(1.0)
        return self._products(Lambda_bar, gamma[:, None] * B_tilde)

    def _products(self, Lambda: Tensor, B: Tensor) -> StepMatrices:
        C = (self._output(self.C) * self.C.new_tensor([self._conj_factor, -self._conj_factor])).flatten(1)
        return StepMatrices(
            Lambda, torch.view_as_real(B).transpose(1, 2).flatten(0, 1).t().contiguous(), C.t().contiguous()
        )

    def _native_step(self, u: Tensor, state: Any) -> NativeStep | None:
        return super()._native_step(u, state) if u.shape[0] <= self._native_batch else None

    @property
    def _native_batch(self) -> int:
        """The most samples that are stepped natively; for more, products of matrices are faster."""
        return MIMO_BATCH

    def _build_native(self) -> NativeStep:
        Lambda_bar, gamma, B_tilde = self._discretise(1.0)
        return self._mimo_step(Lambda_bar, gamma, B_tilde)

    def _mimo_step(self, Lambda: Tensor, gamma: Tensor | None, B_tilde: Tensor) -> MIMOStep:
        return MIMOStep(Lambda, gamma, B_tilde, self._output(self.C), self.D, self._conj_factor)

    @property
    def _conj_factor(self) -> float:
        return 2.0 if self.conj_sym else 1.0
