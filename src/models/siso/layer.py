"""H independent linear systems run over sequences, chunks with a carried state, padded batches and single steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...ops.convolution import convolve
from ..base import SequenceLayer, valid_mask
from ..ssm import StepCache, broadcast_dt_scale, check_lengths, full_precision, real_parameter
from .system import System

_LOW_PRECISION = (torch.float16, torch.bfloat16)


class SISOLayer(SequenceLayer):
    """H independent systems, one per feature, run by FFT convolution; D is their feedthrough.

    Cost of a forward pass: O(B H L log L) for the convolution, plus the kernel, which does not depend on the batch.
    Nothing of size (H, P, L) or (B, L, H, P) is formed. A bidirectional layer has a second kernel for the future,
    which starts at lag -1, as in the published S4: the present input is counted once.

    Precision: parameters stay in float32 (or float64) under autocast and after `module.bfloat16()` or `.half()`; the
    transition is computed in float64, kernels, states and FFT in the parameters' precision. A 16-bit u is computed
    in float32 and y is returned in u's dtype.

    torch.compile leaves the layer as it is and compiles what is around it.

    `dt_scale` may be a number or one a sample; each value that occurs costs a kernel. A step of its own per position
    needs a layer that scans (S5, Fractal).
    """

    roles: ClassVar[dict[str, str]] = {"D": "D"}

    def __init__(self, d_model: int, bidirectional: bool, state_shape: tuple[int, ...]):
        super().__init__()
        self.d_model = d_model
        self.bidirectional = bidirectional
        self.D: nn.Parameter = real_parameter(torch.randn(d_model, dtype=torch.float64))
        self._state_shape = state_shape
        self._step_cache: StepCache | None = None

    @property
    def causal(self) -> bool:
        """Whether the layer can carry a state: not when it is bidirectional."""
        return not self.bidirectional

    @abstractmethod
    def system(self, dt_scale: float | Tensor = 1.0) -> System:
        """The discrete system that the parameters stand for, with every step multiplied by dt_scale (a scalar)."""

    def kernel(self, length: int, dt_scale: float | Tensor = 1.0) -> Tensor:
        """The convolution kernels: (directions, H, length) real, lags 0, 1, ... forward and -1, -2, ... backward.

        D is not in it. Raises UsageError for a length below 1.
        """
        with full_precision(self.D.device):
            return self.system(dt_scale).kernel(length)

    def forward(
        self, u: Tensor, state: Tensor | None = None, lengths: Tensor | None = None, dt_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """The layer over a sequence; see `SequenceLayer.forward`. The state is x: (B, H, P) complex."""
        if torch.compiler.is_compiling():
            # inductor's code for complex tensors is wrong in places (broadcast sums), so none of this is traced.
            return torch.compiler.disable(self._forward)(u, state, lengths, dt_scale)
        return self._forward(u, state, lengths, dt_scale)

    def _forward(
        self, u: Tensor, state: Tensor | None, lengths: Tensor | None, dt_scale: float | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        self._check_input(u, state, lengths)
        self._check_state(state, u.shape[0])
        check_lengths(lengths, u.shape[1])
        scale = broadcast_dt_scale(dt_scale, u)
        if isinstance(scale, Tensor) and scale.dim():
            return self._forward_by_scale(u, state, lengths, scale)
        with full_precision(u.device):
            y, x_last = self._run(self._as_computed(u), state, lengths, self.system(scale))
        return y.to(u.dtype), x_last

    def step(self, u_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u_t (B, H) and x to y_t (B, H) and the next x.

        Without gradients the discrete system is kept from one step to the next, until a parameter changes.
        """
        self._check_step(u_t, state)
        with full_precision(u_t.device):
            u = self._as_computed(u_t)
            x, y = self._step_system().step(state, u)
            return torch.addcmul(y, self.D, u).to(u_t.dtype), x

    def initial_state(self, batch_size: int) -> Tensor:
        """The state of rest: zeros (B, H, P), complex."""
        if not self.causal:
            return super().initial_state(batch_size)
        return torch.zeros(batch_size, *self._state_shape, dtype=self.D.dtype.to_complex(), device=self.D.device)

    def _run(
        self, u: Tensor, x0: Tensor | None, lengths: Tensor | None, system: System
    ) -> tuple[Tensor, Tensor | None]:
        length = u.shape[1]
        if lengths is not None:
            u = u.masked_fill(~valid_mask(lengths, length)[..., None], 0.0)
        kernel = system.kernel(length)
        # The feedthrough is a kernel at lag 0, and costs nothing there.
        forward_kernel = torch.cat((kernel[0, :, :1] + self.D[:, None], kernel[0, :, 1:]), dim=1)
        y = convolve(u, forward_kernel, kernel[1] if self.bidirectional else None)
        if not self.causal:
            return y, None
        if x0 is not None:
            y = y + system.free_response(x0, length)
        return y, self._last_state(u, x0, lengths, system)

    def _last_state(self, u: Tensor, x0: Tensor | None, lengths: Tensor | None, system: System) -> Tensor:
        length = u.shape[1]
        if lengths is not None:
            # Every sample is moved so that its own last position comes last, behind zeros.
            source = torch.arange(length, device=u.device) - (length - lengths[:, None])
            u = u.gather(1, source.clamp(min=0)[..., None].expand_as(u)).masked_fill((source < 0)[..., None], 0.0)
        x = system.gather(u)
        return x if x0 is None else x + system.advance(x0, length if lengths is None else lengths)

    def _forward_by_scale(
        self, u: Tensor, state: Tensor | None, lengths: Tensor | None, scale: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        if scale.shape[1] != 1:
            raise UsageError(
                f"{type(self).__name__} runs as a convolution, so its step cannot vary along the sequence: dt_scale is "
                f"a number or of shape ({u.shape[0]},). For a step per position use a layer that scans, S5 or Fractal."
            )
        scale = scale.flatten()
        # A scale that is differentiated gets a kernel of its own: equal values are different variables.
        groups = scale.detach().unique(return_inverse=True)[1]
        if scale.requires_grad:
            groups = torch.arange(len(scale), device=scale.device)
        rows, outputs, states = [], [], []
        for group in range(int(groups.max()) + 1):
            row = (groups == group).nonzero().flatten()
            y, x = self._forward(
                u[row],
                None if state is None else state[row],
                None if lengths is None else lengths[row],
                scale[row[0]],
            )
            rows.append(row)
            outputs.append(y)
            states.append(x)
        back = torch.cat(rows).argsort()
        return torch.cat(outputs)[back], torch.cat(states)[back] if self.causal else None

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

    def _step_system(self) -> System:
        trained = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        if trained or torch.compiler.is_compiling() or self.D.is_inference():
            return self.system()
        if self._step_cache is None or not self._step_cache.holds(self._parameters):
            self._step_cache = StepCache(self._parameters, self.system())
        return self._step_cache.matrices
