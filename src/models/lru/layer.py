"""The Linear Recurrent Unit."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import UsageError
from ...registry import register_layer
from ..options import check_flags, check_numbers, check_parameter, check_sizes
from ..ssm import DiagonalSSM
from ..ssm_init import complex_normal, feedthrough
from ..stateful import real_parameter


@register_layer("lru")
class LRU(DiagonalSSM):
    """Linear Recurrent Unit: x_k = lambda x_{k-1} + gamma B u_k, y = Re(C x) + D u, without a continuous-time system.

    lambda = exp(-exp(nu) + i exp(theta)), so |lambda| < 1 always. gamma starts as sqrt(1 - |lambda|^2), which keeps the
    state's variance at 1 for white input; its logarithm is the parameter.

    Args:
        d_model: H, features in and out.
        d_state: N, complex modes; no conjugate pairs are implied.
        r_min, r_max: |lambda|^2 starts uniform in [r_min^2, r_max^2]; 0 <= r_min < r_max <= 1.
        max_phase: the phase starts uniform in [0, max_phase], in radians per position.
        bidirectional: add a second scan over the reversed sequence with its own C (the paper's layer runs forward).
        checkpoint: recompute the states in the backward pass instead of keeping them: less memory, more time.
    Parameters: nu_log, theta_log, gamma_log (N,); B (N, H, 2), C and, if bidirectional, C_backward (H, N, 2), last
        axis (re, im); D (H,). Initially re and im of B have variance 1 / (2 H), those of C 1 / N; D is standard normal.
    `dt_scale` must be 1: there is no step to change.
    Raises:
        UsageError: sizes below 1, or radii or a phase outside their range.
    Source: arXiv 2303.06349 (its algorithm and its table of defaults for the Long Range Arena).
    """

    roles: ClassVar[dict[str, str]] = {**DiagonalSSM.roles, "nu_log": "A", "theta_log": "A", "gamma_log": "B"}
    read_in_place: ClassVar[tuple[str, ...]] = ("B", "C", "D")

    def __init__(
        self,
        d_model: int,
        d_state: int = 256,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 6.28,
        bidirectional: bool = False,
        checkpoint: bool = False,
    ):
        check_sizes("LRU", d_model=d_model, d_state=d_state)
        check_parameter("LRU", d_model=d_model, d_state=d_state)
        check_flags("LRU", bidirectional=bidirectional, checkpoint=checkpoint)
        check_numbers(r_min=r_min, r_max=r_max, max_phase=max_phase)
        if not 0 <= r_min < r_max <= 1:
            raise UsageError(f"LRU needs 0 <= r_min < r_max <= 1, got r_min={r_min}, r_max={r_max}.")
        if not 0 < max_phase < math.inf:
            raise UsageError(f"LRU needs a positive max_phase, got {max_phase}.")
        C = [complex_normal((d_model, d_state), variance=2 / d_state) for _ in range(2 if bidirectional else 1)]
        super().__init__(
            B=complex_normal((d_state, d_model), variance=1 / d_model),
            C=C[0],
            D=feedthrough(d_model),
            C_backward=C[1] if bidirectional else None,
            conj_sym=False,
            checkpoint=checkpoint,
        )
        nu_log, theta_log, gamma_log = _ring(d_state, r_min, r_max, max_phase)
        self.nu_log = real_parameter(nu_log)
        self.theta_log = real_parameter(theta_log)
        self.gamma_log = real_parameter(gamma_log)

    @property
    def Lambda_bar(self) -> Tensor:
        """(N,) complex, the eigenvalues of one step."""
        modulus, phase = torch.exp(-torch.exp(self.nu_log)), torch.exp(self.theta_log)
        return torch.complex(modulus * torch.cos(phase), modulus * torch.sin(phase))

    def _discretise(self, dt_scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(dt_scale, Tensor) or dt_scale != 1.0:
            raise UsageError(
                "LRU is discrete: it has no step that dt_scale could change. "
                "Use S5 or Fractal for data of another sampling rate."
            )
        return self.Lambda_bar, torch.exp(self.gamma_log), self.B_tilde

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        return f"d_model={self.d_model}, n_modes={self.n_modes}, bidirectional={self.bidirectional}"


def _ring(n: int, r_min: float, r_max: float, max_phase: float) -> tuple[Tensor, Tensor, Tensor]:
    """(n,) float64 nu_log, theta_log, gamma_log of eigenvalues uniform on a ring of the complex plane."""
    # Clamped away from 0 and 1, where the logarithms below are infinite.
    tiny = torch.finfo(torch.float32).eps
    squared = torch.rand(n, dtype=torch.float64, device="cpu") * (r_max**2 - r_min**2) + r_min**2
    squared = squared.clamp(tiny, 1 - tiny)
    phase = max_phase * torch.rand(n, dtype=torch.float64, device="cpu").clamp(min=tiny)
    return torch.log(-0.5 * torch.log(squared)), torch.log(phase), 0.5 * torch.log1p(-squared)
