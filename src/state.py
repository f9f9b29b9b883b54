"""Functions that store, select, concatenate and reset the states of a layer or a model, sample by sample.

A state is a tensor, None (no state), or a tuple, list or mapping of states. Every tensor in it has one row per sample,
so the functions here work on the states of all layers and of `SequenceModel`:

    state = model.initial_state(4)
    save_file(to_real(state), "state.safetensors")                       # names -> real tensors
    state = from_real(load_file("state.safetensors"), like=model.initial_state(1))
    state = select(state, [2, 0])                                        # samples 2 and 0
    state = concat([state, model.initial_state(1)])                      # one more sample, at rest
    state = reset(state, torch.tensor([False, True, False]))             # sample 1 starts again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import UsageError

__all__ = ["batch_size", "concat", "detach", "from_real", "reset", "select", "to_real"]


class _Leaf(NamedTuple):
    """A tensor of a state, its dotted name, and the axis that grows with the inputs seen (None if none does)."""

    name: str
    tensor: Tensor
    growing: int | None


def to_real(state: Any) -> dict[str, Tensor]:
    """The state as a flat mapping from names to contiguous real tensors, batch first.

    A complex tensor (B, ...) becomes (B, ..., 2), last axis (re, im). Names are paths: "state" for a single tensor,
    "state.key" for a field, "state.layers.0" for an entry. The result can be written by `torch.save` and by
    safetensors, and is what an exported step takes. Differentiable.

    Raises:
        UsageError: not a state.
    >>> {name: tuple(t.shape) for name, t in to_real(torch.zeros(2, 3, dtype=torch.complex64)).items()}
    {'state': (2, 3, 2)}
    """
    return {leaf.name: _as_real(leaf.tensor).contiguous() for leaf in _leaves(state)}


def from_real(tensors: Mapping[str, Tensor], like: Any) -> Any:
    """The inverse of `to_real`.

    Args:
        tensors: names to real tensors, all of one batch size.
        like: a state of the same layer or model, of any batch size, such as `initial_state(1)`, which defines the
            structure and the device.
    Raises:
        UsageError: names are missing or unknown, or a tensor has another shape or dtype than in `like`.
    """
    if not isinstance(tensors, Mapping):
        raise UsageError(f"from_real takes a mapping from names to tensors, got {type(tensors).__name__}.")
    wanted = _leaves(like)
    names = [leaf.name for leaf in wanted]
    if set(names) != set(tensors):
        missing = sorted(set(names) - set(tensors))
        unknown = sorted(set(map(str, tensors)) - set(names))
        raise UsageError(
            f"from_real needs the tensors {', '.join(names)}: missing {', '.join(missing) or 'none'}, unknown "
            f"{', '.join(unknown) or 'none'}. Take `like` from the layer or model that the state was saved from."
        )
    found = [_from_real(tensors[leaf.name], leaf) for leaf in wanted]
    _rows(list(zip(names, found, strict=True)))
    return _rebuilt(like, iter(found))


def select(state: Any, index: Tensor | slice | Sequence[int]) -> Any:
    """The state of some samples, in the order of `index`: int64 (M,), bool (B,), a list of integers, or a slice.

    A slice gives views, anything else copies. Differentiable.

    Raises:
        UsageError: an index of another kind, or beyond the batch.
    """
    rows = batch_size(state)
    if not isinstance(index, slice):
        index = _checked_index(index, rows)
    return _map(lambda tensor: tensor[index if isinstance(index, slice) else index.to(tensor.device)], state)


def concat(states: Sequence[Any]) -> Any:
    """The samples of several states as one batch, in order.

    If states grow with the inputs seen (the cache of attention), shorter ones are padded with entries marked as absent.
    Differentiable.

    Raises:
        UsageError: no states, or states of different layers.
    """
    if not isinstance(states, (list, tuple)) or not states or hasattr(states, "_fields"):
        raise UsageError("concat takes a list of states, [first, second, ...], with at least one.")
    columns = [_leaves(state) for state in states]
    if any([leaf.name for leaf in column] != [leaf.name for leaf in columns[0]] for column in columns):
        raise UsageError("concat takes states of one structure: they must come from the same layer or model.")
    return _rebuilt(states[0], iter([_joined(parts) for parts in zip(*columns, strict=True)]))


def reset(state: Any, mask: Tensor, rest: Any = None) -> Any:
    """The state with some samples back at rest, as a new state; the others stay as they are. Differentiable.

    Args:
        mask: (B,) bool, True for the samples that start again.
        rest: `initial_state(1)` or `initial_state(B)`, for layers whose initial state is not zero. None means zero, the
            initial state of every layer in this package.
    Raises:
        UsageError: a mask of another shape or dtype.
    """
    rows = batch_size(state)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != (rows,):
        given = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise UsageError(f"reset takes a bool mask of shape ({rows},), True for samples that start again, got {given}.")
    if rest is None:
        return _map(lambda t: t.masked_fill(mask.to(t.device).view(-1, *[1] * (t.dim() - 1)), 0), state)
    shared = batch_size(rest) == 1
    own = torch.arange(rows, device=mask.device)
    return select(concat([state, rest]), torch.where(mask, rows if shared else rows + own, own))


def detach(state: Any) -> Any:
    """The state detached from the graph, for truncated backpropagation through time."""
    return _map(Tensor.detach, state)


def batch_size(state: Any) -> int:
    """The number of samples of a state.

    Raises:
        UsageError: not a state, or tensors with different numbers of rows.
    """
    return _rows([(leaf.name, leaf.tensor) for leaf in _leaves(state)])


def _leaves(state: Any) -> list[_Leaf]:
    found = list(_walk(state, "state", None))
    if not found:
        raise UsageError(
            f"A state is what a causal layer's initial_state, forward or step returns, got {type(state).__name__}."
        )
    return found


def _walk(state: Any, name: str, growing: int | None) -> Iterator[_Leaf]:
    if isinstance(state, Tensor):
        yield _Leaf(name, state, growing)
    elif isinstance(state, (tuple, list, Mapping)):
        keys = state if isinstance(state, Mapping) else getattr(state, "_fields", range(len(state)))
        parts = state.values() if isinstance(state, Mapping) else state
        axes = getattr(state, "growing", {})
        for key, part in zip(keys, parts, strict=True):
            yield from _walk(part, f"{name}.{key}", axes.get(key))
    elif state is not None:
        raise UsageError(
            f"A state is made of tensors, in tuples, lists or mappings, and {name} is a {type(state).__name__}."
        )


def _rebuilt(state: Any, tensors: Iterator[Tensor]) -> Any:
    """The structure of `state` filled with other tensors."""
    if isinstance(state, Tensor):
        return next(tensors)
    if isinstance(state, Mapping):
        return {key: _rebuilt(part, tensors) for key, part in state.items()}
    if isinstance(state, (tuple, list)):
        parts = [_rebuilt(part, tensors) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return None


def _map(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    return _rebuilt(state, iter([function(leaf.tensor) for leaf in _leaves(state)]))


def _rows(tensors: Sequence[tuple[str, Tensor]]) -> int:
    sizes = {name: tensor.shape[0] if tensor.dim() else None for name, tensor in tensors}
    if len(set(sizes.values())) != 1 or None in sizes.values():
        found = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise UsageError(
            f"Every tensor of a state has one row per sample, got rows {found}. Pass a state as initial_state, forward "
            f"or step returned it."
        )
    return next(iter(sizes.values()))


def _checked_index(index: Any, rows: int) -> Tensor:
    if not isinstance(index, Tensor):
        whole = isinstance(index, (list, tuple, range)) and all(type(i) is int for i in index)
        if not whole:
            raise UsageError(
                f"select takes the samples as an int64 or bool tensor, a list of integers or a slice, got {index!r}. "
                f"For one sample: select(state, [0])."
            )
        index = torch.tensor(list(index), dtype=torch.int64)
    mask = index.dtype == torch.bool
    if index.dim() != 1 or index.dtype not in (torch.bool, torch.int64, torch.int32) or (mask and len(index) != rows):
        raise UsageError(
            f"select takes int64 (M,) or bool ({rows},) for a batch of {rows}, got {index.dtype} {tuple(index.shape)}."
        )
    if not mask and index.device.type == "cpu" and bool(((index < -rows) | (index >= rows)).any()):
        raise UsageError(f"select takes samples 0..{rows - 1} of a batch of {rows}, got {index.tolist()}.")
    return index


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _from_real(given: Any, leaf: _Leaf) -> Tensor:
    like = _as_real(leaf.tensor)
    fits = isinstance(given, Tensor) and given.dim() == like.dim() and given.dtype == like.dtype
    if fits:
        axes = [axis for axis in range(1, like.dim()) if axis != leaf.growing]
        fits = all(given.shape[axis] == like.shape[axis] for axis in axes)
    if not fits:
        shape = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise UsageError(
            f"from_real takes {leaf.name} of {like.dtype} and shape (batch, {', '.join(map(str, like.shape[1:]))}), "
            f"got {shape}. Take `like` from the layer that the state was saved from."
        )
    moved = given.to(like.device)
    return torch.view_as_complex(moved.contiguous()) if leaf.tensor.is_complex() else moved


def _joined(parts: Sequence[_Leaf]) -> Tensor:
    axis, tensors = parts[0].growing, [leaf.tensor for leaf in parts]
    if axis is not None:
        longest = max(tensor.shape[axis] for tensor in tensors)
        tensors = [_filled_up(tensor, axis, longest) for tensor in tensors]
    if len({(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors}) > 1:
        kinds = ", ".join(f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
        raise UsageError(f"concat takes states of one layer, and {parts[0].name} is {kinds}.")
    return torch.cat(tensors)


def _filled_up(tensor: Tensor, axis: int, size: int) -> Tensor:
    """The tensor with zeros in front, which every growing state treats as absent entries."""
    shape = [*tensor.shape]
    shape[axis] = size - tensor.shape[axis]
    return torch.cat([tensor.new_zeros(shape), tensor], dim=axis) if shape[axis] else tensor
