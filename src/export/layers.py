"""Layers in real arithmetic: the same maps and the same interface, for programs without complex numbers.

States are real and batch first; complex ones get a last axis (re, im). Everything that depends only on the parameters
is computed once, in float64, and kept as constants: these layers are for inference and cannot be trained.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UsageError
from ..models.base import SequenceLayer, valid_mask
from ..models.dss import DSS
from ..models.dss.system import SoftmaxSystem
from ..models.fractal import Fractal
from ..models.fractal.scaled_time import ScaledState
from ..models.s4.system import LowRankSystem
from ..models.siso import DiagonalSystem, SISOLayer, System
from ..models.ssm import DiagonalSSM
from ..models.stateful import StatefulLayer
from .chunks import ChunkedSystem
from .complex_pairs import rotate
from .matrices import of_modes, of_system
from .varying import gates_of, run


def real_layer(layer: SequenceLayer, dt_scale: float | None = 1.0) -> SequenceLayer:
    """The layer in real arithmetic.

    Args:
        layer: a layer of this package; a SequenceLayer of another kind is copied unchanged.
        dt_scale: factor on its step for all calls; None makes it an argument of every call (S5, Fractal, Attention).
    Returns:
        A layer with the same interface, in eval mode, that shares no memory with the given one. Its state has a last
        axis (re, im): (B, P, 2) for S5, LRU and Fractal (with time="ltv" a ScaledState of it and the elapsed time (B,),
        float64), (B, H, P, 2) for S4, S4D, DSS and FractalConv; a Cache for Attention.
    Raises:
        UsageError: a layer that has no such form; the message says what to do instead.
    """
    twin = copy.deepcopy(layer).requires_grad_(False).eval()
    if not isinstance(layer, StatefulLayer):
        return twin
    dtype, twin = layer.D.dtype, twin.cpu().double()
    with torch.no_grad():
        if isinstance(twin, DiagonalSSM):
            if dt_scale is None or (isinstance(twin, Fractal) and twin.time == "ltv"):
                return RealVarying(twin, dtype, dt_scale)
            return RealMIMO(twin, dtype, dt_scale)
        if isinstance(twin, SISOLayer):
            return RealSISO(twin, dtype, dt_scale)
    raise UsageError(
        f"{type(layer).__name__} is a StatefulLayer of a kind that export does not know. Derive it from DiagonalSSM or "
        f"SISOLayer, or write its step in real tensors and derive it from SequenceLayer."
    )


class RealLayer(SequenceLayer):
    """Common base: sizes, buffers, the initial state, and the dt_scale that the layer was built for."""

    D: Tensor

    def __init__(self, layer: StatefulLayer, dtype: torch.dtype, dt_scale: float | None):
        super().__init__()
        self.d_model, self._d_output, self._causal = layer.d_model, layer.d_output, layer.causal
        self.bidirectional = layer.bidirectional
        self._state_shape = (*layer._state_shape, 2)
        self._dtype, self._dt_scale = dtype, dt_scale
        self.keep(D=layer.D)

    def keep(self, **constants: Tensor) -> None:
        """Register constants in the precision of the layer, as buffers that are not part of the state_dict."""
        for name, value in constants.items():
            self.register_buffer(name, value.detach().to(self._dtype).contiguous(), persistent=False)

    @property
    def d_output(self) -> int:
        """As in the original layer."""
        return self._d_output

    @property
    def causal(self) -> bool:
        """As in the original layer."""
        return self._causal

    def initial_state(self, batch_size: int) -> Any:
        """The state at rest: zeros (batch_size, *state shape), last axis (re, im)."""
        if not self.causal:
            return super().initial_state(batch_size)
        return torch.zeros(batch_size, *self._state_shape, dtype=self._dtype, device=self.D.device)

    def _device(self) -> torch.device:
        return self.D.device

    def _prepared(self, u: Tensor, state: Any, lengths: Tensor | None, dt_scale: Any, return_state: bool) -> Tensor:
        """The checked input, zero at padded positions."""
        self._check_input(u, state, lengths, return_state)
        self._check_scale(dt_scale)
        if lengths is None:
            return u
        return u.masked_fill(~valid_mask(lengths, u.shape[1])[..., None], 0.0)

    def _check_step(self, dt_scale: Any) -> None:
        if not self.causal:
            raise UsageError(f"{type(self).__name__} cannot be stepped. {self._why_not_causal()}")
        self._check_scale(dt_scale)

    def _check_scale(self, dt_scale: Any) -> None:
        if self._dt_scale is not None and (isinstance(dt_scale, Tensor) or dt_scale != self._dt_scale):
            given = "a tensor" if isinstance(dt_scale, Tensor) else dt_scale
            raise UsageError(
                f"This real form was built for dt_scale={self._dt_scale} and got {given}. Build another one: "
                f"real_layer(layer, dt_scale=...)."
            )

    def _ends(self, u: Tensor, lengths: Tensor | None) -> Tensor:
        return torch.full((u.shape[0],), u.shape[1], device=u.device) if lengths is None else lengths.long()


class RealMIMO(RealLayer):
    """S5, LRU and Fractal with one step for all positions."""

    def __init__(self, layer: DiagonalSSM, dtype: torch.dtype, dt_scale: float):
        super().__init__(layer, dtype, dt_scale)
        Lambda_bar, gamma, B_tilde = layer._discretise(dt_scale)
        self.modes = ChunkedSystem(of_modes(Lambda_bar), dtype)
        self.keep(Lambda=torch.view_as_real(Lambda_bar), **products(layer, gamma[:, None] * B_tilde))

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See `SequenceLayer.forward`."""
        u = self._prepared(u, state, lengths, dt_scale, return_state)
        v = (u @ self.input).unflatten(-1, (-1, 2))
        x, states = self.modes(v, state)
        y = x.flatten(2) @ self.output + self.D * u
        if self.bidirectional:
            return y + self.modes(v.flip(1))[0].flip(1).flatten(2) @ self.output_backward, None
        return y, self.modes.state_after(v, states, self._ends(u, lengths)) if return_state else None

    def step(self, u_t: Tensor, state: Tensor, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
        """See `SequenceLayer.step`."""
        self._check_step(dt_scale)
        x = rotate(state, self.Lambda) + (u_t @ self.input).unflatten(-1, (-1, 2))
        return x.flatten(1) @ self.output + self.D * u_t, x


class RealVarying(RealLayer):
    """S5 and Fractal with a different step at every position, and the 1 / t system."""

    def __init__(self, layer: DiagonalSSM, dtype: torch.dtype, dt_scale: float | None):
        super().__init__(layer, dtype, dt_scale)
        self.gates, B_tilde = gates_of(layer)
        self.keep(**products(layer, B_tilde))

    def initial_state(self, batch_size: int) -> Any:
        """Zeros as in other layers; for the 1 / t system a ScaledState, with elapsed (batch_size,) float64."""
        x = super().initial_state(batch_size)
        return ScaledState(x, x.new_zeros(batch_size, dtype=torch.float64)) if self.gates.scaled else x

    def forward(
        self,
        u: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """See `SequenceLayer.forward`; dt_scale may be (B,) or (B, L)."""
        u = self._prepared(u, state, lengths, dt_scale, return_state)
        batch = u.shape[0]
        x0, elapsed = u.new_zeros(batch, *self._state_shape), None
        if self.gates.scaled:
            elapsed = u.new_zeros(batch, dtype=torch.float64)
        if state is not None:
            x0, elapsed = state if self.gates.scaled else (state, None)
        lasting = _durations(dt_scale, u)
        until = lasting.cumsum(dim=1)
        before = None if elapsed is None else elapsed[:, None] + until - lasting
        decay, gain = (gate.to(u.dtype) for gate in self.gates(lasting, before))
        v = rotate((u @ self.input).unflatten(-1, (-1, 2)), gain)
        states = run(decay, v, x0)
        y = states[1:].transpose(0, 1).flatten(2) @ self.output + self.D * u
        if self.bidirectional:
            back = run(decay.flip(1), v.flip(1), x0)[1:].transpose(0, 1).flip(1)
            return y + back.flatten(2) @ self.output_backward, None
        if not return_state:
            return y, None
        ends, rows = self._ends(u, lengths), torch.arange(batch, device=u.device)
        x = states[ends, rows]
        return y, x if elapsed is None else ScaledState(x, elapsed + until.gather(1, ends[:, None] - 1)[:, 0])

    def step(self, u_t: Tensor, state: Any, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Any]:
        """See `SequenceLayer.step`; dt_scale may be (B,)."""
        self._check_step(dt_scale)
        x, elapsed = state if self.gates.scaled else (state, None)
        lasting = _durations(dt_scale, u_t[:, None])[:, 0]
        decay, gain = (gate.to(u_t.dtype) for gate in self.gates(lasting, elapsed))
        x = rotate(x, decay) + rotate((u_t @ self.input).unflatten(-1, (-1, 2)), gain)
        y = x.flatten(1) @ self.output + self.D * u_t
        return y, x if elapsed is None else ScaledState(x, elapsed + lasting)


class RealSISO(RealLayer):
    """S4, S4D, DSS and FractalConv."""

    def __init__(self, layer: SISOLayer, dtype: torch.dtype, dt_scale: float | None):
        super().__init__(layer, dtype, dt_scale)
        if dt_scale is None:
            raise UsageError(
                f"{type(layer).__name__} takes no dt_scale as an input of the exported program; S5, Fractal and "
                f"Attention do. Export it for one number: dt_scale=1.0."
            )
        if isinstance(layer, DSS) and layer.l_max is None:
            raise UsageError(
                "DSS without l_max is a different function at every length, and has no recurrence to export. Build it "
                "with l_max, the longest sequence of the data."
            )
        system, D = layer.system(dt_scale), layer.D.view(layer.channels, layer.d_model)
        forward = dataclasses.replace(system, C=system.C[: layer.channels])
        self.system = ChunkedSystem(of_system(forward, D), dtype)
        self.backward_lag = layer.backward_lag
        if layer.bidirectional:
            backward = dataclasses.replace(system, C=system.C[layer.channels :])
            self.system_backward = ChunkedSystem(of_system(backward, torch.zeros_like(D)), dtype)
        else:
            self.keep(**one_step(forward))

    def forward(
        self,
        u: Tensor,
        state: Tensor | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See `SequenceLayer.forward`."""
        u = self._prepared(u, state, lengths, dt_scale, return_state)
        v = u[..., None]
        y, states = self.system(v, None if state is None else state.flatten(-2))
        if self.bidirectional:
            back = self.system_backward(v.flip(1))[0].flip(1)
            # As published, backward kernels begin at lag -1, so that the present input is counted once.
            y = y + (back if self.backward_lag == 0 else F.pad(back, (0, 0, 0, 0, 0, 1))[:, 1:])
        y = y.transpose(2, 3).flatten(2)
        if self.bidirectional or not return_state:
            return y, None
        return y, self.system.state_after(v, states, self._ends(u, lengths)).unflatten(-1, (-1, 2))

    def step(self, u_t: Tensor, state: Tensor, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
        """See `SequenceLayer.step`."""
        self._check_step(dt_scale)
        x = rotate(state, self.Lambda) + self.input * u_t[..., None, None]
        feedback = (state[:, None] * self.Q).sum((-2, -1))  # (B, rank, H)
        x = x - (feedback[..., None, None] * self.P).sum(1)
        y = (x[:, None] * self.output).sum((-2, -1)) + self.D.view(-1, self.d_model) * u_t[:, None]
        return y.flatten(1), x


def products(layer: DiagonalSSM, B: Tensor) -> dict[str, Tensor]:
    """The two matrices of a MIMO diagonal layer: input (H, 2 P) and output (2 P, H).

    B u = u @ input and C x = x @ output on states (..., P, 2) seen as (..., 2 P).
    """

    def output(C: Tensor) -> Tensor:
        return (C * C.new_tensor([layer._conj_factor, -layer._conj_factor])).flatten(1).T

    found = {"input": torch.view_as_real(B).transpose(1, 2).flatten(0, 1).T, "output": output(layer._output(layer.C))}
    if layer.C_backward is None:
        return found
    return {**found, "output_backward": output(layer._output(layer.C_backward))}


def one_step(system: System) -> dict[str, Tensor]:
    """x <- Lambda x - sum_r P_r (Q_r . x) + input u and y = output . x, on states (H, P, 2).

    Lambda and input are (H, P, 2), output is (c, H, P, 2), P and Q are (rank, H, P, 2); rank 0 for a diagonal system.
    """
    if isinstance(system, SoftmaxSystem):
        system = system._carried
    if isinstance(system, LowRankSystem):
        Lambda, B_bar, P, Q, C = system._step_tensors
        Q = Q[:, 0]
    elif isinstance(system, DiagonalSystem):
        Lambda, B_bar, C = system._step_tensors
        P, Q = C[:0], C[:0]
    else:
        raise UsageError(
            f"A {type(system).__name__} has no step in real arithmetic; DiagonalSystem, LowRankSystem and "
            f"SoftmaxSystem have. Export the layer's forward, or build the layer on one of these."
        )
    pairs = {"Lambda": Lambda, "input": B_bar, "P": P, "Q": Q, "output": C}
    return {name: torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for name, t in pairs.items()}


def _durations(dt_scale: float | Tensor, u: Tensor) -> Tensor:
    """(B, L) float64, for a number or for dt_scale (B,) or (B, L)."""
    batch, length = u.shape[:2]
    if not isinstance(dt_scale, Tensor):
        return torch.full((batch, length), float(dt_scale), dtype=torch.float64, device=u.device)
    scale = dt_scale.double()
    return (scale[:, None] if scale.dim() == 1 else scale).expand(batch, length)
