"""Parameters of the SISO layers: steps, lengths kept with the weights, and the softmax normalisation of DSS."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.discretize import complex_expm1
from ..options import check_choice, check_length
from ..ssm_init import log_steps

DT_TRANSFORMS = ("exp", "softplus")

# Value of the published code; keeps the reciprocal finite where exp(z l_max) = 1.
_DSS_EPSILON = 1e-7


def initial_steps(d_model: int, dt_min: float, dt_max: float, transform: str) -> Tensor:
    """(H,) float64 parameters whose `step_size` is log-uniform between dt_min and dt_max.

    Raises:
        UsageError: unknown transform, or not 0 < dt_min <= dt_max.
    """
    check_choice("dt_transform", transform, DT_TRANSFORMS)
    log_dt = log_steps(d_model, dt_min, dt_max)
    if transform == "exp":
        return log_dt
    # The inverse of softplus, log(exp(dt) - 1), without cancellation for small dt.
    return torch.log(torch.expm1(torch.exp(log_dt)))


def step_size(inv_dt: Tensor, transform: str) -> Tensor:
    """dt > 0 in float64: exp(inv_dt) or softplus(inv_dt) = log(1 + exp(inv_dt))."""
    inv_dt = inv_dt.double()
    return torch.exp(inv_dt) if transform == "exp" else F.softplus(inv_dt)


def keep_length(layer: nn.Module, name: str, length: int | None, entry: str) -> None:
    """Set the attribute `name` of a layer to a length and save it in the state dict as `entry` (0 for None).

    For a number of positions on which the function of the weights depends, such as the length of a softmax. Loading
    weights sets the attribute, whatever the layer was built with.

    Raises:
        UsageError: a length that is not an integer >= 1.
    """
    if length is not None:
        check_length(type(layer).__name__, **{name: length})
    setattr(layer, name, length)
    layer.register_buffer(entry, torch.tensor(length or 0, device="cpu").to(torch.get_default_device()))
    layer.register_load_state_dict_post_hook(functools.partial(_read_length, name=name, entry=entry))
    layer.register_state_dict_pre_hook(functools.partial(_write_length, name=name, entry=entry))


def _write_length(layer: nn.Module, _prefix: str, _keep_vars: bool, *, name: str, entry: str) -> None:
    layer.get_buffer(entry).fill_(getattr(layer, name) or 0)


def _read_length(layer: nn.Module, _: object, *, name: str, entry: str) -> None:
    kept = layer.get_buffer(entry)
    if not kept.is_meta:
        setattr(layer, name, int(kept) or None)


def dss_input(Lambda: Tensor, z: Tensor, l_max: int) -> Tensor:
    """Input weight of a mode for which its kernel is softmax_l(z l) / Lambda over l = 0 .. l_max - 1.

    With s = -z for a growing mode (Re z > 0) and s = z otherwise, the weight is

        (exp(s) - 1) reciprocal(Lambda (exp(s l_max) - 1)),   reciprocal(x) = conj(x) / (|x|^2 + 1e-7),

    the factor of exp(z l) for a decaying mode and of exp(z (l - l_max + 1)) for a growing one.

    Args:
        Lambda: (H, P) complex.
        z: (H, P) complex, Lambda dt.
        l_max: number of positions.
    Source: arXiv 2203.14343, proposition 1 (b) and section 4; the constant of the published code.
    """
    s = torch.where(z.real > 0, -z, z)
    x = Lambda * complex_expm1(s * l_max)
    return complex_expm1(s) * x.conj() / (x.real.square() + x.imag.square() + _DSS_EPSILON)
