"""The discrete system of DSS, whose kernel is a softmax over positions."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError
from ...ops.discretize import complex_exp
from ...ops.step import NativeStep
from ...ops.vandermonde import vandermonde
from ..siso import DiagonalSystem, System, dss_input


@dataclass(frozen=True, eq=False)
class SoftmaxSystem(System):
    """x_k = exp(z) x_{k-1} + b u_k, y_k = 2 Re sum_n C x_k, with b such that C b exp(z l) = C / Lambda softmax_l(z l).

    Attributes:
        z: (H, N) complex128, Lambda dt, of any sign.
        Lambda: (N,) complex128.
        C: (directions, H, N) complex, half of the layer's.
        l_max: number of positions of the softmax; None takes the length of the requested kernel.
        backend: of `ops.vandermonde`.
    """

    z: Tensor
    Lambda: Tensor
    C: Tensor
    l_max: int | None
    backend: str

    def kernel(self, length: int) -> Tensor:
        """K[c, h, l]. A growing mode is summed backward from the last position, where it is largest."""
        positions = length if self.l_max is None else self.l_max
        weight = self.C * dss_input(self.Lambda, self.z, positions)
        growing = self.z.real > 0
        # The unselected branch must stay finite, or its gradient is nan.
        at_end = complex_exp(torch.where(growing, self.z, 0) * (length - positions))
        zero = torch.zeros_like(weight)
        both = torch.cat((torch.where(growing, zero, weight), torch.where(growing, weight * at_end, zero)))
        decaying = complex_exp(torch.where(growing, -self.z, self.z))
        from_start, from_end = vandermonde(both.to(self.C.dtype), decaying, length, self.backend).chunk(2)
        return from_start + from_end.flip(-1)

    def free_response(self, x: Tensor, length: int) -> Tensor:
        """2 Re sum_n C exp(z (l+1)) x."""
        return self._carried.free_response(x, length)

    def advance(self, x: Tensor, steps: int | Tensor) -> Tensor:
        """exp(z steps) x."""
        return self._carried.advance(x, steps)

    def final_state(self, u: Tensor) -> Tensor:
        """The state after u; for a growing mode it may be infinite, and it cannot be used."""
        return self._diagonal.final_state(u)

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """See `System`."""
        return self._carried.step(x, u)

    def native_step(self, D: Tensor) -> NativeStep:
        """See `System`."""
        return self._carried.native_step(D)

    @functools.cached_property
    def _diagonal(self) -> DiagonalSystem:
        if self.l_max is None:
            raise UsageError("DSS without l_max has no fixed recurrence: build it with l_max to carry a state.")
        input_weight = dss_input(self.Lambda, self.z, self.l_max)
        # The kernel of a growing mode is normalised at the last position, its recurrence starts at the first.
        to_start = complex_exp(torch.where(self.z.real > 0, self.z, 0) * (1 - self.l_max))
        return DiagonalSystem(complex_exp(self.z), input_weight * to_start, self.C, self.backend)

    @functools.cached_property
    def _carried(self) -> DiagonalSystem:
        if not torch.compiler.is_compiling() and bool((self.z.real > 0).any()):
            raise UsageError(
                "DSS has a growing mode (Re Lambda > 0), whose state cannot be carried on: run whole sequences with "
                "forward, or clamp Lambda_re to negative values first."
            )
        return self._diagonal
