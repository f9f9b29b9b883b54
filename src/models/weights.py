"""Checks of weights from a file before they are loaded: that they match the model that the file describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError, did_you_mean

# Options and facts whose value is the size of an axis of some parameter, or the number of blocks.
_ROWS = (
    *("d_model", "n_layers", "d_ff", "d_state", "blocks", "n_ssm", "n_alphas", "n_heads", "channels"),
    *("n_classes", "n_tokens", "d_input", "d_target"),
)


def check_sizes_named(
    path: str | Path, node: Mapping[str, Any], facts: Mapping[str, Any], weights: Mapping[str, Any]
) -> None:
    """Refuse a file whose model is far larger than its weights: building it could take hours and all memory."""
    stored = sum(value.numel() for value in weights.values() if isinstance(value, Tensor))
    layer = node["layer"] if isinstance(node.get("layer"), Mapping) else {}
    for key in _ROWS:
        for value in (node.get(key), layer.get(key), facts.get(key)):
            if isinstance(value, int) and value > stored:
                raise UsageError(
                    f"{str(path)!r} describes a model with {key}={value} but holds only {stored} numbers, so it is "
                    f"incomplete or wrong. Take a complete checkpoint (best.ckpt, last.ckpt) or folder."
                )


def check_weights(path: str | Path, found: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse weights that do not match the model in names, shapes and kinds of numbers, or are not finite.

    Raises:
        UsageError: the message names the first mismatch.
    """
    needed = model.state_dict()
    told = f"The weights in {str(path)!r} do not fit the model that it describes"
    remedy = "Load it with the version of this program (and the layers of your own) that wrote it."
    for kind, names in (("missing", needed.keys() - found.keys()), ("unknown", found.keys() - needed.keys())):
        if names:
            first = sorted(names)[0]
            near = did_you_mean(first, needed.keys() - found.keys() if kind == "unknown" else found.keys())
            raise UsageError(f"{told}: {len(names)} {kind}, {first!r} first.{near} {remedy}")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"{told}: {name!r} is a {type(value).__name__}, not a tensor. {remedy}")
        if value.shape != needed[name].shape:
            shapes = f"{tuple(value.shape)}, and the model's {tuple(needed[name].shape)}"
            raise UsageError(f"{told}: {name!r} has shape {shapes}. {remedy}")
        same_kind = (value.is_complex(), value.is_floating_point()) == (
            needed[name].is_complex(),
            needed[name].is_floating_point(),
        )
        if not same_kind or value.layout != torch.strided:
            raise UsageError(f"{told}: {name!r} is {value.dtype}, {value.layout}. {remedy}")
    check_finite(str(path), found)


def check_finite(path: str, weights: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinite weights."""
    for name, value in weights.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            count = int((~value.isfinite()).sum())
            raise UsageError(
                f"{path!r} holds weights that are not finite: {count} of {value.numel()} numbers of {name!r} are "
                f"NaN or infinite. The run diverged there; take an earlier checkpoint, best.ckpt."
            )
