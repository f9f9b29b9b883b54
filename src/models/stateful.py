"""Base class of the linear state space layers: precision, state and cached parts of a step."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..ops.runtime.autograd import break_graph, watched
from ..ops.step import NativeStep, available, unobserved
from .base import SequenceLayer, check_lengths, step_dt_scale
from .step_cache import StepCache, tensors_of

# dt_scale of a step: None for 1, a number, or a tensor () or (B,).
Scale = float | Tensor | None

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_NOT_COMPILED = (
    "A step of a state space layer is complex arithmetic, which torch.compile does not support. Leave out "
    "fullgraph=True; the rest of the model is compiled."
)


class StatefulLayer(SequenceLayer):
    """A linear layer over time with a complex state of fixed shape, and D (H,) among its parameters.

    A subclass computes the parts of a step in `_build_step` and takes the step in `_advance`. `_build_native` gives the
    parts of a native step, for steps on a CPU without gradients.

    Precision: parameters stay in float32 (or float64) under autocast, under a 16-bit default dtype, and after
    `module.bfloat16()` or `.half()`, which only move them. A 16-bit u is converted to the parameters' precision and y
    is returned in u's dtype.

    Args:
        d_model: H.
        bidirectional: the layer also runs backward, and therefore carries no state.
        state_shape: shape of the state of one sample.
    """

    D: nn.Parameter
    # Parameters that the native step reads in place; nothing is precomputed from them, so they need no check for
    # changes.
    read_in_place: ClassVar[tuple[str, ...]] = ()
    # Whether the precomputed parts of a step with dt_scale != 1 are valid for every dt_scale != 1, or only for the one
    # they were built for.
    parts_serve_any_scale: ClassVar[bool] = False

    def __init__(self, d_model: int, bidirectional: bool, state_shape: tuple[int, ...]):
        super().__init__()
        self.d_model = d_model
        self.bidirectional = bidirectional
        self._state_shape = state_shape
        self._step_cache = StepCache()

    @property
    def causal(self) -> bool:
        """Whether the layer can carry a state: False if it is bidirectional."""
        return not self.bidirectional

    @abstractmethod
    def _build_step(self, scale: Scale) -> Any:
        """Compute the parts of a step that depend on the parameters (and dt_scale) only, not on the input."""

    @abstractmethod
    def _advance(self, parts: Any, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        """y (B, H) and the next state, from the parts of `_build_step`, u (B, H) and the state, in full precision."""

    def _build_native(self, scale: Scale) -> NativeStep | None:
        """The native step; None for a layer without one."""
        return None

    def _advance_natively(self, step: Any, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        """As `_advance`, with the native step of `_build_native`."""
        return step(u, state)

    def step(self, u_t: Tensor, state: Any, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Any]:
        """Advance by one position: u_t (B, H) and a state to y_t (B, H) and the next state; dt_scale a number or (B,).

        Without gradients the discrete system is cached between steps until a parameter changes. On a CPU the step is
        then one native call, unless the batch is so large that torch's products are faster; the first call compiles it
        (seconds, once per machine). With dt_scale != 1 a MIMO layer computes its gates at every step, also natively. A
        SISO layer rebuilds its discrete system, 0.2 to 0.8 ms for 128 features, unless dt_scale is the same number as
        before.

        torch.compile does not compile a step, only the code around it: inductor does not support complex arithmetic,
        and a graph would rebuild the discrete system at every step. torch.export (strict=False, its default) exports
        the whole step, with its complex arithmetic.
        """
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            # Gives the reason if fullgraph=True forbids a break, where torch does not show the reason of `disable`.
            break_graph(_NOT_COMPILED)
            return torch.compiler.disable(self._step)(u_t, state, dt_scale)
        return self._step(u_t, state, dt_scale)

    def _step(self, u_t: Tensor, state: Any, dt_scale: float | Tensor) -> tuple[Tensor, Any]:
        self._check_step(u_t, state)
        u = self._as_computed(u_t)
        scale = None if type(dt_scale) is float and dt_scale == 1.0 else step_dt_scale(dt_scale, u_t)
        native = self._native_step(u, state, scale)
        if native is not None:
            y, state = self._advance_natively(native, u, state, scale)
        else:
            with full_precision(u_t.device):
                y, state = self._advance(self._step_parts(scale), u, state, scale)
        return (y if y.dtype == u_t.dtype else y.to(u_t.dtype)), state

    def initial_state(self, batch_size: int) -> Any:
        """The zero state (batch_size, *state shape), complex."""
        if not self.causal:
            return super().initial_state(batch_size)
        self._check_batch_size(batch_size)
        try:
            return torch.zeros(batch_size, *self._state_shape, dtype=self.D.dtype.to_complex(), device=self.D.device)
        except RuntimeError as error:
            raise UsageError(
                f"A state of {type(self).__name__} for {batch_size} samples, {(batch_size, *self._state_shape)} "
                f"complex numbers, does not fit into memory ({self.D.device}). Step fewer samples at a time."
            ) from error

    def _step_parts(self, scale: Scale) -> Any:
        # Not cached under a dispatch mode, whose tensors may have no memory, or under a parametrization, which computes
        # new tensors at every access.
        if watched() or "parametrizations" in self._modules or not self._keeps(scale):
            return self._build_step(scale)
        return self._step_cache.get("torch", self, lambda: (self._build_step(scale), ()), self._kept_for(scale))

    def _native_step(self, u: Tensor, state: Any, scale: Scale) -> NativeStep | None:
        """The native step for these inputs, or None if torch's operators must be used."""
        if not available() or "parametrizations" in self._modules:
            return None
        if not unobserved(u, *(state if isinstance(state, tuple) else (state,))):
            return None
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(self)):
            return None
        if scale is None:
            return self._step_cache.get("native", self, self._native_parts)
        if not self._keeps(scale) or (isinstance(scale, Tensor) and not unobserved(scale)):
            return None
        return self._step_cache.get("native", self, lambda: self._native_parts(scale), self._kept_for(scale))

    def _keeps(self, scale: Scale) -> bool:
        """Whether parts are cached between steps; parts that hold for one tensor dt_scale only are not."""
        return self.parts_serve_any_scale or not isinstance(scale, Tensor)

    def _kept_for(self, scale: Scale) -> float | None:
        """Cache key of parts: None for dt_scale 1, otherwise dt_scale, or 0.0 if the parts serve every dt_scale."""
        return 0.0 if scale is not None and self.parts_serve_any_scale else scale

    def _native_parts(self, scale: Scale = None) -> tuple[NativeStep | None, Sequence[Tensor]]:
        tensors = tensors_of(self)
        if not all(tensor.is_cpu and tensor.dtype == self.D.dtype for tensor in tensors):
            return None, ()
        with torch.no_grad(), full_precision(self.D.device):
            step = self._build_native(scale)
        if step is None:
            return None, ()
        in_place = [getattr(self, name) for name in self.read_in_place]
        return step, [tensor for tensor in in_place if step.reads(tensor)]

    def _as_computed(self, u: Tensor) -> Tensor:
        """u in the dtype of the parameters; only a lower precision is converted silently."""
        if u.dtype == self.D.dtype:
            return u
        if u.dtype in _LOW_PRECISION:
            return u.to(self.D.dtype)
        raise wrong_dtype(type(self).__name__, self.D.dtype, u.dtype)

    def _check_input(
        self, u: Tensor, state: Any = None, lengths: Tensor | None = None, return_state: bool = True
    ) -> None:
        super()._check_input(u, state, lengths, return_state)
        self._check_state(state, u.shape[0])
        check_lengths(lengths, u.shape[1])

    def _check_state(self, state: Any, batch_size: int) -> None:
        if state is None:
            return
        shape = (batch_size, *self._state_shape)
        # dtype.to_complex() would break a graph of torch.compile.
        dtype = torch.promote_types(self.D.dtype, torch.complex32)
        fits = isinstance(state, Tensor) and tuple(state.shape) == shape and state.dtype == dtype
        if not fits or state.device != self.D.device or state.layout != torch.strided:
            given = type(state).__name__
            if isinstance(state, Tensor):
                given = f"{tuple(state.shape)} {state.dtype} on {state.device}, {state.layout}"
            raise UsageError(
                f"{type(self).__name__} takes a state of shape {shape} and {dtype} on {self.D.device}, got {given}. "
                f"Start with initial_state({batch_size}) and pass on what the last call returned."
            )

    def _check_step(self, u_t: Tensor, state: Any) -> None:
        if not self.causal:
            raise UsageError(f"{type(self).__name__} cannot be stepped. {self._why_not_causal()}")
        self._check_tensor("u_t", u_t, f"(batch, {self.d_model})")
        if u_t.dim() != 2 or u_t.shape[1] != self.d_model:
            raise UsageError(
                f"{type(self).__name__}.step takes u_t of shape (batch, {self.d_model}), got {tuple(u_t.shape)}. "
                f"Sequences go through forward."
            )
        if state is None:
            raise UsageError(f"{type(self).__name__}.step needs a state: start with initial_state({u_t.shape[0]}).")
        self._check_state(state, u_t.shape[0])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Move or convert the module; a conversion to 16 bits keeps the precision and only moves."""

        def keep_precision(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            return tensor.to(converted.device) if converted.dtype in _LOW_PRECISION else converted

        self._step_cache = StepCache()
        return super()._apply(keep_precision, recurse)

    def _device(self) -> torch.device:
        device = self.D.device
        if device.type == "meta":
            raise UsageError(
                f"{type(self).__name__} is on the meta device, where nothing is computed. Give it memory, "
                f"layer.to_empty(device='cpu'), and load weights; for shapes alone use torch's FakeTensorMode."
            )
        return device


def wrong_dtype(layer: str, parameters: torch.dtype, given: torch.dtype) -> UsageError:
    """The error for an input in another precision than the layer's parameters (returned, not raised)."""
    other = f", or the layer, layer.to({given})" if given.is_floating_point else ""
    return UsageError(
        f"{layer} has {parameters} parameters and got u of {given}. Convert the input, u.to({parameters}){other}."
    )


def real_parameter(values: Tensor) -> nn.Parameter:
    """A parameter with storage of its own; complex values get a last axis (re, im).

    It has the default dtype (float32 if that has 16 bits) and is on the default device. Layers draw their values on the
    CPU, so that a seed gives the same values on every device.
    """
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    dtype = torch.get_default_dtype()
    values = values.detach().to(torch.float32 if dtype in _LOW_PRECISION else dtype)
    return nn.Parameter(values.clone(memory_format=torch.contiguous_format).to(torch.get_default_device()))


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context without autocast: 16 bits are not enough for eigenvalues close to the unit circle."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
