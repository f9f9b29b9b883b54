"""The contract of a sequence layer: arguments, results and guarantees of every layer."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import UsageError
from ..ops.scan.packed import Rows, checked_boundaries
from .marks import MarkedModule
from .options import check_flags

_LARGEST_BATCH = 2**31 - 1
# Factors on the step that stay within the range of float32.
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-30, 1e30


class SequenceLayer(MarkedModule, ABC):
    """A map from sequences (B, L, H) to sequences (B, L, d_output), with d_output usually H, that may carry a state.

    Guarantees, tested for every registered layer:
      - a causal layer gives the same outputs and gradients however the sequence is cut into chunks, when the state
        returned for one chunk is passed to the next;
      - `step` equals `forward` on the same inputs;
      - inputs at positions from `lengths` on do not change the valid outputs or the state, in either direction;
      - no complex tensor in the state dict, and no entry whose shape depends on the sequence length.

    Attributes:
        d_model: H, features of the input.
        roles: name -> role of each parameter that the optimiser may treat differently, one of "A", "B", "C", "D", "dt"
            ("A" covers everything that determines the eigenvalues: Lambda, low-rank terms, alpha). Parameters that
            are not listed get the ordinary learning rate and weight decay. Parameters with the role A, B or dt carry
            the marks that other trainers read (`models/marks.py`).
    """

    roles: ClassVar[dict[str, str]] = {}
    d_model: int

    @property
    def d_output(self) -> int:
        """Features of the output: H, or c H for a layer with c channels, which the block's mixer combines."""
        return self.d_model

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether output t depends on inputs up to t only, so that the layer can carry a state and be stepped."""

    @abstractmethod
    def forward(
        self,
        u: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """Run the layer over a sequence.

        Args:
            u: (B, L, H), L >= 1.
            state: a state from `initial_state` or an earlier call; None starts from the zero state.
            lengths: (B,) int64 or int32, valid positions of each sample, 1..L; None means all L. Outputs at later
                positions are unspecified; the returned state is that after each sample's last valid position.
            dt_scale: factor on the layer's step dt: 2.0 for data sampled at half the rate of training; a tensor of
                shape (B,) or (B, L) if the layer supports a separate step per sample or per position.
            return_state: False if the state is not needed, as in training: a layer that runs as a convolution then
                skips computing it, which is two fifths of S4D's forward pass.
        Returns:
            y: (B, L, d_output) and the state after the sequence (None for a layer that is not causal, or with
            return_state=False).
        Raises:
            UsageError: a wrong shape, or something that this layer cannot do; the message says what to do instead.
        """

    def forward_packed(
        self,
        u: Tensor,
        cu_seqlens: Tensor,
        state: Any = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """Run the layer over S sequences of different lengths, concatenated into one sample.

        Equal to `forward` on each sequence alone. S5, LRU and Fractal process the packed positions in one pass; other
        layers (and Fractal with time="ltv") pad the sequences to the longest and process them as a batch.

        Args:
            u: (1, total, H).
            cu_seqlens: (S + 1,) int64 or int32, 0, ..., total: sequence s lies from cu_seqlens[s] to cu_seqlens[s + 1].
            state: a state of S samples; None starts from the zero state.
            dt_scale: a number, (S,) or, if the layer supports a step per position, (1, total).
            return_state: as for `forward`.
        Returns:
            y: (1, total, d_output) and the state of S samples after the end of each sequence (None as for `forward`).
        Raises:
            UsageError: invalid boundaries, and the errors of `forward`.
        """
        self._check_input(u, return_state=return_state)
        rows = Rows(checked_boundaries(type(self).__name__, cu_seqlens, u))
        if isinstance(dt_scale, Tensor) and dt_scale.dim() == 2:
            # Check the shape before splitting by position.
            broadcast_dt_scale(dt_scale, u)
            dt_scale = rows.unpack(dt_scale, fill=1.0)
        y, state = self.forward(rows.unpack(u), state, rows.lengths, dt_scale, return_state)
        return rows.pack(y), state

    def step(self, u_t: Tensor, state: Any, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Any]:
        """Advance by one position: u_t (B, H) and a state to y_t (B, d_output) and the next state.

        Equal to `forward` on (B, 1, H). dt_scale is a number or has shape (B,).
        """
        raise UsageError(f"{type(self).__name__} cannot be stepped. {self._why_not_causal()}")

    def initial_state(self, batch_size: int) -> Any:
        """The zero state for `batch_size` samples, on the layer's device.

        A tensor or a nested structure of tensors, each with one row per sample, for `fractal_ssm.state` to store,
        select and join.
        """
        raise UsageError(f"{type(self).__name__} carries no state. {self._why_not_causal()}")

    def _why_not_causal(self) -> str:
        """Advice appended to the two messages above."""
        if getattr(self, "bidirectional", False):
            return "It is bidirectional, so an output depends on later inputs: build it with bidirectional=False."
        return "Call forward on the whole sequence."

    def _check_input(
        self, u: Tensor, state: Any = None, lengths: Tensor | None = None, return_state: bool = True
    ) -> None:
        """Refuse a wrong shape, which might otherwise broadcast unnoticed."""
        name = type(self).__name__
        check_flags(name, return_state=return_state)
        self._check_tensor("u", u, f"(batch, length, {self.d_model})")
        if u.dim() != 3 or u.shape[-1] != self.d_model:
            raise UsageError(
                f"{name} takes u of shape (batch, length, {self.d_model}), got {tuple(u.shape)}. "
                f"Sequences stored as (batch, features, length) need u.transpose(1, 2)."
            )
        if u.shape[1] == 0:
            raise UsageError(f"{name} got an empty sequence, u of shape {tuple(u.shape)}; the length must be >= 1.")
        if state is not None and not self.causal:
            raise UsageError(f"{name} got a state but carries none. {self._why_not_causal()}")
        if lengths is None:
            return
        if not isinstance(lengths, Tensor):
            raise UsageError(
                f"{name} takes lengths as an int64 tensor of shape ({u.shape[0]},), got {type(lengths).__name__}: "
                f"torch.tensor(lengths)."
            )
        if tuple(lengths.shape) != (u.shape[0],):
            raise UsageError(
                f"{name} takes lengths of shape ({u.shape[0]},), one a sample, got {tuple(lengths.shape)}."
            )
        if lengths.dtype not in (torch.int64, torch.int32):
            raise UsageError(
                f"{name} takes lengths of int64 (or int32), counts of valid positions, got {lengths.dtype}. "
                f"From a mask of valid positions: mask.sum(1); from whole numbers: lengths.long()."
            )
        if lengths.device != u.device:
            raise UsageError(
                f"{name} needs lengths on the device of u, {u.device}, got {lengths.device}: lengths.to(u.device)."
            )

    def _check_tensor(self, what: str, given: Any, shape: str) -> None:
        """Refuse anything but a dense tensor on the layer's device."""
        if not isinstance(given, Tensor):
            raise UsageError(
                f"{type(self).__name__} takes {what} as a tensor of shape {shape}, got {type(given).__name__}. "
                f"Convert it: torch.as_tensor({what}, dtype=torch.float32)."
            )
        if given.layout != torch.strided:
            raise UsageError(
                f"{type(self).__name__} takes a dense {what}, got one of layout {given.layout}: {what}.to_dense()."
            )
        device = self._device()
        if device is not None and given.device != device:
            raise UsageError(
                f"{type(self).__name__} is on {device}, and {what} is on {given.device}. Move one of them: "
                f"{what}.to('{device}'), or layer.to('{given.device}')."
            )

    def _device(self) -> torch.device | None:
        """Device of the parameters; None for a layer without parameters."""
        first = next(self.parameters(), None)
        return None if first is None else first.device

    def _check_batch_size(self, batch_size: int) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, (numbers.Integral, torch.SymInt)):
            raise UsageError(
                f"{type(self).__name__}.initial_state takes a number of samples, an integer, got {batch_size!r}."
            )
        if isinstance(batch_size, int) and batch_size > _LARGEST_BATCH:
            raise UsageError(
                f"{type(self).__name__}.initial_state takes a number of samples up to {_LARGEST_BATCH}, got "
                f"{batch_size}. Step fewer at a time."
            )
        if batch_size < 0:
            raise UsageError(f"{type(self).__name__}.initial_state takes a number of samples >= 0, got {batch_size}.")


