"""Initial values of the state space layers: random draws and scales."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .options import check_C_init, check_steps

# Standard deviation of a standard normal truncated at two standard deviations.
_TRUNCATED_STD = 0.87962566103423978


def lecun_normal(shape: tuple[int, ...], fan_in: int) -> Tensor:
    """Float64 draws of variance 1 / fan_in from a normal distribution truncated at two of its standard deviations."""
    std = math.sqrt(1.0 / fan_in) / _TRUNCATED_STD
    values = torch.empty(shape, dtype=torch.float64, device="cpu")
    return torch.nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std)


def complex_normal(shape: tuple[int, ...], variance: float = 1.0) -> Tensor:
    """Complex128 draws with E|z|^2 = variance, half of it in each part."""
    return math.sqrt(variance) * torch.randn(shape, dtype=torch.complex128, device="cpu")


def unit_rms(values: np.ndarray) -> np.ndarray:
    """Scale values to a root-mean-square modulus of 1."""
    return values / np.sqrt(np.mean(np.abs(values) ** 2))


def output_matrix(C_init: str, d_model: int, n_modes: int, order: int, V: Tensor | None = None) -> Tensor:
    """(H, P) complex initial C_tilde by the recipes of S5, with the same mean square with and without V.

    lecun_normal: C V with re and im of C of variance 1 / (H N);  trunc_standard_normal: C V with variance 1 / N;
    complex_normal: E|C_tilde|^2 = 1, V unused.

    Args:
        C_init: one of the three names.
        d_model: H.
        n_modes: P, number of modes stored.
        order: N, real size of the state.
        V: (N, P) complex, orthonormal eigenvectors; None draws C_tilde directly in the eigenbasis.
    Raises:
        UsageError: unknown name.
    Source: S5 (arXiv 2208.04933) and its published code.
    """
    check_C_init(C_init)
    if C_init == "complex_normal":
        return complex_normal((d_model, n_modes))
    fan_in = d_model * order if C_init == "lecun_normal" else order
    columns = n_modes if V is None else order
    C = torch.view_as_complex(lecun_normal((d_model, columns, 2), fan_in))
    return C if V is None else C @ V


def log_steps(n_modes: int, dt_min: float, dt_max: float) -> Tensor:
    """(P,) float64 log dt, uniform between log dt_min and log dt_max, one step a mode.

    Raises:
        UsageError: not numbers, or not 0 < dt_min <= dt_max.
    """
    check_steps(dt_min, dt_max)
    low, high = math.log(dt_min), math.log(dt_max)
    return low + (high - low) * torch.rand(n_modes, dtype=torch.float64, device="cpu")


def feedthrough(d_model: int) -> Tensor:
    """(H,) float64 initial D, standard normal."""
    return torch.randn(d_model, dtype=torch.float64, device="cpu")
