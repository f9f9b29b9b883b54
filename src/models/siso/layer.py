"""H independent linear systems run over sequences, chunks with a carried state, padded batches and single steps."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError
from ...ops.convolution import convolve
from ...ops.runtime.autograd import refuse_transforms
from ...ops.step import NativeStep
from ..base import broadcast_dt_scale, valid_mask
from ..options import check_length, check_sizes
from ..ssm_init import feedthrough
from ..stateful import Scale, StatefulLayer, full_precision, real_parameter
from .compiled import OpaqueSystem, register_kind
from .system import System


class SISOLayer(StatefulLayer):
    """H independent systems, one per feature, run by FFT convolution; D is their feedthrough.

    Cost of a forward pass: O(B H L log L) for the convolution, plus the kernel, which does not depend on the batch.
    No tensor of size (H, P, L) or (B, L, H, P) is formed. With c channels every feature's system has c outputs, each
    with its own row of C: the output is (B, L, c H), channel by channel, and the linear map of the mixer combines them.
    A bidirectional layer has a second kernel over future inputs. As in the published S4 it starts at lag -1, so that
    the present input counts once. With backward_lag=0 it includes the present input, and the layer is symmetric: with
    equal C in both directions, reversing the input reverses the output.

    Precision: as in `StatefulLayer`; the transition is computed in float64, kernels, states and FFT in the parameters'
    precision.

    Every output comes from a transform of the whole sequence: a NaN or an infinite input also affects earlier outputs
    of its sample and feature, unlike in a scan or a step.

    For torch.compile and torch.export the kernel, the state and the convolution are one opaque operator each; their
    backward passes recompute kernel and state. A dt_scale with one value per sample breaks the graph.

    `dt_scale` is a number or has shape (B,); each distinct value costs a kernel. A separate step for each position
    needs a layer that scans (S5, Fractal).
    """

    roles: ClassVar[dict[str, str]] = {"D": "D"}
    # Attributes that determine `system`, beside the tensors named in `roles`; a subclass adds its own to both.
    options: ClassVar[tuple[str, ...]] = ("d_model", "bidirectional", "channels")

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        register_kind(cls)

    def __init__(
        self,
        d_model: int,
        bidirectional: bool,
        state_shape: tuple[int, ...],
        channels: int = 1,
        backward_lag: int = 1,
    ):
        check_sizes(type(self).__name__, channels=channels)
        _check_backward_lag(type(self).__name__, backward_lag, bidirectional)
        super().__init__(d_model, bidirectional, state_shape)
        self.channels, self.backward_lag = channels, backward_lag
        D = feedthrough(channels * d_model)
        self.D: nn.Parameter = real_parameter(D if channels == 1 else D.view(channels, d_model))

    @property
    def d_output(self) -> int:
        """c H, channel by channel."""
        return self.channels * self.d_model

    @abstractmethod
    def system(self, dt_scale: float | Tensor = 1.0) -> System:
        """The discrete system for the current parameters, with every step dt multiplied by dt_scale.

        dt_scale is a scalar, or (B, 1) for a separate system for each sample, of which only `step` is used.
        """

    def kernel(self, length: int, dt_scale: float | Tensor = 1.0) -> Tensor:
        """The convolution kernels: (directions c, H, length) real, lags 0, 1, ... forward and -1, -2, ... backward.

        With backward_lag=0 the lags backward are 0, -1, ... The c channels forward come first, then those backward. The
        kernels do not include D. Raises UsageError for a length below 1.
        """
        check_length(type(self).__name__, length=length)
        refuse_transforms(type(self).__name__)
        with full_precision(self.D.device):
            return self.system(dt_scale).kernel(length)

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer; see `SequenceLayer.forward`. y is (B, L, c H), the state x is (B, H, P) complex."""
        self._check_input(u, state, lengths, return_state)
        scale = broadcast_dt_scale(dt_scale, u)
        refuse_transforms(type(self).__name__)
        _refuse_traces(type(self).__name__)
        if u.shape[0] == 0:
            return self._forward_nothing(u, state, lengths, dt_scale, return_state)
        compiling = torch.compiler.is_compiling()
        if isinstance(scale, Tensor) and scale.dim():
            # Grouping the samples by dt_scale needs the values, which a graph does not have.
            by_scale = torch.compiler.disable(self._forward_by_scale) if compiling else self._forward_by_scale
            return by_scale(u, state, lengths, scale, return_state)
        with full_precision(u.device):
            system = OpaqueSystem(self, scale) if compiling else self.system(scale)
            y, x_last = self._run(self._as_computed(u), state, lengths, system, return_state)
        return y.to(u.dtype), x_last

    def _forward_nothing(
        self,
        u: Tensor,
        state: Tensor | None,
        lengths: Tensor | None,
        dt_scale: float | Tensor,
        return_state: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Run an empty batch as a batch of one sample, then drop it: every parameter gets a zero gradient."""

        def with_one(value: Tensor | None, filled: float) -> Tensor | None:
            return None if value is None else torch.cat((value, value.new_full((1, *value.shape[1:]), filled)))

        if isinstance(dt_scale, Tensor) and dt_scale.dim():
            dt_scale = with_one(dt_scale, 1.0)
        padded = with_one(u, 0.0), with_one(state, 0.0), with_one(lengths, 1.0)
        y, x_last = self.forward(*padded, dt_scale, return_state)
        return y[:0], None if x_last is None else x_last[:0]

    def _build_step(self, scale: Scale) -> System:
        if not isinstance(scale, Tensor) or scale.dim() == 0:
            return self.system(1.0 if scale is None else scale)
        # An empty batch works with any step.
        return self.system(scale[:, None]) if len(scale) else self.system()

    def _build_native(self, scale: Scale) -> NativeStep | None:
        return self._build_step(scale).native_step(self.D)

    def _advance(self, parts: System, u: Tensor, state: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
        x, y = parts.step(state, u)
        if self.channels > 1:
            return y + (self.D * u[:, None]).flatten(1), x
        return torch.addcmul(y, self.D, u), x

    def _run(
        self, u: Tensor, x0: Tensor | None, lengths: Tensor | None, system: System, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        length = u.shape[1]
        if lengths is not None:
            u = u.masked_fill(~valid_mask(lengths, length)[..., None], 0.0)
        kernel = system.kernel(length)
        forward, backward = kernel[: self.channels].flatten(0, 1), kernel[self.channels :].flatten(0, 1)
        # Adding the feedthrough to the kernel at lag 0 costs nothing. Padded, because a slice of all lags but the first
        # would exclude length 2 from an exported program.
        present = self.D.reshape(-1, 1)
        if self.bidirectional and self.backward_lag == 0:
            present, backward = present + backward[:, :1], backward[:, 1:]
        forward = forward + F.pad(present, (0, length - 1))
        copies = u if self.channels == 1 else u.repeat(1, 1, self.channels)
        y = convolve(copies, forward, backward if self.bidirectional and backward.shape[1] else None)
        if x0 is not None:
            y = y + system.free_response(x0, length)
        return y, system.last_state(u, x0, lengths) if self.causal and return_state else None

    def _forward_by_scale(
        self, u: Tensor, state: Tensor | None, lengths: Tensor | None, scale: Tensor, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        if scale.shape[1] != 1:
            raise UsageError(
                f"{type(self).__name__} runs as a convolution, so its step cannot vary along the sequence: dt_scale is "
                f"a number or of shape ({u.shape[0]},). For a step per position use a layer that scans, S5 or Fractal."
            )
        scale = scale.flatten()
        # If the scale needs a gradient each sample gets its own kernel, because equal values are different variables.
        groups = scale.detach().unique(return_inverse=True)[1]
        if scale.requires_grad:
            groups = torch.arange(len(scale), device=scale.device)
        rows, outputs, states = [], [], []
        for group in range(int(groups.max()) + 1):
            row = (groups == group).nonzero().flatten()
            y, x = self.forward(
                u[row],
                None if state is None else state[row],
                None if lengths is None else lengths[row],
                scale[row[0]],
                return_state,
            )
            rows.append(row)
            outputs.append(y)
            states.append(x)
        back = torch.cat(rows).argsort()
        return torch.cat(outputs)[back], torch.cat(states)[back] if self.causal and return_state else None


def _check_backward_lag(layer: str, backward_lag: int, bidirectional: bool) -> None:
    if type(backward_lag) is not int or backward_lag not in (0, 1):
        raise UsageError(
            f"{layer} takes backward_lag=1, as published, or 0, which counts the present input in both directions, got "
            f"{backward_lag!r}."
        )
    if backward_lag == 0 and not bidirectional:
        raise UsageError(
            f"{layer} with backward_lag=0 needs bidirectional=True: one direction has no lags backward. Leave it out."
        )


def _refuse_traces(name: str) -> None:
    """Refuse torch.jit.trace, which would silently store the kernel of one length."""
    if torch.jit.is_tracing():
        raise UsageError(
            f"torch.jit.trace cannot follow {name}, whose kernel depends on the length. Use torch.export "
            f"(fractal_ssm.export.export_program(real_forward(layer))), or trace fractal_ssm.export.real_step(layer)."
        )
