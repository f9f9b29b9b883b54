"""Weights as they come, nested or flat, from numpy, JAX or torch, as real float64 tensors that know their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, did_you_mean


class Part(NamedTuple):
    """One array: its numbers, float64 with a last axis (re, im) if complex; its name there; what was done to it."""

    value: Tensor
    source: str
    note: str = ""


Parts = dict[str, Part]


def flatten(weights: Any) -> dict[str, Any]:
    """Name -> array of a nested mapping, names joined by "/"; a checkpoint's `state_dict` is taken out of it.

    Raises:
        UsageError: no mapping, or no array in it.
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
    """The array in float64, a complex one with its last axis (re, im).

    Raises:
        UsageError: it is no dense array of numbers.
    """
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


def check_names(
    given: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...], where: str = ""
) -> None:
    """Refuse names that are missing or unknown; `where` tells which layer of a model the names belong to."""
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
    """The numbers in the shape of the parameter `name` of `owner`, from which theirs may differ by axes of size 1.

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
    """The first names and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