def valid_mask(lengths: Tensor, length: int) -> Tensor:
    """(B, length) bool, True at positions before each sample's `lengths`."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


def check_lengths(lengths: Tensor | None, length: int) -> None:
    """Refuse lengths outside 1..length (on a CPU only, because elsewhere the check would synchronise)."""
    if lengths is None or lengths.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if bool((lengths < 1).any()) or bool((lengths > length).any()):
        raise UsageError(f"lengths must lie in 1..{length}, got {lengths.tolist()}.")


def broadcast_dt_scale(dt_scale: float | Tensor, u: Tensor) -> float | Tensor:
    """Shape dt_scale to broadcast over u: a number is unchanged, (B,) becomes (B, 1, 1), (B, L) becomes (B, L, 1).

    Raises:
        UsageError: another shape or type, a number that is not positive and finite, or (checked on a CPU only) an
            element that is negative, infinite or not a number.
    """
    batch, length = u.shape[:2]
    dt_scale = checked_scale(dt_scale, [((batch,), "one a sample"), ((batch, length), "one a position")], u.device)
    if not isinstance(dt_scale, Tensor) or dt_scale.dim() == 0:
        return dt_scale
    return dt_scale[:, None, None] if dt_scale.dim() == 1 else dt_scale[..., None]


def step_dt_scale(dt_scale: float | Tensor, u_t: Tensor) -> float | Tensor | None:
    """The dt_scale of one step: None for the number 1, otherwise a number or a tensor () or (B,).

    Raises:
        UsageError: as `broadcast_dt_scale`.
    """
    scale = checked_scale(dt_scale, [((u_t.shape[0],), "one a sample")], u_t.device)
    return None if not isinstance(scale, Tensor) and scale == 1.0 else scale


def checked_scale(
    dt_scale: float | Tensor, shapes: Sequence[tuple[tuple[int, ...], str]], device: torch.device
) -> float | Tensor:
    """Check that dt_scale is a number, or a tensor of shape () or of one of `shapes`, and return it.

    `shapes` are pairs of a shape and its meaning, in a list: sizes of an exported program are symbols and cannot be
    keys of a dict.
    """
    if not isinstance(dt_scale, Tensor):
        if isinstance(dt_scale, bool) or not isinstance(dt_scale, numbers.Real):
            raise UsageError(f"dt_scale is a number or a tensor, got {dt_scale!r}.")
        if not _SMALLEST_SCALE <= dt_scale <= _LARGEST_SCALE:
            raise UsageError(
                f"dt_scale is a factor on the step and must be positive and finite, from {_SMALLEST_SCALE:g} to "
                f"{_LARGEST_SCALE:g}, got {dt_scale}. 2.0 is for data sampled at half the rate of training."
            )
        # Converted because torch takes no integer beyond 64 bits.
        return float(dt_scale)
    if dt_scale.dim() and tuple(dt_scale.shape) not in [shape for shape, _ in shapes]:
        allowed = ", or ".join(f"{shape}, {meaning}" for shape, meaning in shapes)
        raise UsageError(f"dt_scale must be a number or of shape {allowed}; got {tuple(dt_scale.shape)}.")
    if dt_scale.is_complex() or dt_scale.dtype == torch.bool or dt_scale.layout != torch.strided:
        raise UsageError(
            f"dt_scale is a number or a dense tensor of real numbers, got {dt_scale.dtype}, {dt_scale.layout}. "
            f"Convert it: dt_scale.float()."
        )
    if dt_scale.dim() and dt_scale.device != device:
        raise UsageError(
            f"dt_scale must be on the device of u, {device}, got {dt_scale.device}: dt_scale.to(u.device)."
        )
    if dt_scale.device.type == "cpu" and not torch.compiler.is_compiling():
        if not bool(((dt_scale >= 0) & (dt_scale <= _LARGEST_SCALE)).all()):
            raise UsageError(
                f"dt_scale is a factor on the step: every element must be finite and not negative, at most "
                f"{_LARGEST_SCALE:g}; got from {dt_scale.min():g} to {dt_scale.max():g}. 1.0 is the step of training."
            )
    return dt_scale
