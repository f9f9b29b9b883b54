"""Diagonal systems whose step differs from position to position, in real arithmetic: gates, then one loop over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..models.fractal import Fractal
from ..models.ssm import DiagonalSSM
from ..ops.runtime.loop import loop
from .complex_pairs import divide, exp, rotate


class Gates(nn.Module):
    """The gates of x <- Lambda_bar x + gamma B u, computed from the duration of each input.

        zoh       Lambda_bar = exp(Lambda s),                    gamma = (Lambda_bar - 1) / Lambda
        bilinear  Lambda_bar = (1 + Lambda s/2) / (1 - Lambda s/2),   gamma = s / (1 - Lambda s/2)
        scaled    zoh over the logarithm of time, s = log((t + lasting) / t); from t = 0: 0 and -1 / Lambda

    s = dt_scale dt for the first two. Computed in float64, because Lambda_bar - 1 cancels.

    Args:
        Lambda: (P,) complex128 eigenvalues, none of them 0.
        dt: (P,) float64 steps; ones for "scaled".
        method: "zoh", "bilinear" or "scaled".
    """

    rate: Tensor
    dt: Tensor

    def __init__(self, Lambda: Tensor, dt: Tensor, method: str):
        super().__init__()
        if bool((Lambda == 0).any()):
            raise UsageError(
                "A mode of eigenvalue 0 has no real form with dt_scale as an input: give dt_scale a number."
            )
        self.method = method
        self.register_buffer("rate", torch.view_as_real(Lambda), persistent=False)
        self.register_buffer("dt", dt[:, None], persistent=False)

    @property
    def scaled(self) -> bool:
        """Whether the state holds the elapsed time as well."""
        return self.method == "scaled"

    def forward(self, lasting: Tensor, elapsed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Lambda_bar and gamma (..., P, 2) from dt_scale (...) and, for "scaled", the starting time t of each input."""
        lasting = lasting.double()
        if self.method == "bilinear":
            half = 0.5 * self.rate * self.dt * lasting[..., None, None]
            one = torch.tensor([1.0, 0.0], dtype=half.dtype, device=half.device)
            step = torch.stack((self.dt[..., 0] * lasting[..., None], torch.zeros_like(half[..., 0])), dim=-1)
            return divide(one + half, one - half), divide(step, one - half)
        started = None
        if self.scaled:
            started = elapsed > 0
            lasting, kept = torch.log1p(lasting / torch.where(started, elapsed, 1.0)), lasting
        decay = exp(self.rate * self.dt * lasting[..., None, None])
        one = torch.tensor([1.0, 0.0], dtype=decay.dtype, device=decay.device)
        gain = divide(decay - one, self.rate)
        if started is None:
            return decay, gain
        first = (~started & (kept > 0))[..., None, None]
        return torch.where(first, 0.0, decay), torch.where(first, divide(-one, self.rate), gain)


def gates_of(layer: DiagonalSSM) -> tuple[Gates, Tensor]:
    """The gates of S5 or Fractal, in float64, and the B_tilde (P, H) that gamma multiplies.

    Raises:
        UsageError: a layer without a step, such as LRU.
    """
    if isinstance(layer, Fractal) and layer.time == "ltv":
        return Gates(layer.Lambda, torch.ones_like(layer.Lambda.real), "scaled"), layer.B_tilde
    system = layer._continuous()
    if system is None:
        raise UsageError(
            f"{type(layer).__name__} takes no dt_scale as an input of the exported program; S5, Fractal and Attention "
            f"do. Export it for one number: dt_scale=1.0."
        )
    return Gates(system.Lambda, system.dt, system.method), system.B_tilde


def run(decay: Tensor, v: Tensor, x0: Tensor) -> Tensor:
    """x_k = decay_k x_{k-1} + v_k over (B, L, P, 2) from x0 (B, P, 2): the states (L + 1, B, P, 2), x0 first."""
    decay = decay.expand_as(v)
    return loop(lambda x, a, more: rotate(x, a) + more, x0, decay.transpose(0, 1), v.transpose(0, 1))
