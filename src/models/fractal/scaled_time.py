"""The 1 / t system of the original HiPPO, without a learned step in place of 1 / t, evaluated exactly.

x' = (Lambda x + B_tilde u) / t has constant coefficients in the logarithm of time. An input held from t_k to t_{k+1} is
therefore a zero-order hold over log(t_{k+1} / t_k). The first input, from t = 0, takes any state to the steady value
-B_tilde u / Lambda.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops.discretize import discretize


class ScaledState(NamedTuple):
    """x: (B, P) complex; elapsed: (B,) float64, time since the start in samples."""

    x: Tensor
    elapsed: Tensor

    def time(self) -> Tensor:
        """`elapsed`, as (1,) if it is an expanded tensor (as from `shared`), so that all samples share one value."""
        return self.elapsed[:1] if self.elapsed.stride(0) == 0 else self.elapsed

    @classmethod
    def shared(cls, x: Tensor, elapsed: Tensor) -> ScaledState:
        """Build from elapsed (B,) or (1,); (1,) is expanded without a copy, so that the gates are computed once."""
        return cls(x, elapsed.expand(x.shape[0]))


def discretize_scaled(Lambda: Tensor, elapsed: Tensor, lasting: Tensor) -> tuple[Tensor, Tensor]:
    """Exact step of the 1 / t system over inputs held from t to t + lasting.

        Lambda_bar = (t / (t + lasting))^(-Lambda),   gamma = (Lambda_bar - 1) / Lambda

    Args:
        Lambda: (P,) complex, Re < 0.
        elapsed: float64 of any shape, t >= 0 at the beginning of each input; (B or 1, L) for a sequence.
        lasting: float64 >= 0, of the same shape: duration of each input; with 0 it leaves the state unchanged.
    Returns:
        Lambda_bar and gamma, with P modes as the last axis; they depend on ratios of times only.
    Source: this project, docs/theory.md.
    """
    started = elapsed > 0
    log_ratio = torch.log1p(lasting / torch.where(started, elapsed, torch.ones_like(elapsed)))
    # From t = 0 the ratio is infinite; a finite stand-in keeps the gradient of the unselected branch below finite.
    Lambda_bar, gamma = discretize(Lambda, log_ratio.to(Lambda.real.dtype)[..., None], "zoh")
    first = (~started & (lasting > 0))[..., None]
    return torch.where(first, torch.zeros_like(Lambda_bar), Lambda_bar), torch.where(first, -1 / Lambda, gamma)


def durations(dt_scale: float | Tensor, length: int, device: torch.device) -> Tensor:
    """(B or 1, L) float64, the duration of each input in samples; dt_scale as `broadcast_dt_scale` returns it."""
    if not isinstance(dt_scale, Tensor):
        return torch.full((1, length), dt_scale, dtype=torch.float64, device=device)
    scale = dt_scale.double()
    return (scale[..., 0] if scale.dim() == 3 else scale.reshape(1, 1)).expand(-1, length)
