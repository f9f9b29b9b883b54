"""The diagonal MIMO state space layer that S5, LRU and FRACTAL share: everything but where the modes come from.

    x_k = Lambda_bar x_{k-1} + gamma B_tilde u_k,    y_k = g Re(C_tilde x_k) + D u_k

Suffixes: B batch, L length, H features, P modes. g is 2 when one of each conjugate pair is kept, else 1.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..ops.fused import ssm
from .base import SequenceLayer, valid_mask

_LOW_PRECISION = (torch.float16, torch.bfloat16)


class StepMatrices(NamedTuple):
    """One step as real products: B u = u @ input and y = x @ output + D u, x seen as interleaved (re, im)."""

    Lambda: Tensor  # (P,), Lambda_bar where the step does not depend on time
    input: Tensor  # (H, 2P)
    output: Tensor  # (2P, H)


class StepCache:
    """What a step is made of, and whether the parameters that it came from have changed since.

    In-place writes show in a parameter's version, replaced ones in its identity or address. Writes through `.data`
    leave no such trace, so a sample of every parameter's values is compared as well.
    """

    _SAMPLES = 32

    def __init__(self, parameters: Mapping[str, nn.Parameter | None], matrices: Any):
        self.matrices = matrices
        self._seen = []
        for name, parameter in parameters.items():
            if parameter is not None:
                flat = parameter.detach().reshape(-1)
                view = flat[:: max(1, flat.numel() // self._SAMPLES)]
                self._seen.append((name, parameter, parameter._version, parameter.data_ptr(), view, view.clone()))

    def holds(self, parameters: Mapping[str, nn.Parameter | None]) -> bool:
        """Whether the matrices still belong to these parameters."""
        for name, parameter, version, address, view, sample in self._seen:
            if (
                parameters[name] is not parameter
                or parameter._version != version
                or parameter.data_ptr() != address
                or not torch.equal(view, sample)
            ):
                return False
        return True


class DiagonalSSM(SequenceLayer):
    """A linear layer over time with a diagonal complex state, many inputs and many outputs.

    A subclass says how the modes go from one position to the next (`_discretise`). Cost per position and direction:
    4 P H multiply-adds, and P complex ones for the scan; memory O(B L (H + P)), never O(B L H P).

    The backward direction of a bidirectional layer is the same system run over the reversed sequence, with an output
    matrix of its own; both directions see the present input, as in S5.

    Precision: parameters and the whole recurrence stay in float32 (or float64) under autocast and after
    `module.bfloat16()` or `.half()`, which leave this layer's parameters as they are; a low-precision u is
    computed in float32 and y is returned in u's dtype.

    Args:
        B: (P, H) complex, initial B_tilde.
        C: (H, P) complex, initial C_tilde.
        D: (H,) real, initial feedthrough.
        C_backward: (H, P) complex for a bidirectional layer, None for a causal one.
        conj_sym: each mode stands for itself and its conjugate, so y takes twice the real part.
    """

    roles: ClassVar[dict[str, str]] = {"B": "B", "C": "C", "C_backward": "C", "D": "D"}

    def __init__(self, B: Tensor, C: Tensor, D: Tensor, C_backward: Tensor | None = None, conj_sym: bool = True):
        super().__init__()
        self.n_modes, self.d_model = B.shape
        self.bidirectional = C_backward is not None
        self.conj_sym = conj_sym
        self.B = real_parameter(B)
        self.C = real_parameter(C)
        self.C_backward = real_parameter(C_backward) if C_backward is not None else None
        self.D = real_parameter(D)
        self._step_cache: StepCache | None = None

    @property
    def causal(self) -> bool:
        """Whether the layer can carry a state: not when it is bidirectional."""
        return not self.bidirectional

    @property
    def B_tilde(self) -> Tensor:
        """(P, H) complex input matrix in the eigenbasis."""
        return torch.view_as_complex(self.B)

    @property
    def C_tilde(self) -> Tensor:
        """(H, P) complex output matrix in the eigenbasis (of the forward direction)."""
        return torch.view_as_complex(self.C)

    @abstractmethod
    def _discretise(self, dt_scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lambda_bar, gamma and B_tilde: (P, H) complex.

        Lambda_bar and gamma have shape (P,), (B, 1, P), (1, L, P) or (B, L, P); dt_scale is a number or a 0-d tensor,
        or has shape (B, 1, 1) or (B, L, 1).
        """

    def forward(
        self, u: Tensor, state: Tensor | None = None, lengths: Tensor | None = None, dt_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """The layer over a sequence; see `SequenceLayer.forward`. The state is x: (B, P) complex."""
        self._check_input(u, state, lengths)
        self._check_state(state, u.shape[0])
        check_lengths(lengths, u.shape[1])
        with full_precision(u.device):
            scale = broadcast_dt_scale(dt_scale, u)
            modes = self._discretise(scale.to(self.D.dtype) if isinstance(scale, Tensor) else scale)
            y, x_last = self._run(self._as_computed(u), *modes, state, lengths)
        return y.to(u.dtype), x_last

    def step(self, u_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: u_t (B, H) and x (B, P) to y_t (B, H) and the next x.

        Without gradients the discretised matrices are kept from one step to the next, until a parameter changes.
        """
        self._check_step(u_t, state)
        with full_precision(u_t.device):
            matrices = self._step_matrices()
            y, x = self._advance(matrices, self._as_computed(u_t), state, matrices.Lambda)
        return y.to(u_t.dtype), x

    def _advance(
        self, matrices: StepMatrices, u: Tensor, x: Tensor, Lambda_bar: Tensor, gamma: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """y and x one position on; gamma is the gain of the input where `matrices.input` does not hold it."""
        Bu = torch.view_as_complex((u @ matrices.input).view(u.shape[0], -1, 2))
        x = torch.addcmul(Bu if gamma is None else gamma * Bu, Lambda_bar, x)
        return torch.addmm(self.D * u, torch.view_as_real(x).view(u.shape[0], -1), matrices.output), x

    def initial_state(self, batch_size: int) -> Tensor:
        """The state of rest: zeros (B, P), complex."""
        if not self.causal:
            return super().initial_state(batch_size)
        return torch.zeros(batch_size, self.n_modes, dtype=self.D.dtype.to_complex(), device=self.D.device)

    def _run(
        self,
        u: Tensor,
        Lambda_bar: Tensor,
        gamma: Tensor,
        B_tilde: Tensor,
        x0: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        if lengths is not None:
            # A zeroed tail leaves the backward direction at rest when it reaches the last valid position.
            u = u.masked_fill(~valid_mask(lengths, u.shape[1])[..., None], 0.0)
        gain = None
        if gamma.dim() == 1:
            B_tilde = gamma[:, None] * B_tilde
        else:
            gain = gamma
        y, x_last = ssm(
            u,
            Lambda_bar,
            B_tilde,
            self.C_tilde,
            x0,
            conj_sym=self.conj_sym,
            gamma=gain,
            lengths=None if self.bidirectional else lengths,
        )
        if self.C_backward is not None:
            C = torch.view_as_complex(self.C_backward)
            y = y + ssm(u, Lambda_bar, B_tilde, C, reverse=True, conj_sym=self.conj_sym, gamma=gain)[0]
        return torch.addcmul(y, self.D, u), x_last if self.causal else None

    def _step_matrices(self) -> StepMatrices:
        trained = torch.is_grad_enabled() and any(p.requires_grad for p in self._parameters.values() if p is not None)
        if trained or torch.compiler.is_compiling() or self.D.is_inference():
            return self._build_step()
        if self._step_cache is None or not self._step_cache.holds(self._parameters):
            self._step_cache = StepCache(self._parameters, self._build_step())
        return self._step_cache.matrices

    def _build_step(self) -> StepMatrices:
        Lambda_bar, gamma, B_tilde = self._discretise(1.0)
        return self._products(Lambda_bar, gamma[:, None] * B_tilde)

    def _products(self, Lambda: Tensor, B: Tensor) -> StepMatrices:
        gain = 2.0 if self.conj_sym else 1.0
        C = (self.C * self.C.new_tensor([gain, -gain])).flatten(1)
        return StepMatrices(
            Lambda, torch.view_as_real(B).transpose(1, 2).flatten(0, 1).t().contiguous(), C.t().contiguous()
        )

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
        if state is not None and (not isinstance(state, Tensor) or state.shape != (batch_size, self.n_modes)):
            given = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
            raise UsageError(
                f"{type(self).__name__} takes a state of shape ({batch_size}, {self.n_modes}), got {given}. "
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


def check_lengths(lengths: Tensor | None, length: int) -> None:
    """Refuse lengths outside 1..length (on a CPU; elsewhere the look would wait for the device)."""
    if lengths is None or lengths.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if bool((lengths < 1).any()) or bool((lengths > length).any()):
        raise UsageError(f"lengths must lie in 1..{length}, got {lengths.tolist()}.")


def broadcast_dt_scale(dt_scale: float | Tensor, u: Tensor) -> float | Tensor:
    """A number as it is; (B,) as (B, 1, 1); (B, L) as (B, L, 1).

    Raises:
        UsageError: another shape, a number that is not positive, or (seen on a CPU only) a negative element.
    """
    if not isinstance(dt_scale, Tensor):
        if not dt_scale > 0:
            raise UsageError(f"dt_scale is a factor on the step and must be positive, got {dt_scale}.")
        return dt_scale
    batch, length = u.shape[:2]
    if tuple(dt_scale.shape) not in ((), (batch,), (batch, length)):
        raise UsageError(
            f"dt_scale must be a number or of shape ({batch},), one a sample, or ({batch}, {length}), one a position; "
            f"got {tuple(dt_scale.shape)}."
        )
    if dt_scale.device.type == "cpu" and not torch.compiler.is_compiling() and bool((dt_scale < 0).any()):
        raise UsageError("dt_scale is a factor on the step and must not be negative.")
    if dt_scale.dim() == 0:
        return dt_scale
    return dt_scale.reshape(batch, -1, 1)
