"""Discrete systems that a SISO layer runs: the interface `System`, and the diagonal system.

Suffixes: B batch, L length, H features, P modes.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...ops.step import NativeStep, SISOStep
from ...ops.vandermonde import vandermonde, vandermonde_sum


class System(ABC):
    """H discrete systems of the same form, one for each feature; x is a state (B, H, P), complex."""

    @abstractmethod
    def kernel(self, length: int) -> Tensor:
        """K[r, h, l] = C A_bar^l B_bar: (rows of C, H, length) real."""

    @abstractmethod
    def free_response(self, x: Tensor, length: int) -> Tensor:
        """C A_bar^(l+1) x, the response to an earlier state: (B, length, c H) real; forward direction only."""

    @abstractmethod
    def advance(self, x: Tensor, steps: int | Tensor) -> Tensor:
        """A_bar^steps x; `steps` is a number, or (B,) with one number for each sample."""

    @abstractmethod
    def final_state(self, u: Tensor) -> Tensor:
        """sum_k A_bar^(L-1-k) B_bar u_k, the state after u (B, L, H) from the zero state."""

    def last_state(self, u: Tensor, x0: Tensor | None, lengths: Tensor | None) -> Tensor:
        """The state (B, H, P) after u (B, L, H) from x0, for each sample after its own last valid position."""
        length = u.shape[1]
        if lengths is not None:
            # Shift every sample to the right, with zeros in front, so that its last valid position comes last.
            source = torch.arange(length, device=u.device) - (length - lengths[:, None])
            u = u.gather(1, source.clamp(min=0)[..., None].expand_as(u)).masked_fill((source < 0)[..., None], 0.0)
        x = self.final_state(u)
        return x if x0 is None else x + self.advance(x0, length if lengths is None else lengths)

    @abstractmethod
    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """u (B, H) to the next x and C x (B, c H); forward direction only."""

    def native_step(self, D: Tensor) -> NativeStep | None:
        """`step` and the feedthrough D as one native call; None for a system without one."""
        return None


class HasSystem(Protocol):
    """Interface of a layer for the operators of a compiled graph: the tensors and options of its discrete system."""

    roles: ClassVar[dict[str, str]]
    options: ClassVar[tuple[str, ...]]
    C: Tensor
    d_model: int

    @property
    def d_output(self) -> int:
        """Features out."""

    def system(self, dt_scale: float | Tensor = 1.0) -> System:
        """The discrete system, computed only from the attributes named in `roles` and `options`."""


@dataclass(frozen=True, eq=False)
class DiagonalSystem(System):
    """x_k = Lambda_bar x_{k-1} + B_bar u_k,  y_k = 2 Re sum_n C x_k.

    Attributes:
        Lambda_bar: (H, P) complex128, because the kernel consists of its powers and float32 would lose the phase at
            long lags. With a separate dt for each sample both this and B_bar are (B, H, P).
        B_bar: (H, P) complex.
        C: (rows, H, P) complex, in the precision of the layer: c channels forward, then c channels backward if there
            are two directions.
        backend: of `ops.vandermonde`.
    """

    Lambda_bar: Tensor
    B_bar: Tensor
    C: Tensor
    backend: str = "auto"

    def kernel(self, length: int) -> Tensor:
        """K[r, h, l] = 2 Re sum_n C B_bar Lambda_bar^l."""
        return vandermonde((self.C * self.B_bar).to(self.C.dtype), self.Lambda_bar, length, self.backend)

    def free_response(self, x: Tensor, length: int) -> Tensor:
        """2 Re sum_n C Lambda_bar^(l+1) x, (B, length, c H)."""
        coefficient = (self.C * self.Lambda_bar).to(x.dtype) * x[:, None]
        return vandermonde(coefficient, self.Lambda_bar, length, self.backend).flatten(1, 2).transpose(1, 2)

    def advance(self, x: Tensor, steps: int | Tensor) -> Tensor:
        """Lambda_bar^steps x, by repeated squaring."""
        power, most = self.Lambda_bar, steps if isinstance(steps, int) else int(steps.max())
        remaining = torch.as_tensor(steps, device=x.device).reshape(-1, 1, 1)
        factor = torch.ones_like(power)
        for bit in range(most.bit_length()):
            factor = torch.where(remaining >> bit & 1 == 1, factor * power, factor)
            power = power * power
        return factor.to(x.dtype) * x

    def final_state(self, u: Tensor) -> Tensor:
        """B_bar sum_k Lambda_bar^(L-1-k) u_k."""
        sums = vandermonde_sum(u.transpose(1, 2), self.Lambda_bar, newest_last=True, backend=self.backend)
        return self.B_bar.to(self.C.dtype) * sums

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """See `System`."""
        Lambda_bar, B_bar, C = self._step_tensors
        x = torch.addcmul(B_bar * u[..., None], Lambda_bar, x)
        return x, (torch.view_as_real(x)[:, None] * C).sum((-2, -1)).flatten(1)

    def native_step(self, D: Tensor) -> NativeStep:
        """See `System`."""
        return SISOStep(self.Lambda_bar.to(self.C.dtype), self.B_bar.to(self.C.dtype), self.C, D)

    @functools.cached_property
    def _step_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Factors of a step, in the layer's precision; C as (c, H, P, 2) for a real product."""
        C = torch.view_as_real(2 * self.C.conj().resolve_conj())
        return self.Lambda_bar.to(self.C.dtype), self.B_bar.to(self.C.dtype), C
