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
    Nothing of size (H, P, L) or (B, L, H, P) is formed. With c channels every feature's system is read out c times, by
    rows C of their own: the output is (B, L, c H), channel by channel, for the block's linear map to join. A
    bidirectional layer has a second kernel for the future. As in the published S4 it starts at lag -1, so that the
    present input is counted once; with backward_lag=0 it starts at the present input too, and the layer is symmetric:
    with equal C in both directions, reversing the input reverses the output.

    Precision: as in `StatefulLayer`; the transition is computed in float64, kernels, states and FFT in the parameters'
    precision.

    Every output comes from a transform of the whole sequence: a NaN or an infinite value in one input reaches earlier
    outputs of its sample and feature too, unlike in a scan or a step.

    torch.compile and torch.export see the kernel, the state and the convolution as one operator each, complex numbers
    inside; their backward computes kernel and state again. A dt_scale of one a sample breaks the graph.

    `dt_scale` may be a number or one a sample; each value that occurs costs a kernel. A step of its own per position
    needs a layer that scans (S5, Fractal).
    """

    roles: ClassVar[dict[str, str]] = {"D": "D"}
    # Attributes beside the tensors named in `roles` that decide what `system` is; a subclass adds its own to both.
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
        """The discrete system that the parameters stand for, with every step multiplied by dt_scale.

        dt_scale is a scalar, or (B, 1) for a system of each sample's own, of which only `step` is used.
        """

    def kernel(self, length: int, dt_scale: float | Tensor = 1.0) -> Tensor:
        """The convolution kernels: (directions c, H, length) real, lags 0, 1, ... forward and -1, -2, ... backward.

        With backward_lag=0 the lags backward are 0, -1, ... The c channels forward come first, then those backward. D
        is not in it. Raises UsageError for a length below 1.
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
        """The layer over a sequence; see `SequenceLayer.forward`. y is (B, L, c H), the state x (B, H, P) complex."""
        self._check_input(u, state, lengths, return_state)
        scale = broadcast_dt_scale(dt_scale, u)
        refuse_transforms(type(self).__name__)
        _refuse_traces(type(self).__name__)
        if u.shape[0] == 0:
            return self._forward_nothing(u, state, lengths, dt_scale, return_state)
        compiling = torch.compiler.is_compiling()
        if isinstance(scale, Tensor) and scale.dim():
            # Which samples share a step is known only when their values are.
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
        """A batch of no samples, as none of one: every parameter gets a gradient of zeros."""

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
        # Without samples any step will do.
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
        # The feedthrough is a kernel at lag 0, and costs nothing there. A slice of all lags but the first would bind an
        # exported program to lengths other than 2.
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
        # A scale that is differentiated gets a kernel of its own: equal values are different variables.
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
    """A trace of torch.jit would keep the kernel of one length, silently."""
    if torch.jit.is_tracing():
        raise UsageError(
            f"torch.jit.trace cannot follow {name}, whose kernel depends on the length. Use torch.export "
            f"(fractal_ssm.export.export_program(real_forward(layer))), or trace fractal_ssm.export.real_step(layer)."
        )
