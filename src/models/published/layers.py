"""Conversion of the weights of one layer of a published code."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...errors import UsageError
from ..s4 import S4
from ..s4d import S4D
from ..s5 import S5
from .arrays import Part, Parts, as_real, check_names, shaped

# Our parameter name -> the published array it is set from.
Origins = dict[str, Part]

# Entries of reference files beside the parameters: inputs, outputs and options of the published code.
_RECORDS = ("u", "y", "loss", "kernel", "opts")
# Modules inside the published layers that hold the kernel's parameters.
_INNER = ("layer.", "kernel.", "seq.")


def load_layer(layer: nn.Module, arrays: Mapping[str, Any], where: str = "") -> Origins:
    """Set the parameters of one layer, and return the array used for each.

    Args:
        layer: an S4, S4D or S5. If this raises, some parameters may already be set.
        arrays: name in the layer -> array; records of a reference file are ignored.
        where: prefix of the names in the model, for messages and origins.
    """
    for kind, convert in _CONVERTERS.items():  # noqa: B007 (used after the loop)
        if isinstance(layer, kind):
            break
    else:
        raise UsageError(
            f"load_published knows the layouts of S4, S4D and S5, not of {type(layer).__name__}. Pass a layer or a "
            f"SequenceModel of one of these."
        )
    check_options(layer, arrays.get("opts"))
    parts: Parts = {}
    for name, value in arrays.items():
        if name in _RECORDS or name.startswith("grad_"):
            continue
        inner = name
        for prefix in _INNER:
            inner = inner.removeprefix(prefix)
        if inner in parts:
            raise UsageError(
                f"'{where}{name}' and '{parts[inner].source}' are both {inner} of one layer. Pass the arrays of one "
                f"layer only."
            )
        parts[inner] = Part(as_real(where + name, value), where + name)
    return convert(layer, _translated(parts, layer), where)


def _translated(parts: Parts, layer: nn.Module) -> Parts:
    """Convert the arrays of other codes to the names and conventions of the S4 and S5 codes.

    The minimal S4D (one file of the S4 code) has Lambda = -exp(log_A_real) + i A_imag and no B, so B = 1. The S5 in
    PyTorch has complex arrays, and never doubles the real part of the output; for a layer with conj_sym C is halved.
    """
    parts = dict(parts)
    if "log_A_real" in parts:
        renamed = {"log_dt": "inv_dt", "log_A_real": "A_real"}
        parts = {renamed.get(name, name): part for name, part in parts.items()}
        if "A_imag" in parts:
            imag = parts["A_imag"]
            parts["A_imag"] = imag._replace(value=-imag.value, note="negated")
            ones = torch.stack((torch.ones_like(imag.value), torch.zeros_like(imag.value)), dim=-1)
            parts.setdefault("B", Part(ones, "(1, which that code leaves out)"))
    elif "Lambda" in parts:
        Lambda = parts.pop("Lambda")
        if Lambda.value.dim() != 2 or Lambda.value.shape[-1] != 2:
            raise UsageError(
                f"'{Lambda.source}' holds complex eigenvalues, one a mode, got shape {tuple(Lambda.value.shape)}. Pass "
                f"the state dict as it was saved."
            )
        for axis, name in enumerate(("Lambda_re", "Lambda_im")):
            parts[name] = Lambda._replace(value=Lambda.value[..., axis], note=("real part", "imaginary part")[axis])
        if "C" in parts and getattr(layer, "conj_sym", False):
            parts["C"] = parts["C"]._replace(value=parts["C"].value / 2, note="halved")
    return parts


def _load_s4d(layer: S4D, given: Parts, where: str) -> Origins:
    check_names(given, required=("inv_dt", "A_real", "A_imag", "B", "C"), optional=("D",), where=where)
    return _assign(layer, given)


def _load_s4(layer: S4, given: Parts, where: str) -> Origins:
    required = ("inv_dt", "A_real", "A_imag", "B", "P", "C")
    check_names(given, required=required, optional=("D", "l_kernel"), where=where)
    if layer.Q is not None:
        raise UsageError(
            "The published S4 has Q = P, but this layer was built with a Q of its own (init of an unsymmetric "
            "measure). Build it with init='legs', 'legt' or 'fourier'."
        )
    length = _as_length(given.pop("l_kernel", Part(torch.tensor(0), "l_kernel")))
    C = shaped(layer, given["C"], "C", layer.C)
    origins = _assign(layer, given)
    if length > 0 and length != layer.fold_length:
        C = torch.view_as_real(layer.unfold(C, length).resolve_conj())
        origins["C"] = origins["C"]._replace(note=f"unfolded at {length}")
        length = 0
    if length == 0:
        layer.fold(C)
    return origins


def _load_s5(layer: S5, given: Parts, where: str) -> Origins:
    outputs = ("C1", "C2") if "C1" in given or "C2" in given else ("C",)
    required = ("Lambda_re", "Lambda_im", "log_step", "B", "D", *outputs)
    check_names(given, required=required, optional=(), where=where)
    given["log_dt"] = given.pop("log_step")
    if outputs == ("C1", "C2"):
        given["C"], given["C_backward"] = given.pop("C1"), given.pop("C2")
    elif layer.bidirectional and given["C"].value.dim() == 3:
        both = given["C"]
        for name, half in zip(("C", "C_backward"), both.value.chunk(2, dim=1), strict=True):
            given[name] = both._replace(value=half, note=f"{name} of both{both.note and ', '}{both.note}")
    if ("C_backward" in given) != layer.bidirectional:
        raise UsageError(
            f"The arrays are of a layer with bidirectional={'C_backward' in given}, this one has "
            f"bidirectional={layer.bidirectional}. Build it as they are."
        )
    return _assign(layer, given)


_CONVERTERS: dict[type[nn.Module], Callable[[Any, Parts, str], Origins]] = {
    S4D: _load_s4d,
    S4: _load_s4,
    S5: _load_s5,
}


def _as_length(part: Part) -> int:
    value = part.value
    if value.numel() != 1 or not 0 <= value.item() < math.inf or value.item() % 1 != 0:
        raise UsageError(f"'{part.source}' is a length, one whole number of at least 0, got {value.tolist()}.")
    return int(value.item())


def _assign(layer: nn.Module, given: Parts) -> Origins:
    """Copy every array into the parameter of the same name."""
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        for name, part in given.items():
            parameters[name].copy_(shaped(layer, part, name, parameters[name]))
    return dict(given)


def check_options(layer: nn.Module, opts: Any) -> None:
    """Refuse arrays whose recorded options differ from those of the layer."""
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
                f"Build it with the same option; otherwise the arrays give another function."
            )


def _parsed(opts: str) -> Mapping[str, Any]:
    try:
        found = ast.literal_eval(opts)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise UsageError(f"'opts' is a mapping of options or its printed form, {{'disc': 'zoh'}}, got {opts!r}.")
    return found
