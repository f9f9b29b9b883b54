"""The diagonal SISO layer that S4D and the convolution form of FRACTAL share; only the initial modes differ."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...ops.discretize import complex_exp, discretize
from ...ops.runtime.backends import check
from ..options import check_choice, check_parameter
from ..ssm_init import complex_normal
from ..stateful import real_parameter
from .layer import SISOLayer
from .parameters import dss_input, keep_length, step_size
from .system import DiagonalSystem

DISCRETIZATIONS = ("zoh", "bilinear", "dss")


class DiagonalSISO(SISOLayer):
    """For each feature x' = Lambda x + B u, y = 2 Re(C x) + D u with a diagonal Lambda and a step of its own.

    Lambda = -exp(A_real) - i A_imag, so every mode decays throughout training. dt = exp(inv_dt) or softplus(inv_dt).
    Kernel, with z = dt Lambda (C B below is the elementwise product):

        zoh       K_l = 2 Re sum_n C B (exp(z) - 1) / Lambda  exp(z l)
        bilinear  K_l = 2 Re sum_n C B dt / (1 - z/2)  ((1 + z/2) / (1 - z/2))^l
        dss       K_l = Re sum_n C B / Lambda  softmax_l(z l),  l = 0 .. l_max - 1    (the real part once)

    dss is zoh with C_dss = 2 C_zoh (exp(z l_max) - 1), up to the regularised reciprocal of `dss_input`. Its source is
    arXiv 2203.14343 (the softmax kernel of DSS), here with S4D's modes.

    Args:
        d_model: H, features in and out.
        Lambda, B: (n_ssm, P) complex128, initial modes; n_ssm divides H, feature h uses row h mod n_ssm.
        bidirectional, backward_lag: add a kernel over future inputs, with a C of its own; see `SISOLayer`.
        channels: c, kernels per feature and direction; see `SISOLayer`.
        discretization: "zoh", "bilinear" or "dss".
        inv_dt: (H,) initial parameters of the steps.
        dt_transform: "exp" or "softplus".
        l_max: only for "dss": the number of positions of its softmax, saved in the state dict.
        backend: of `ops.vandermonde`: "auto", "torch", "triton" or "keops".
    Parameters: inv_dt (H,), A_real and A_imag (n_ssm, P), B (n_ssm, P, 2), C (directions c, H, P, 2), D (H,), or (c, H)
        for c > 1; last axis (re, im).
    Raises:
        UsageError: an unknown discretization or backend, or "dss" without l_max.
    """

    roles: ClassVar[dict[str, str]] = {
        **SISOLayer.roles,
        "inv_dt": "dt",
        "A_real": "A",
        "A_imag": "A",
        "B": "B",
        "C": "C",
    }
    read_in_place: ClassVar[tuple[str, ...]] = ("C", "D")
    options: ClassVar[tuple[str, ...]] = (*SISOLayer.options, "discretization", "dt_transform", "l_max", "backend")

    def __init__(
        self,
        d_model: int,
        Lambda: Tensor,
        B: Tensor,
        *,
        bidirectional: bool,
        discretization: str,
        inv_dt: Tensor,
        dt_transform: str,
        l_max: int | None,
        backend: str,
        channels: int = 1,
        backward_lag: int = 1,
    ):
        check_discretization(discretization, l_max)
        check("vandermonde", backend)
        n_modes = Lambda.shape[1]
        check_parameter(type(self).__name__, d_model=d_model, n_modes=n_modes, channels=channels)
        super().__init__(
            d_model, bidirectional, state_shape=(d_model, n_modes), channels=channels, backward_lag=backward_lag
        )
        self.discretization = discretization
        self.dt_transform = dt_transform
        if discretization == "dss":
            keep_length(self, "l_max", l_max, "softmax_length")
        self.backend = backend
        self.inv_dt: nn.Parameter = real_parameter(inv_dt)
        self.A_real: nn.Parameter = real_parameter(torch.log(-Lambda.real))
        self.A_imag: nn.Parameter = real_parameter(-Lambda.imag)
        self.B: nn.Parameter = real_parameter(B)
        rows = channels * (2 if bidirectional else 1)
        self.C: nn.Parameter = real_parameter(complex_normal((rows, d_model, n_modes)))

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
        Lambda, B = self.Lambda, torch.view_as_complex(self.B)
        copies = self.d_model // len(Lambda)
        Lambda, B = Lambda.repeat(copies, 1), B.repeat(copies, 1)
        dt = (self.dt * dt_scale)[..., None]
        if self.discretization == "dss":
            z = Lambda * dt
            Lambda_bar, gamma = complex_exp(z), 0.5 * dss_input(Lambda, z, self.l_max)
        else:
            Lambda_bar, gamma = discretize(Lambda, dt, self.discretization)
        return DiagonalSystem(Lambda_bar, gamma * B, torch.view_as_complex(self.C), self.backend)

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        return (
            f"d_model={self.d_model}, n_modes={self.C.shape[2]}, n_ssm={self.B.shape[0]}, "
            f"bidirectional={self.bidirectional}, channels={self.channels}, discretization={self.discretization}"
        )


def check_discretization(discretization: str, l_max: int | None) -> None:
    """Refuse an unknown discretisation, and "dss" without l_max.

    Raises:
        UsageError: see above.
    """
    check_choice("discretization", discretization, DISCRETIZATIONS)
    if discretization == "dss" and l_max is None:
        raise UsageError(
            "discretization='dss' normalises its kernel over l_max positions, and l_max is not set. Give the "
            "longest sequence of the data as l_max. zoh and bilinear do not need it."
        )
