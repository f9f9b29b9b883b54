"""Weights in the layout of the published S4, S4D and S5 codes, loaded into our layers."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UsageError, did_you_mean
from .s4 import S4
from .s4d import S4D
from .s5 import S5

Arrays = dict[str, Tensor]

# What reference files hold beside the parameters: inputs, outputs and gradients of the published code.
_RECORDS = ("u", "y", "loss", "kernel", "opts")


def load_published(layer: nn.Module, arrays: Mapping[str, Any]) -> nn.Module:
    """Set a layer's parameters from arrays named and shaped as in the published code.

    Complex arrays have a complex dtype or a last axis (re, im). With P modes stored, c channels, d = 2 if the layer is
    bidirectional:

        S4D  inv_dt (H, 1), A_real and A_imag (n_ssm, P), B (1, n_ssm, P, 2), C (d c, H, P, 2), of both directions first
             all channels forward; D (c, H) optional
        S4   the same and P (rank, n_ssm, P, 2); l_kernel optional: above 0, C is folded at that length
        S5   Lambda_re, Lambda_im (P,), log_step (P, 1), B (P, H, 2), D (H,); C (H, P, 2), or C1 and C2 forward and
             backward (H, P, 2), or C (H, 2 P, 2) with the two side by side

    Axes of size 1 may be absent. Meaning: Lambda = -exp(A_real) - i A_imag, dt = exp(inv_dt) or softplus(inv_dt), as
    the layer was built. The records of a reference file (u, y, loss, kernel, grad_*) are passed over; its `opts`, a
    mapping or its printed form, are compared with the layer's options.

    Args:
        layer: an S4, S4D or S5.
        arrays: name -> array, tensor or nested list of finite numbers. An `.npz` of several cases has to be narrowed
            to one first.
    Returns:
        The same layer.
    Raises:
        UsageError: another kind of layer; a name that is missing or unknown; what holds no numbers, or some that are
            not finite in the layer's precision; a shape, length or option that does not fit. Nothing has been changed
            then.
    """
    for kind, convert in _CONVERTERS.items():  # noqa: B007 (used after the loop)
        if isinstance(layer, kind):
            break
    else:
        raise UsageError(
            f"load_published knows the layouts of S4, S4D and S5, not of {type(layer).__name__}. "
            f"For a whole model, load each of its layers."
        )
    if not isinstance(arrays, Mapping):
        raise UsageError(f"load_published takes a mapping from name to array, got {type(arrays).__name__}.")
    _check_options(layer, arrays.get("opts"))
    given = {
        str(name): _as_real(name, value)
        for name, value in arrays.items()
        if name not in _RECORDS and not str(name).startswith("grad_")
    }
    convert(layer, given)
    return layer


def _load_s4d(layer: S4D, given: Arrays) -> None:
    _check_names(given, required=("inv_dt", "A_real", "A_imag", "B", "C"), optional=("D",))
    _assign(layer, given)


def _load_s4(layer: S4, given: Arrays) -> None:
    _check_names(given, required=("inv_dt", "A_real", "A_imag", "B", "P", "C"), optional=("D", "l_kernel"))
    if layer.Q is not None:
        raise UsageError(
            "The published S4 has Q = P, but this layer was built with a Q of its own (init of an unsymmetric "
            "measure). Build it with init='legs', 'legt' or 'fourier'."
        )
    length = _as_length(given.pop("l_kernel", torch.tensor(0)))
    C = _shaped(layer, "C", given["C"], layer.C)
    _assign(layer, given)
    if length > 0 and length != layer.fold_length:
        C = torch.view_as_real(layer.unfold(C, length).resolve_conj())
        length = 0
    if length == 0:
        layer.fold(C)


def _load_s5(layer: S5, given: Arrays) -> None:
    outputs = ("C1", "C2") if "C1" in given or "C2" in given else ("C",)
    _check_names(given, required=("Lambda_re", "Lambda_im", "log_step", "B", "D", *outputs), optional=())
    given["log_dt"] = given.pop("log_step")
    if outputs == ("C1", "C2"):
        given["C"], given["C_backward"] = given.pop("C1"), given.pop("C2")
    elif layer.bidirectional and given["C"].dim() == 3:
        given["C"], given["C_backward"] = given["C"].chunk(2, dim=1)
    if ("C_backward" in given) != layer.bidirectional:
        raise UsageError(
            f"The arrays are of a layer with bidirectional={'C_backward' in given}, this one has "
            f"bidirectional={layer.bidirectional}."
        )
    _assign(layer, given)


_CONVERTERS: dict[type[nn.Module], Callable[[Any, Arrays], None]] = {S4D: _load_s4d, S4: _load_s4, S5: _load_s5}


def _as_real(name: str, value: Any) -> Tensor:
    """The array in float64, a complex one with its last axis (re, im)."""
    remedy = "Give real or complex numbers: np.asarray(value, dtype=float), tensor.dequantize()."
    if isinstance(value, Tensor) and (value.is_quantized or value.layout != torch.strided or value.is_meta):
        kind = "a tensor without memory" if value.is_meta else f"{value.layout} of {value.dtype}"
        raise UsageError(f"'{name}' is not a dense array of numbers, but {kind}. {remedy}")
    try:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except Exception as error:
        # numpy asks foreign objects for their contents, which may fail in any way.
        raise UsageError(f"'{name}' is not an array of numbers: {error}. {remedy}") from error
    if tensor.dtype == torch.bool:
        raise UsageError(f"'{name}' is not an array of numbers, but of {tensor.dtype}. {remedy}")
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.to(torch.float64)


def _as_length(value: Tensor) -> int:
    if value.numel() != 1 or not 0 <= value.item() < math.inf or value.item() % 1 != 0:
        raise UsageError(f"'l_kernel' is a length, one whole number of at least 0, got {value.tolist()}.")
    return int(value.item())


def _check_names(given: Arrays, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    known = (*required, *optional)
    for name in given:
        if name not in known:
            raise UsageError(f"Unknown array '{name}'. Known: {', '.join(known)}.{did_you_mean(name, known)}")
    missing = [name for name in required if name not in given]
    if missing:
        raise UsageError(f"Missing {', '.join(missing)}: needed are {', '.join(required)}, given {', '.join(given)}.")


def _assign(layer: nn.Module, given: Arrays) -> None:
    """Copy every array into the parameter of its name, after all shapes have been checked."""
    parameters = dict(layer.named_parameters())
    shaped = {name: _shaped(layer, name, value, parameters[name]) for name, value in given.items()}
    with torch.no_grad():
        for name, value in shaped.items():
            parameters[name].copy_(value)


def _shaped(layer: nn.Module, name: str, value: Tensor, parameter: Tensor) -> Tensor:
    """`value`, finite, in the shape of the parameter, which may differ from its own only by axes of size 1."""
    shape = parameter.shape
    if [size for size in value.shape if size != 1] != [size for size in shape if size != 1]:
        raise UsageError(
            f"'{name}' has shape {tuple(value.shape)}, but this layer's has {tuple(shape)}: {layer}. "
            f"Build the layer with the sizes of the arrays."
        )
    if not value.to(parameter.dtype).isfinite().all():
        raise UsageError(f"'{name}' holds numbers that are not finite in {parameter.dtype}.")
    return value.reshape(shape)


def _check_options(layer: nn.Module, opts: Any) -> None:
    """Refuse arrays whose recorded options would give them another meaning in this layer."""
    if opts is None:
        return
    if not isinstance(opts, Mapping):
        opts = _parsed(str(opts))
    ours = {
        "dt_transform": getattr(layer, "dt_transform", None),
        "disc": getattr(layer, "discretization", None),
        "real_transform": "exp",
    }
    for name, value in ours.items():
        if value is not None and opts.get(name, value) != value:
            raise UsageError(
                f"The arrays were made with {name}='{opts[name]}', this layer has '{value}'. "
                f"Build it with the same option, or the numbers mean something else."
            )


def _parsed(opts: str) -> Mapping[str, Any]:
    try:
        found = ast.literal_eval(opts)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise UsageError(f"'opts' is a mapping of options or its printed form, {{'disc': 'zoh'}}, got {opts!r}.")
    return found
