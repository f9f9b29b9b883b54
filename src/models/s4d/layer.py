"""The S4D layer: the SSM and its feedthrough; activation, dropout and mixing belong to the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import UsageError, unknown
from ...ops.vandermonde import check_backend
from ...registry import register_layer
from ..siso import DiagonalSystem, SISOLayer, check_copies, initial_steps, step_size
from ..ssm import real_parameter
from ..ssm_init import check_sizes, complex_normal
from .init import initial_modes
from .system import DISCRETIZATIONS, diagonal_system


@register_layer("s4d")
class S4D(SISOLayer):
    """S4D: for each feature x' = Lambda x + B u, y = 2 Re(C x) + D u with a diagonal Lambda and a step of its own.

    Lambda = -exp(A_real) - i A_imag, so every mode decays, whatever training does. dt = exp(inv_dt) or
    softplus(inv_dt). Kernel, with z = dt Lambda (C B below is the elementwise product):

        zoh       K_l = 2 Re sum_n C B (exp(z) - 1) / Lambda  exp(z l)
        bilinear  K_l = 2 Re sum_n C B dt / (1 - z/2)  ((1 + z/2) / (1 - z/2))^l
        dss       K_l = 2 Re sum_n C B / Lambda  softmax_l(z l), l = 0 .. l_max - 1

    Args:
        d_model: H, features in and out.
        d_state: N, order of the real system; N/2 complex modes are stored where the init makes pairs.
        init: "lin", "inv", "inv2", "quad", "legs", "real", "rand" as published, or a registered measure by name or as
            {"name": ..., options}; see `initial_modes`.
        method: "normal" or "direct", how a measure is diagonalised.
        n_ssm: independent copies of (Lambda, B), a divisor of H; feature h uses copy h mod n_ssm. None: H copies.
        bidirectional: add a kernel for the future, with a C of its own.
        discretization: "zoh", "bilinear" or "dss".
        dt_transform: "exp" (the papers) or "softplus" (the published code since version 4).
        dt_min, dt_max: range of the initial steps, log-uniform, in units of one sample.
        l_max: only for "dss": the number of positions that its softmax runs over.
        backend: of `ops.vandermonde`: "auto", "torch" or "keops".
    Parameters: inv_dt (H,), A_real and A_imag (n_ssm, P), B (n_ssm, P, 2), C (directions, H, P, 2), D (H,).
    Raises:
        UsageError: sizes that do not divide, unknown names, an impossible step range.
    Source: arXiv 2206.11893; parametrisation and initial distributions as in the published code.
    """

    roles: ClassVar[dict[str, str]] = {
        **SISOLayer.roles,
        "inv_dt": "dt",
        "A_real": "A",
        "A_imag": "A",
        "B": "B",
        "C": "C",
    }

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        init: str | Mapping[str, Any] = "lin",
        method: str = "normal",
        n_ssm: int | None = None,
        bidirectional: bool = False,
        discretization: str = "zoh",
        dt_transform: str = "exp",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        l_max: int | None = None,
        backend: str = "auto",
    ):
        check_sizes("S4D", d_model=d_model, d_state=d_state)
        n_ssm = check_copies("S4D", d_model, n_ssm)
        if discretization not in DISCRETIZATIONS:
            raise unknown("discretization", discretization, DISCRETIZATIONS)
        if discretization == "dss" and l_max is None:
            raise UsageError(
                "discretization='dss' normalises its kernel over l_max positions, so the layer has to be told: give "
                "l_max, the longest sequence of the data. zoh and bilinear do not need it."
            )
        check_backend(backend)
        Lambda, B = initial_modes(init, d_state, method)
        super().__init__(d_model, bidirectional, state_shape=(d_model, len(Lambda)), complex_state=True)
        self.discretization = discretization
        self.dt_transform = dt_transform
        self.l_max = l_max
        self.backend = backend
        self.inv_dt: nn.Parameter = real_parameter(initial_steps(d_model, dt_min, dt_max, dt_transform))
        self.A_real: nn.Parameter = real_parameter(torch.log(-Lambda.real).repeat(n_ssm, 1))
        self.A_imag: nn.Parameter = real_parameter(-Lambda.imag.repeat(n_ssm, 1))
        self.B: nn.Parameter = real_parameter(B.repeat(n_ssm, 1))
        self.C: nn.Parameter = real_parameter(complex_normal((2 if bidirectional else 1, d_model, len(Lambda))))

    @property
    def Lambda(self) -> Tensor:
        """(n_ssm, P) complex128 eigenvalues."""
        return torch.complex(-torch.exp(self.A_real.double()), -self.A_imag.double())

    @property
    def dt(self) -> Tensor:
        """(H,) float64 steps."""
        return step_size(self.inv_dt, self.dt_transform)

    def system(self, dt_scale: float | Tensor = 1.0) -> DiagonalSystem:
        """The discrete diagonal system; see `SISOLayer.system`."""
        return diagonal_system(
            Lambda=self.Lambda,
            B=torch.view_as_complex(self.B),
            C=torch.view_as_complex(self.C),
            dt=self.dt * dt_scale,
            discretization=self.discretization,
            l_max=self.l_max,
            backend=self.backend,
        )

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        return (
            f"d_model={self.d_model}, n_modes={self.C.shape[2]}, n_ssm={self.B.shape[0]}, "
            f"bidirectional={self.bidirectional}, discretization={self.discretization}"
        )
