"""From the parameters of a diagonal layer to its discrete system."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops.discretize import complex_exp, discretize
from ..siso import DiagonalSystem, dss_input

DISCRETIZATIONS = ("zoh", "bilinear", "dss")


def diagonal_system(
    Lambda: Tensor,
    B: Tensor,
    C: Tensor,
    dt: Tensor,
    discretization: str,
    l_max: int | None = None,
    backend: str = "auto",
) -> DiagonalSystem:
    """Discretise; the n_ssm copies of the modes are repeated over the features, copy h mod n_ssm for feature h.

    Args:
        Lambda: (n_ssm, P) complex128, Re < 0.
        B: (n_ssm, P) complex.
        C: (directions, H, P) complex; its precision becomes the system's.
        dt: (H,) float64.
        discretization: "zoh", "bilinear" or "dss", the last over l_max positions. As published, "dss" takes the real
            part of the sum over the modes once, the others twice.
        l_max, backend: see `S4D`.
    """
    repeats = len(dt) // len(Lambda)
    Lambda, B = Lambda.repeat(repeats, 1), B.repeat(repeats, 1)
    if discretization == "dss":
        z = Lambda * dt[:, None]
        Lambda_bar, gamma = complex_exp(z), 0.5 * dss_input(Lambda, z, l_max)
    else:
        Lambda_bar, gamma = discretize(Lambda, dt[:, None], discretization)
    return DiagonalSystem(Lambda_bar, gamma * B, C, backend)
