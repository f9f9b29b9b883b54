"""What the linear state space layers have in common: their precision, their state and what they keep between steps."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..ops.transforms import transform_active
from .base import SequenceLayer, check_lengths

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_NOT_COMPILED = (
    "A step of a state space layer is complex arithmetic, which torch.compile does not support. Leave out "
    "fullgraph=True; the rest of the model is compiled."
)


class StepCache:
    """What a step is made of, as long as the tensors and options that it came from are still the same.

    What was set anew on the layer shows in its identity, and storage that was replaced in its address; writes through
    `.data` or numpy leave no trace, so every value is compared with a copy.
    """

    def __init__(self) -> None:
        self._parts: Any = None
        self._watched: list[_Watched] = []

    def keep(self, layer: nn.Module, parts: Any) -> None:
        """Take the parts just made from the layer, unless they are part of a graph or may become part of one."""
        tensors = _tensors(layer)
        trained = torch.is_grad_enabled()
        if any((trained and tensor.requires_grad) or tensor.is_inference() for tensor in tensors):
            return
        # What was computed in inference mode can never be part of a graph.
        self._inference = torch.is_inference_mode_enabled()
        self._watched = [_Watched(tensor) for tensor in tensors]
        self._identities = _identities(layer)
        # An identity is unique among objects that live.
        self._alive = [*layer.__dict__.values(), *layer._parameters.values()]
        self._parts = parts

    def parts(self, layer: nn.Module) -> Any:
        """The parts if they still belong to the layer as it is and may be used here, else None."""
        if self._parts is None or self._identities != _identities(layer):
            return None
        if self._inference and not torch.is_inference_mode_enabled():
            return None
        if torch.is_grad_enabled() and any(watched.tensor.requires_grad for watched in self._watched):
            return None
        return None if any(watched.changed() for watched in self._watched) else self._parts


class _Watched:
    """A tensor, and a copy of its memory to compare it with."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self._address = tensor.data_ptr()
        view = tensor.detach()
        self._on_cpu = view.device.type == "cpu"
        # Bytes of contiguous memory compare ten times faster than torch.equal does; other memory compares as changed.
        self._view = memoryview(view.numpy()) if self._on_cpu else view
        self._copy = bytearray(view.numpy().tobytes()) if self._on_cpu else view.clone()

    def changed(self) -> bool:
        if self.tensor.data_ptr() != self._address:
            return True
        return self._copy != self._view if self._on_cpu else not torch.equal(self._copy, self._view)


def _tensors(layer: nn.Module) -> list[Tensor]:
    """The parameters, and what pruning or weight normalisation put in a parameter's place."""
    plain = [value for value in layer.__dict__.values() if isinstance(value, Tensor)]
    return [value for value in layer._parameters.values() if value is not None] + plain


def _identities(layer: nn.Module) -> tuple[list[str], list[int], list[int]]:
    """The names of all that is set on the layer, what it is, and which parameters there are."""
    own = layer.__dict__
    return list(own), list(map(id, own.values())), list(map(id, layer._parameters.values()))


