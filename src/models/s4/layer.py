"""The S4 layer: the SSM and its feedthrough; activation, dropout and mixing belong to the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...ops.runtime.backends import check
from ...registry import register_layer
from ..options import check_choice, check_copies, check_flags, check_length, check_parameter, check_sizes
from ..siso import SISOLayer, initial_steps, keep_length, step_size
from ..ssm_init import complex_normal
from ..stateful import full_precision, real_parameter
from .init import initial_low_rank
from .system import LowRankSystem

BACKENDS = ("auto", "powers", "cauchy", "keops", "triton")


@register_layer("s4")
class S4(SISOLayer):
    """S4: for each feature x' = (diag(Lambda) - P Q^H) x + B u, y = 2 Re(C x) + D u, bilinear with its own step.

    Lambda = -exp(A_real) - i A_imag. With Q = P, as in every published initialisation, the system stays stable and its
    transition a contraction throughout training. With a separate Q (`fractional-tau`) it is stable at the start.

    The parameter is C itself, so the function of the parameters does not depend on the sequence length. The published
    code trains C (I - A_bar^F) instead, where F is the length of its first batch; `fold_length=F` does the same. Both
    represent the same functions; the gradients differ if A_bar^F has not decayed.

    Args:
        d_model: H, features in and out.
        d_state: N, order of the real system, even; N/2 complex modes are stored.
        init: "legs", "legt" (rank 2), "fourier" or "fout" as published, or a registered measure by name or as
            {"name": ..., options} in its exact form; see `initial_low_rank`.
        n_ssm: independent copies of (Lambda, P, Q, B), a divisor of H; feature h uses copy h mod n_ssm. None: H.
        bidirectional: add a kernel over future inputs, with a C of its own.
        backward_lag: smallest lag of that kernel: 1, as published, or 0, which includes the present input.
        dt_transform: "exp" (the papers) or "softplus" (the published code since version 4).
        dt_min, dt_max: range of the initial steps, log-uniform, in units of one sample.
        fold_length: F above; None trains C. The meaning of C depends on it, so it is saved in the state dict as
            `folded_at` (0 for None), and loading weights sets it.
        backend: how the kernel is computed: "powers" (matrix powers), "cauchy" (sums over poles, with the best backend
            of `ops.cauchy` on the device), "keops" or "triton" (the same with that backend), or "auto": powers, but
            cauchy if C is folded, as it then needs no powers.
        channels: c, kernels per feature, each with its own C and D: the output is (B, L, c H), channel by channel, and
            the linear map of the mixer combines the channels.
    Parameters: inv_dt (H,), A_real and A_imag (n_ssm, P), B (n_ssm, P, 2), P and, if it differs, Q
        (rank, n_ssm, P, 2), C (directions c, H, P, 2), D (H,), or (c, H) for c > 1. Buffer: folded_at ().
    A `dt_scale` of 0 raises: the low-rank form divides by the step. `cauchy`, `keops` and `triton` have first
    derivatives only.
    Raises:
        UsageError: sizes that do not divide, unknown names, an invalid step range.
    Source: arXiv 2111.00396, 2206.12037; parametrisation and initial distributions as in the published code.
    """

    fold_length: int | None
    roles: ClassVar[dict[str, str]] = {
        **SISOLayer.roles,
        "inv_dt": "dt",
        "A_real": "A",
        "A_imag": "A",
        "P": "A",
        "Q": "A",
        "B": "B",
        "C": "C",
    }
    read_in_place: ClassVar[tuple[str, ...]] = ("D",)
    options: ClassVar[tuple[str, ...]] = (*SISOLayer.options, "dt_transform", "fold_length", "backend")

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        init: str | Mapping[str, Any] = "legs",
        n_ssm: int | None = None,
        bidirectional: bool = False,
        dt_transform: str = "exp",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        fold_length: int | None = None,
        backend: str = "auto",
        channels: int = 1,
        backward_lag: int = 1,
    ):
        check_sizes("S4", d_model=d_model, d_state=d_state, channels=channels)
        check_parameter("S4", d_model=d_model, d_state=d_state, channels=channels)
        check_flags("S4", bidirectional=bidirectional)
        n_ssm = check_copies("S4", d_model, n_ssm)
        check_choice("backend of S4", backend, BACKENDS)
        if backend in ("keops", "triton"):
            check("cauchy", backend)
        if fold_length is not None:
            check_length("S4", fold_length=fold_length)
            check_parameter("The kernel of S4", d_model=d_model, fold_length=fold_length)
        modes = initial_low_rank(init, d_state)
        n_modes = d_state // 2
        super().__init__(
            d_model, bidirectional, state_shape=(d_model, n_modes), channels=channels, backward_lag=backward_lag
        )
        self.dt_transform = dt_transform
        keep_length(self, "fold_length", fold_length, "folded_at")
        self.backend = backend
        self.inv_dt: nn.Parameter = real_parameter(initial_steps(d_model, dt_min, dt_max, dt_transform))
        self.A_real: nn.Parameter = real_parameter(torch.log(-modes.Lambda.real).repeat(n_ssm, 1))
        self.A_imag: nn.Parameter = real_parameter(-modes.Lambda.imag.repeat(n_ssm, 1))
        self.B: nn.Parameter = real_parameter(modes.B.repeat(n_ssm, 1))
        self.P: nn.Parameter = real_parameter(modes.P[:, None].repeat(1, n_ssm, 1))
        self.Q = None if modes.Q is None else real_parameter(modes.Q[:, None].repeat(1, n_ssm, 1))
        rows = channels * (2 if bidirectional else 1)
        self.C: nn.Parameter = real_parameter(complex_normal((rows, d_model, n_modes)))
        if fold_length is not None:
            self.fold(self.C.detach())

    @property
    def _backend(self) -> str:
        if self.backend == "auto":
            return "powers" if self.fold_length is None else "cauchy"
        return self.backend

    @property
    def dt(self) -> Tensor:
        """(H,) float64 steps."""
        return step_size(self.inv_dt, self.dt_transform)

    def fold(self, C: Tensor) -> None:
        """Set the parameter from a C (rows, H, P, 2) that is not folded."""
        if self.C.is_meta:
            # Nothing to fold yet: weights are loaded later.
            return
        with torch.no_grad(), full_precision(self.D.device):
            if self.fold_length is not None:
                system = self._system_of(torch.view_as_complex(C.double().contiguous()), 1.0, fold_length=None)
                C = torch.view_as_real(system.folded(self.fold_length).resolve_conj())
            self.C.copy_(C)

    def unfold(self, C: Tensor, length: int) -> Tensor:
        """(rows, H, P) complex128: the C whose folded form at `length` is C (rows, H, P, 2)."""
        with torch.no_grad(), full_precision(self.D.device):
            return self._system_of(torch.view_as_complex(C.double().contiguous()), 1.0, length).unfolded()

    def system(self, dt_scale: float | Tensor = 1.0) -> LowRankSystem:
        """The discrete system; see `SISOLayer.system`."""
        if isinstance(dt_scale, Tensor) and dt_scale.device.type == "cpu" and bool((dt_scale == 0).any()):
            raise UsageError("S4 takes no dt_scale of 0: its low-rank form divides by the step. Drop such samples.")
        C = torch.view_as_complex(self.C.double())
        if self.fold_length is None or (not isinstance(dt_scale, Tensor) and dt_scale == 1.0):
            return self._system_of(C, dt_scale, self.fold_length)
        # C was folded at dt_scale 1, so it is unfolded with that step.
        return self._system_of(self._system_of(C, 1.0, self.fold_length).unfolded(), dt_scale, None)

    def _system_of(self, C: Tensor, dt_scale: float | Tensor, fold_length: int | None) -> LowRankSystem:
        dt = (self.dt * dt_scale).flatten()
        # If each sample has its own step there are B H systems.
        repeats, samples = len(dt) // len(self.A_real), len(dt) // self.d_model
        Lambda = torch.complex(-torch.exp(self.A_real.double()), -self.A_imag.double())
        P = torch.view_as_complex(self.P.double()).repeat(1, repeats, 1)
        return LowRankSystem(
            Lambda=Lambda.repeat(repeats, 1),
            B=torch.view_as_complex(self.B.double()).repeat(repeats, 1),
            P=P,
            Q=P if self.Q is None else torch.view_as_complex(self.Q.double()).repeat(1, repeats, 1),
            C=C.repeat(1, samples, 1) if samples > 1 else C,
            dt=dt,
            dtype=self.D.dtype.to_complex(),
            fold_length=fold_length,
            backend=self._backend,
        )

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        return (
            f"d_model={self.d_model}, n_modes={self.C.shape[2]}, n_ssm={self.B.shape[0]}, rank={self.P.shape[0]}, "
            f"bidirectional={self.bidirectional}, channels={self.channels}, fold_length={self.fold_length}, "
            f"backend={self.backend}"
        )
