"""Run a whole model one position at a time, with the state of every layer and of the pooling.

At every position the output equals `SequenceModel.forward` on the prefix: pool="mean" uses a running sum, "last" the
newest features. A task with an output per position returns that of the newest position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UsageError
from .base import valid_mask
from .blocks.norm import BatchNorm

if TYPE_CHECKING:
    from .backbone import SequenceModel


class ModelState(NamedTuple):
    """State of a model: position (B,) int64, the number of inputs so far; layers: the state of each layer; total: the
    sum (B, H) of the features so far, in at least float32, for mean pooling, else None."""

    position: Tensor
    layers: tuple[Any, ...]
    total: Tensor | None


def initial_state(model: SequenceModel, batch_size: int) -> ModelState:
    """The zero state of a model.

    Raises:
        UsageError: the layers carry no state.
    """
    layers = tuple(block.layer.initial_state(batch_size) for block in model.blocks)
    return start(model, next(model.parameters()).new_empty(batch_size, 0))._replace(layers=layers)


def start(model: SequenceModel, like: Tensor) -> ModelState:
    """The zero state for the samples of `like` (B, ...), without the states of the layers."""
    position = torch.zeros(len(like), dtype=torch.int64, device=like.device)
    pools = model.pool == "mean" and not model.per_position
    total = like.new_zeros(len(like), model.d_model, dtype=_wide(like)) if pools else None
    return ModelState(position, (), total)


def step(model: SequenceModel, inputs_t: Tensor, state: ModelState, dt_scale: float | Tensor) -> tuple[Tensor, Any]:
    """See `SequenceModel.step`."""
    _check(model, inputs_t, state)
    x = model.encoder(inputs_t[:, None], state.position)[:, 0]
    layers = []
    for block, layer_state in zip(model.blocks, state.layers, strict=True):
        x, layer_state = block.step(x, layer_state, dt_scale)
        layers.append(layer_state)
    if model.final_norm is not None:
        x = model.final_norm(x[:, None])[:, 0]
    state = advanced(state, x[:, None], None, layers)
    return model.head(pooled(x, state)), state


def advanced(state: ModelState, x: Tensor, lengths: Tensor | None, layers: list[Any]) -> ModelState:
    """The state after features x (B, L, H), of which `lengths` (B,) are valid, and the layers' new states."""
    total = state.total
    if total is not None:
        # where, not a product: padded positions may hold NaN.
        valid = x if lengths is None else torch.where(valid_mask(lengths, x.shape[1])[..., None], x, 0.0)
        total = total + valid.to(total.dtype).sum(1)
    return ModelState(state.position + (x.shape[1] if lengths is None else lengths), tuple(layers), total)


def pooled(x_t: Tensor, state: ModelState) -> Tensor:
    """The pooled features (B, H) after the newest features x_t (B, H), which `state` already includes."""
    if state.total is None:
        return x_t
    return (state.total / state.position[:, None]).to(x_t.dtype)


def _check(model: SequenceModel, inputs_t: Any, state: Any) -> None:
    """Refuse inputs and states that a step cannot take."""
    if not model.causal:
        # Raises, with the layer's reason.
        model.blocks[0].layer.initial_state(0)
    if model.training and any(isinstance(module, BatchNorm) for module in model.modules()):
        raise UsageError(
            "A model with batch norm cannot be stepped in training mode: its statistics would be those of single "
            "positions. Call model.eval() first."
        )
    if not isinstance(state, ModelState):
        raise UsageError(
            f"The model's step takes the ModelState that initial_state, features or the last step returned, got "
            f"{type(state).__name__}. Start with model.initial_state(batch_size)."
        )
    # Not len(), which torch.export would make a constant.
    batch, channels = state.position.shape[0], model.encoder.d_input
    shape = (batch,) if channels is None else (batch, channels)
    kind = "token ids" if channels is None else "real values"
    if not isinstance(inputs_t, Tensor) or tuple(inputs_t.shape) != shape:
        given = tuple(inputs_t.shape) if isinstance(inputs_t, Tensor) else type(inputs_t).__name__
        raise UsageError(
            f"The model's step takes {kind} of shape {shape}, one position of each of the state's {batch} samples, got "
            f"{given}. Sequences go through forward, or through features(inputs, state)."
        )


def _wide(like: Tensor) -> torch.dtype:
    """The dtype of sums over long streams: float64, or float32 on a device without it."""
    return torch.float32 if like.device.type == "mps" else torch.float64
