"""Conversion of weights, nested or flat, from numpy, JAX or torch, to real float64 tensors with their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, did_you_mean


class Part(NamedTuple):
    """One array: its float64 values, with a last axis (re, im) if complex; its published name; a note on changes."""

    value: Tensor
    source: str
    note: str = ""


Parts = dict[str, Part]


def flatten(weights: Any) -> dict[str, Any]:
    """Flatten a nested mapping to name -> array, with names joined by "/"; of a checkpoint only its `state_dict`.

    Raises:
        UsageError: not a mapping, or nested more than 50 deep.
    """
    if not isinstance(weights, Mapping):
        raise UsageError(
            f"load_published takes a mapping from name to array, got {type(weights).__name__}. For a file: "
            f"torch.load(path, weights_only=True), dict(np.load(path))."
        )
    if isinstance(weights.get("state_dict"), Mapping):
        weights = weights["state_dict"]
    flat: dict[str, Any] = {}
    pending: list[tuple[str, Any, int]] = [("", weights, 0)]
    while pending:
        prefix, node, depth = pending.pop()
        if depth > 50:
            raise UsageError("The weights are nested over 50 deep, as no model's are. Pass the tree of one model.")
        for name, value in node.items():
            if isinstance(value, Mapping) and value:
                pending.append((f"{prefix}{name}/", value, depth + 1))
            else:
                flat[f"{prefix}{name}"] = value
    return flat


def as_real(name: str, value: Any) -> Tensor:
    """Convert an array to float64; a complex one gets a last axis (re, im).

    Raises:
        UsageError: not a dense array of numbers.
    """
    remedy = "Give real or complex numbers: np.asarray(value, dtype=float), tensor.dequantize()."
    if isinstance(value, Tensor) and (value.is_quantized or value.layout != torch.strided or value.is_meta):
        kind = "a tensor without memory" if value.is_meta else f"{value.layout} of {value.dtype}"
        raise UsageError(f"'{name}' is not a dense array of numbers, but {kind}. {remedy}")
    try:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except Exception as error:
        # numpy calls methods of foreign objects, which may raise any exception.
        raise UsageError(f"'{name}' is not an array of numbers: {error}. {remedy}") from error
    if tensor.dtype == torch.bool:
        raise UsageError(f"'{name}' is not an array of numbers, but of {tensor.dtype}. {remedy}")
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.to(torch.float64)


def check_names(
    given: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...], where: str = ""
) -> None:
    """Refuse missing or unknown names; `where` is the prefix of the layer's names in messages."""
    known = (*required, *optional)
    for name in given:
        if name not in known:
            raise UsageError(f"Unknown array '{where}{name}'. Known: {', '.join(known)}.{did_you_mean(name, known)}")
    missing = [name for name in required if name not in given]
    if missing:
        raise UsageError(
            f"Missing {', '.join(where + name for name in missing)}: needed are {', '.join(required)}, given "
            f"{', '.join(given) or 'none'}."
        )


def shaped(owner: object, part: Part, name: str, target: Tensor) -> Tensor:
    """The array reshaped like the parameter `name` of `owner`; the shapes may differ by axes of size 1.

    Raises:
        UsageError: another shape, or numbers that are not finite in the parameter's precision.
    """
    if [size for size in part.value.shape if size != 1] != [size for size in target.shape if size != 1]:
        raise UsageError(
            f"'{part.source}' has shape {tuple(part.value.shape)}, but {name} of this one has {tuple(target.shape)}: "
            f"{owner}. Build it with the sizes of the arrays."
        )
    if not part.value.to(target.dtype).isfinite().all():
        raise UsageError(
            f"'{part.source}' holds numbers that are not finite in {target.dtype}. Take weights of a run that did not "
            f"diverge."
        )
    return part.value.reshape(target.shape)


def listed(names: Iterable[str], limit: int = 6) -> str:
    """The first names as text, and the number of the remaining ones."""
    names = sorted(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
