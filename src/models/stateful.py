"""What the linear state space layers have in common: their precision, their state and what they keep between steps."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .base import SequenceLayer, check_lengths

_LOW_PRECISION = (torch.float16, torch.bfloat16)


class StepCache:
    """What a step is made of, and whether the parameters that it came from have changed since.

    In-place writes show in a parameter's version, replaced ones in its identity or address. Writes through `.data`
    leave no such trace, so a sample of every parameter's values is compared as well.
    """

    _SAMPLES = 32

    def __init__(self, parameters: Mapping[str, nn.Parameter | None], parts: Any):
        self.parts = parts
        self._seen = []
        for name, parameter in parameters.items():
            if parameter is not None:
                flat = parameter.detach().reshape(-1)
                view = flat[:: max(1, flat.numel() // self._SAMPLES)]
                self._seen.append((name, parameter, parameter._version, parameter.data_ptr(), view, view.clone()))

    def holds(self, parameters: Mapping[str, nn.Parameter | None]) -> bool:
        """Whether the parts still belong to these parameters."""
        for name, parameter, version, address, view, sample in self._seen:
            if (
                parameters[name] is not parameter
                or parameter._version != version
                or parameter.data_ptr() != address
                or not torch.equal(view, sample)
            ):
                return False
        return True


class StatefulLayer(SequenceLayer):
    """A linear layer over time with a complex state of fixed shape, and D (H,) among its parameters.

    A subclass says what a step is made of (`_build_step`) and how it is taken (`_advance`).

    Precision: parameters stay in float32 (or float64) under autocast and after `module.bfloat16()` or `.half()`, which
    only move them. A 16-bit u is computed in the parameters' precision and y is returned in u's dtype.

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
        self._step_cache: StepCache | None = None

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
        """
        self._check_step(u_t, state)
        with full_precision(u_t.device):
            y, state = self._advance(self._step_parts(), self._as_computed(u_t), state)
        return y.to(u_t.dtype), state

    def initial_state(self, batch_size: int) -> Any:
        """The state of rest: zeros (batch_size, *state shape), complex."""
        if not self.causal:
            return super().initial_state(batch_size)
        return torch.zeros(batch_size, *self._state_shape, dtype=self.D.dtype.to_complex(), device=self.D.device)

    def _step_parts(self) -> Any:
        trained = torch.is_grad_enabled() and any(p.requires_grad for p in self._parameters.values() if p is not None)
        if trained or torch.compiler.is_compiling() or self.D.is_inference():
            return self._build_step()
        if self._step_cache is None or not self._step_cache.holds(self._parameters):
            self._step_cache = StepCache(self._parameters, self._build_step())
        return self._step_cache.parts

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
        shape = (batch_size, *self._state_shape)
        if state is not None and (not isinstance(state, Tensor) or tuple(state.shape) != shape):
            given = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
            raise UsageError(
                f"{type(self).__name__} takes a state of shape {shape}, got {given}. "
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

        self._step_cache = None
        return super()._apply(keep_precision, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_step_cache": None}


def real_parameter(values: Tensor) -> nn.Parameter:
    """A parameter of the default dtype with storage of its own; complex values get a last axis (re, im)."""
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return nn.Parameter(values.detach().to(torch.get_default_dtype()).clone(memory_format=torch.contiguous_format))


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context without autocast: 16 bits are not enough for eigenvalues next to the unit circle."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
