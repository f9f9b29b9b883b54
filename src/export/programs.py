"""Layers and models as programs on plain real tensors: `real_forward`, `real_step`, and torch.export of both."""

from __future__ import annotations

import copy
import numbers
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from ..errors import UsageError, unknown
from ..models.backbone import SequenceModel
from ..models.base import SequenceLayer
from .layers import real_layer

# Sizes of the example for tracing; they must differ from other sizes, or torch.export may confuse the two.
_BATCH, _LENGTH, _PAST = 4, 37, 3
_SCALES = {"sample": 1, "position": 2}
_LONGEST = 2**31 - 1


class RealProgram(nn.Module):
    """A layer or a model with real tensors in and out; made by `real_forward` and `real_step`.

    Attributes:
        module: the layer or model in real arithmetic.
        input_names, output_names: names of the tensors that `forward` takes and returns, in order. The parts of a state
            are named as in `fractal_ssm.state.to_real`: "state", "state.key"; those returned begin with "next_".
    """

    def __init__(self, module: nn.Module, dt_scale: float | str, states: bool, lengths: bool = False):
        super().__init__()
        self.is_model = isinstance(module, SequenceModel)
        fixed = None if isinstance(dt_scale, str) else float(dt_scale)
        self.module = _real(module, fixed)
        self.dt_scale, self.with_lengths, self.with_state = dt_scale, lengths, states
        self.input_names, self.output_names = ["inputs" if self.is_model else "u"], ["y"]
        self.input_names += ["lengths"] * lengths + ["dt_scale"] * (fixed is None)
        self._leading, self._structure = len(self.input_names), None
        if states:
            found, self._structure = tree_flatten_with_path(self._initial(1))
            # A model without pooling has no running sum; its entry in the state is None.
            self._places = [index for index, (_, part) in enumerate(found) if part is not None]
            found = [found[index] for index in self._places]
            names = ["state" + "".join(map(_name, path)) for path, _ in found]
            self.input_names += names
            self.output_names += ["next_" + name for name in names]
            if any(part.is_complex() for _, part in found):
                raise UsageError(
                    f"{_kind(module)} has a complex state and no real form. Return real tensors, such as "
                    f"torch.view_as_real(state), from initial_state, forward and step of your layer."
                )

    def initial_state(self, batch_size: int) -> tuple[Tensor, ...]:
        """The state at rest as the tensors that `forward` takes after its other inputs."""
        return _tensors(self._initial(batch_size))

    def example_inputs(self, batch_size: int = _BATCH, length: int = _LENGTH) -> tuple[Tensor, ...]:
        """Random inputs of these sizes, and the state after three earlier inputs if the program takes one."""
        given = [self._example(batch_size, length)]
        if self.with_lengths:
            given.append(torch.arange(batch_size) % length + 1)
        if isinstance(self.dt_scale, str):
            given.append(torch.rand([batch_size, length][: _SCALES[self.dt_scale]]) + 0.5)
        return *given, *(self._past(batch_size) if self.with_state else ())

    def dynamic_shapes(self) -> dict[str, Any]:
        """The dynamic shapes of torch.export: batch, length and growing axes of the state stay variable."""
        batch: Any = Dim("batch", min=1, max=_LONGEST)
        if self.is_model and self.module.task == "retrieval":
            batch = 2 * Dim("pairs", min=1, max=_LONGEST // 2)
        length = Dim("length", min=1, max=_LONGEST)
        axes = [{0: batch, 1: length} if self._takes_length else {0: batch}]
        axes += [{0: batch}] * self.with_lengths
        if isinstance(self.dt_scale, str):
            axes.append({0: batch, 1: length} if self.dt_scale == "position" else {0: batch})
        if self.with_state:
            past = Dim("past", min=0, max=_LONGEST)
            rest, other, later = self.initial_state(2), self.initial_state(3), self._past(2)
            for shape, larger, grown in zip(*([t.shape for t in part] for part in (rest, other, later)), strict=True):
                growing = {axis: past for axis in range(len(shape)) if shape[axis] != grown[axis]}
                axes.append({axis: batch for axis in range(len(shape)) if shape[axis] != larger[axis]} | growing)
        return {"inputs": axes[0]} | ({"rest": tuple(axes[1:])} if axes[1:] else {})

    _takes_length = True

    def _initial(self, batch_size: int) -> Any:
        return self.module.initial_state(batch_size)

    def _past(self, batch_size: int) -> tuple[Tensor, ...]:
        """A state after a few inputs, because tracing would specialise on a growing axis of size 0 or 1."""
        state = self._initial(batch_size)
        with torch.no_grad():
            for _ in range(_PAST):
                state = self.module.step(self._example(batch_size, 1)[:, 0], state)[1]
        return _tensors(state)

    def _example(self, batch: int, length: int) -> Tensor:
        if self.is_model and self.module.encoder.n_tokens is not None:
            return torch.randint(self.module.encoder.n_tokens, (batch, length))
        size = self.module.encoder.d_input if self.is_model else self.module.d_model
        dtypes = [t.dtype for t in (*self.module.parameters(), *self.module.buffers()) if t.is_floating_point()]
        return torch.randn(batch, length, size, dtype=dtypes[0] if dtypes else None)

    def _read(self, inputs: Tensor, rest: tuple[Tensor, ...]) -> dict[str, Any]:
        """The arguments of the module by name."""
        if len(rest) + 1 != len(self.input_names):
            raise UsageError(
                f"This program takes {len(self.input_names)} tensors, {', '.join(self.input_names)}; got "
                f"{len(rest) + 1}. The state of rest is initial_state(batch_size)."
            )
        given = dict(zip(self.input_names[: self._leading], (inputs, *rest), strict=False))
        found = {"dt_scale": given.get("dt_scale", self.dt_scale)}
        if self.with_lengths:
            found["lengths"] = given["lengths"]
        if self._structure is not None:
            parts: list[Tensor | None] = [None] * self._structure.num_leaves
            for place, part in zip(self._places, rest[self._leading - 1 :], strict=True):
                parts[place] = part
            found["state"] = tree_unflatten(parts, self._structure)
        return found

    def _written(self, y: Tensor, state: Any) -> tuple[Tensor, ...]:
        return y, *_tensors(state)


class RealForward(RealProgram):
    """Whole sequences; see `real_forward`."""

    def forward(self, inputs: Tensor, *rest: Tensor) -> Any:
        """The tensors called `input_names` to those called `output_names`."""
        if torch.jit.is_tracing():
            raise UsageError(
                "torch.jit.trace would keep the number of chunks of one length. Use export_program(program), or trace "
                "real_step(layer), one position at a time."
            )
        given = self._read(inputs, rest)
        if self.is_model:
            if not self.with_state:
                return self.module(inputs, **given)
            return self._written(*self.module.features(inputs, **given))
        y, state = self.module(inputs, **given, return_state=self.with_state)
        return self._written(y, state) if self.with_state else y


class RealStep(RealProgram):
    """One position; see `real_step`."""

    _takes_length = False

    def __init__(self, module: nn.Module, dt_scale: float | str):
        super().__init__(module, dt_scale, states=True)

    def forward(self, inputs: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """The tensors called `input_names` to those called `output_names`."""
        given = self._read(inputs, rest)
        # For dt_scale=1 omit the argument, which not every step takes.
        scale = {} if self.dt_scale == 1.0 else {"dt_scale": given["dt_scale"]}
        y, state = self.module.step(inputs, given["state"], **scale)
        return self._written(y, state)

    def example_inputs(self, batch_size: int = _BATCH, length: int = 1) -> tuple[Tensor, ...]:
        """Random inputs for this many samples; see `RealProgram.example_inputs`."""
        first, *others = super().example_inputs(batch_size, 1)
        return first[:, 0], *others


def real_forward(
    module: nn.Module, *, lengths: bool = False, state: bool = False, dt_scale: float | str = 1.0
) -> RealForward:
    """A layer or a model over sequences of any length, without complex numbers and without operators of this package.

    forward(inputs[, lengths][, dt_scale][, *state]) -> y, or (y, *next state) if it takes a state.

    Args:
        module: a layer, or a `SequenceModel`, whose program returns scores (with `state`, features at each position).
            It is copied, put in eval mode, and moved to the CPU.
        lengths: take the number of valid positions of each sample, (B,) int64, as an input.
        state: take the state to continue from and return the next one, for chunks of a stream. Causal layers only.
        dt_scale: a number, fixed in the program; "sample" or "position" for an input of shape (B,) or (B, L), which S5,
            Fractal and Attention take.
    Raises:
        UsageError: an option that this layer does not support; the message says what to do instead.
    """
    _check(module, dt_scale, state)
    return RealForward(module, dt_scale, state, lengths)


def real_step(module: nn.Module, *, dt_scale: float | str = 1.0) -> RealStep:
    """A layer or a model one position at a time, without complex numbers and without operators of this package.

    forward(u_t[, dt_scale], *state) -> (y_t, *next state), from u_t (B, H) (of a model: (B,) token ids or (B, d_input))
    and the tensors of `initial_state(B)`.

    Args:
        module: a causal layer, or a `SequenceModel` of causal layers, whose outputs take account of everything seen so
            far (see `SequenceModel.step`). Copied, as in `real_forward`.
        dt_scale: a number, or "sample" for an input of shape (B,): the time since the last input, in training steps.
    Raises:
        UsageError: an option that this layer does not support; the message says what to do instead.
    """
    _check(module, dt_scale, state=True)
    if dt_scale == "position":
        raise UsageError("A step is one position, so dt_scale is a number or 'sample' there, one a sample.")
    return RealStep(module, dt_scale)


def export_program(program: RealProgram, strict: bool = False) -> ExportedProgram:
    """torch.export of a program of `real_forward` or `real_step`, for every batch size and length from 1.

    The result contains only torch's own operators; torch.export.save, ONNX, AOTInductor and ExecuTorch accept it.

    Raises:
        UsageError: torch.export cannot trace a custom layer; the message repeats torch's.
    """
    if not isinstance(program, RealProgram):
        raise UsageError(
            f"export_program takes what real_forward(layer) or real_step(layer) returned, got a {_kind(program)}."
        )
    try:
        with torch.no_grad():
            return torch.export.export(
                program, program.example_inputs(), dynamic_shapes=program.dynamic_shapes(), strict=strict
            )
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException, AssertionError, ValueError) as error:
        raise UsageError(
            f"torch.export cannot follow {_kind(program.module)}: {str(error).strip().splitlines()[0]} A layer of your "
            f"own must not branch on values, and must work at every batch size and length."
        ) from error


def _real(module: nn.Module, dt_scale: float | None) -> nn.Module:
    if isinstance(module, SequenceLayer):
        return real_layer(module, dt_scale)
    twin = copy.deepcopy(module).requires_grad_(False).eval().cpu()
    for block in twin.blocks:
        block.layer = real_layer(block.layer, dt_scale)
    return twin


def _check(module: Any, dt_scale: Any, state: bool) -> None:
    if not isinstance(module, (SequenceLayer, SequenceModel)):
        raise UsageError(
            f"Exported are layers (SequenceLayer) and models (SequenceModel), got a {_kind(module)}. Export the layer "
            f"inside of it, or call torch.export on a module that contains real_layer(layer)."
        )
    if isinstance(dt_scale, str):
        if dt_scale not in _SCALES:
            raise unknown("dt_scale", dt_scale, _SCALES, "Or give a number, which is then fixed in the program.")
    elif isinstance(dt_scale, bool) or not isinstance(dt_scale, numbers.Real) or not 0 < dt_scale < float("inf"):
        raise UsageError(f"dt_scale is a positive number, 'sample' or 'position', got {dt_scale!r}.")
    if state and not module.causal:
        raise UsageError(
            f"{_kind(module)} carries no state, since its outputs depend on later inputs. Build it with "
            f"bidirectional=False (DSS: with l_max), or export real_forward without a state."
        )


def _tensors(state: Any) -> tuple[Tensor, ...]:
    """The tensors of a state in order."""
    return tuple(part for _, part in tree_flatten_with_path(state)[0] if part is not None)


def _kind(module: Any) -> str:
    return type(module).__name__


def _name(key: Any) -> str:
    """The name of one key in a path into a state: a field's name, or an index of a tuple."""
    for attribute in ("name", "idx", "key"):
        if hasattr(key, attribute):
            return f".{getattr(key, attribute)}"
    raise TypeError(f"unknown key of a state: {key!r}")
