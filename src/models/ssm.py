"""The diagonal MIMO state space layer that S5, LRU and FRACTAL share; each has its own parameters and initial values.

    x_k = Lambda_bar x_{k-1} + gamma B_tilde u_k,    y_k = f Re(C_tilde x_k) + D u_k

Suffixes: B batch, L length, H features, P modes. f is 2 when one of each conjugate pair is kept, else 1.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import UsageError
from ..ops.discretize import discretize
from ..ops.scan.packed import checked_boundaries
from ..ops.ssm import bidirectional_ssm, packed_ssm, ssm
from ..ops.step import AT_TIME_BATCH, MIMO_BATCH, MIMOStep, NativeStep
from .base import broadcast_dt_scale, check_lengths, checked_scale, valid_mask
from .stateful import Scale, StatefulLayer, full_precision, real_parameter

__all__ = ["DiagonalSSM", "StepMatrices", "broadcast_dt_scale", "check_lengths", "full_precision", "real_parameter"]


class StepMatrices(NamedTuple):
    """One step as real products: B u = u @ input and y = x @ output + D u, with x as interleaved (re, im)."""

    Lambda: Tensor  # (P,) Lambda_bar if it is fixed; (B or 1, P) if the step has a dt_scale
    input: Tensor  # (H, 2P)
    output: Tensor  # (2P, H)
    input_gain: Tensor | None = None  # (B or 1, P) factor of B u if the step has a dt_scale


class Continuous(NamedTuple):
    """A system in continuous time and its discretisation."""

    Lambda: Tensor  # (P,)
    B_tilde: Tensor  # (P, H)
    dt: Tensor  # (P,)
    method: str


class DiagonalSSM(StatefulLayer):
    """A linear layer over time with a diagonal complex state, many inputs and many outputs.

    A subclass gives its continuous system in `_continuous`; a subclass that is discrete by definition gives its
    discrete system in `_discretise`.

    Cost per position and direction: 4 P H multiply-adds for the two products, P complex ones for the scan.
    Memory: O(B L (H + P)), never O(B L H P).

    The backward direction of a bidirectional layer is the same system over the reversed sequence, with an output matrix
    of its own; both directions see the present input, as in S5.

    A NaN or an infinite input does not affect earlier outputs, other samples or the gradients of earlier inputs. The
    gradients of B and D sum over all positions, and become NaN.

    Precision: as in `StatefulLayer`; the whole recurrence is computed in the parameters' precision.

    Args:
        B: (P, H) complex, initial B_tilde.
        C: (H, P) complex, initial C_tilde.
        D: (H,) real, initial feedthrough.
        C_backward: (H, P) complex for a bidirectional layer, None for a causal one.
        conj_sym: each mode stands for itself and its conjugate, so y takes twice the real part.
        checkpoint: recompute the states chunk by chunk in the backward pass instead of keeping them: equal gradients,
            about a fifth more time. y and the gradient of u, 2 B L H numbers, are always needed; the states are
            2 B L P. So the peak memory of the layer halves for P >= H and falls by a quarter at P = H / 4. With a
            dt_scale per position (and in the 1 / t system) it saves little, because the gates (B, L, P) are kept.
    """

    roles: ClassVar[dict[str, str]] = {"B": "B", "C": "C", "C_backward": "C", "D": "D"}
    read_in_place: ClassVar[tuple[str, ...]] = ("C", "D")
    parts_serve_any_scale: ClassVar[bool] = True

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
        """(H, P, 2) output weights from a stored C or C_backward, which may be more compact."""
        return C

    def _continuous(self) -> Continuous | None:
        """The continuous system; None for a layer without one, which overrides `_discretise`."""
        return None

    def _discretise(self, dt_scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lambda_bar, gamma and B_tilde: (P, H) complex.

        Lambda_bar and gamma have shape (P,), (B, 1, P), (1, L, P) or (B, L, P); dt_scale is a number or a 0-d tensor,
        or has shape (B, 1, 1) or (B, L, 1).
        """
        system = self._continuous()
        if system is None:
            raise NotImplementedError(f"{type(self).__name__} gives neither _continuous nor _discretise.")
        return *discretize(system.Lambda, dt_scale * system.dt, system.method), system.B_tilde

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer over a sequence; see `SequenceLayer.forward`. The state is x: (B, P) complex."""
        self._check_input(u, state, lengths, return_state)
        with full_precision(u.device):
            scale = broadcast_dt_scale(dt_scale, u)
            modes = self._discretise(scale.to(self.D.dtype) if isinstance(scale, Tensor) else scale)
            y, x_last = self._run(self._as_computed(u), *modes, state, lengths)
        return y.to(u.dtype), x_last if return_state else None

    def forward_packed(
        self,
        u: Tensor,
        cu_seqlens: Tensor,
        state: Any = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """See `SequenceLayer.forward_packed`; one pass over the positions."""
        self._check_input(u, return_state=return_state)
        ends = checked_boundaries(type(self).__name__, cu_seqlens, u)
        self._check_packed_state(state, len(ends) - 1)
        shapes = [((len(ends) - 1,), "one a sequence"), ((1, u.shape[1]), "one a position")]
        scale = checked_scale(dt_scale, shapes, u.device)
        if isinstance(scale, Tensor):
            scale = scale.to(self.D.dtype)
            if scale.dim():
                scale = (scale if scale.dim() == 2 else scale.repeat_interleave(ends.diff())[None])[..., None]
        with full_precision(u.device):
            Lambda_bar, gamma, B_tilde = self._discretise(scale)
            options = self._options(gamma if gamma.dim() > 1 else None)
            B = B_tilde if gamma.dim() > 1 else gamma[:, None] * B_tilde
            C_backward = None if self.C_backward is None else torch.view_as_complex(self._output(self.C_backward))
            system = self._as_computed(u), Lambda_bar, B, self.C_tilde
            y, x_last = packed_ssm(*system, ends, state, C_backward=C_backward, **options)
        return y.to(u.dtype), x_last if self.causal and return_state else None

    def _check_packed_state(self, state: Any, sequences: int) -> None:
        if state is not None and not self.causal:
            raise UsageError(f"{type(self).__name__} got a state but carries none. {self._why_not_causal()}")
        self._check_state(state, sequences)

    def _advance(self, parts: StepMatrices, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        if scale is not None:
            Lambda_bar, gamma, _ = self._discretise(self._rows(scale).to(self.D.dtype)[:, None, None])
            parts = StepMatrices(Lambda_bar[:, 0], parts.input, parts.output, gamma[:, 0])
        return self._advance_by(parts, u, state)

    def _rows(self, scale: float | Tensor) -> Tensor:
        """A dt_scale as (B,) or (1,)."""
        if isinstance(scale, Tensor):
            return scale.reshape(-1)
        return torch.full((1,), scale, dtype=torch.float64, device=self.D.device)

    def _advance_by(self, parts: StepMatrices, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
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
            # With a zeroed tail the backward direction has a zero state when it reaches the last valid position.
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

    def _build_step(self, scale: Scale) -> StepMatrices:
        Lambda_bar, gamma, B_tilde = self._discretise(1.0)
        return self._products(Lambda_bar, gamma[:, None] * B_tilde if scale is None else B_tilde)

    def _products(self, Lambda: Tensor, B: Tensor) -> StepMatrices:
        C = (self._output(self.C) * self.C.new_tensor([self._conj_factor, -self._conj_factor])).flatten(1)
        return StepMatrices(
            Lambda, torch.view_as_real(B).transpose(1, 2).flatten(0, 1).t().contiguous(), C.t().contiguous()
        )

    def _native_step(self, u: Tensor, state: Any, scale: Scale) -> NativeStep | None:
        return super()._native_step(u, state, scale) if u.shape[0] <= self._native_batch(scale) else None

    def _native_batch(self, scale: Scale) -> int:
        """Largest batch that is stepped natively; for more samples, matrix products are faster."""
        return MIMO_BATCH if scale is None else AT_TIME_BATCH

    def _build_native(self, scale: Scale) -> NativeStep | None:
        if scale is None:
            return self._mimo_step(*self._discretise(1.0))
        system = self._continuous()
        if system is None:
            return None
        return self._mimo_step(system.Lambda, None, system.B_tilde, rule=system.method, dt=system.dt)

    def _advance_natively(self, step: MIMOStep, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        return step(u, state) if scale is None else step.scaled(u, state, self._rows(scale))

    def _mimo_step(self, Lambda: Tensor, gamma: Tensor | None, B_tilde: Tensor, **rule: Any) -> MIMOStep:
        return MIMOStep(Lambda, gamma, B_tilde, self._output(self.C), self.D, self._conj_factor, **rule)

    @property
    def _conj_factor(self) -> float:
        return 2.0 if self.conj_sym else 1.0