class StatefulLayer(SequenceLayer):
    """A linear layer over time with a complex state of fixed shape, and D (H,) among its parameters.

    A subclass says what a step is made of (`_build_step`) and how it is taken (`_advance`).

    Precision: parameters stay in float32 (or float64) under autocast and after `module.bfloat16()` or `.half()`, which
    only move them, and where the default dtype has 16 bits. A 16-bit u is computed in the parameters' precision and y
    is returned in u's dtype.

    Args:
        d_model: H.
        bidirectional: the layer also runs backward, and so carries no state.
        state_shape: shape of the state of one sample.
    """

    D: nn.Parameter

    def __init__(self, d_model: int, bidirectional: bool, state_shape: tuple[int, ...]):
        super().__init__()
        self.d_model = d_model
        self.bidirectional = bidirectional
        self._state_shape = state_shape
        self._step_cache = StepCache()

    @property
    def causal(self) -> bool:
        """Whether the layer can carry a state: not when it is bidirectional."""
        return not self.bidirectional

    @abstractmethod
    def _build_step(self) -> Any:
        """What a step is made of: everything that the parameters decide and the input does not."""

    @abstractmethod
    def _advance(self, parts: Any, u: Tensor, state: Any) -> tuple[Tensor, Any]:
        """y (B, H) and the next state, from what `_build_step` gave, u (B, H) and the state, in full precision."""

    def step(self, u_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position: u_t (B, H) and a state to y_t (B, H) and the next state.

        Without gradients the discrete system is kept from one step to the next, until a parameter changes.

        torch.compile leaves a step as it is and compiles what is around it: inductor does not support complex
        arithmetic, and a graph would build the discrete system anew at every step. torch.export (strict=False, its
        default) takes it whole, complex numbers inside.
        """
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            # Says why where fullgraph=True allows no break; the reason that `disable` takes is not shown there.
            torch._dynamo.graph_break(msg=_NOT_COMPILED)
            return torch.compiler.disable(self._step)(u_t, state)
        return self._step(u_t, state)

    def _step(self, u_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        self._check_step(u_t, state)
        with full_precision(u_t.device):
            y, state = self._advance(self._step_parts(), self._as_computed(u_t), state)
        return y.to(u_t.dtype), state

    def initial_state(self, batch_size: int) -> Any:
        """The state of rest: zeros (batch_size, *state shape), complex."""
        if not self.causal:
            return super().initial_state(batch_size)
        self._check_batch_size(batch_size)
        return torch.zeros(batch_size, *self._state_shape, dtype=self.D.dtype.to_complex(), device=self.D.device)

    def _step_parts(self) -> Any:
        # Under a parametrization the tensors that count are made anew at every access.
        if torch.compiler.is_compiling() or "parametrizations" in self._modules or transform_active():
            return self._build_step()
        parts = self._step_cache.parts(self)
        if parts is None:
            parts = self._build_step()
            self._step_cache.keep(self, parts)
        return parts

    def _as_computed(self, u: Tensor) -> Tensor:
        """u in the dtype of the parameters; only a lower precision is converted silently."""
        if u.dtype == self.D.dtype:
            return u
        if u.dtype in _LOW_PRECISION:
            return u.to(self.D.dtype)
        raise UsageError(
            f"{type(self).__name__} has {self.D.dtype} parameters and got u of {u.dtype}. "
            f"Convert the input, u.to({self.D.dtype}), or the layer, layer.to({u.dtype})."
        )

    def _check_input(self, u: Tensor, state: Any = None, lengths: Tensor | None = None) -> None:
        super()._check_input(u, state, lengths)
        self._check_state(state, u.shape[0])
        check_lengths(lengths, u.shape[1])

    def _check_state(self, state: Any, batch_size: int) -> None:
        if state is None:
            return
        shape = (batch_size, *self._state_shape)
        # dtype.to_complex() would break a graph of torch.compile.
        dtype = torch.promote_types(self.D.dtype, torch.complex32)
        if not isinstance(state, Tensor) or tuple(state.shape) != shape or state.dtype != dtype:
            given = f"{tuple(state.shape)} {state.dtype}" if isinstance(state, Tensor) else type(state).__name__
            raise UsageError(
                f"{type(self).__name__} takes a state of shape {shape} and {dtype}, got {given}. "
                f"Start with initial_state({batch_size}) and pass on what the last call returned."
            )

    def _check_step(self, u_t: Tensor, state: Any) -> None:
        if not self.causal:
            raise UsageError(f"{type(self).__name__} cannot be stepped. {self._why_not_causal()}")
        if u_t.dim() != 2 or u_t.shape[1] != self.d_model:
            raise UsageError(
                f"{type(self).__name__}.step takes u_t of shape (batch, {self.d_model}), got {tuple(u_t.shape)}."
            )
        if state is None:
            raise UsageError(f"{type(self).__name__}.step needs a state: start with initial_state({u_t.shape[0]}).")
        self._check_state(state, u_t.shape[0])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Moves and conversions of the module; a conversion to 16 bits keeps the precision and only moves."""

        def keep_precision(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            return tensor.to(converted.device) if converted.dtype in _LOW_PRECISION else converted

        self._step_cache = StepCache()
        return super()._apply(keep_precision, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_step_cache": StepCache()}


def real_parameter(values: Tensor) -> nn.Parameter:
    """A parameter with storage of its own; complex values get a last axis (re, im).

    It has the default dtype, but float32 where that has 16 bits, and lies on the default device. Layers draw their
    values on the CPU, so that a seed gives the same ones whatever the device.
    """
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    dtype = torch.get_default_dtype()
    values = values.detach().to(torch.float32 if dtype in _LOW_PRECISION else dtype)
    return nn.Parameter(values.clone(memory_format=torch.contiguous_format).to(torch.get_default_device()))


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context without autocast: 16 bits are not enough for eigenvalues next to the unit circle."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
