"""Multi-head softmax attention on the layer contract, with a key-value cache as its state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from ...errors import UsageError
from ...registry import register_layer
from ..base import SequenceLayer, broadcast_dt_scale, check_lengths, step_dt_scale, valid_mask
from ..options import check_flags, check_parameter, check_probability, check_sizes
from ..stateful import wrong_dtype
from .product import attend
from .rotary import rotate


class Cache(NamedTuple):
    """State of a causal attention layer after T inputs; it grows with every input.

    key, value: (B, heads, T, head size); valid: (B, T), 1, or 0 where a chunk was padded; position: (B,) the current
    position, in steps of the sampling rate of training. All are floating, so that states can be compared and moved
    together.
    """

    key: Tensor
    value: Tensor
    valid: Tensor
    position: Tensor

    # Axes along which a cache grows: `fractal_ssm.state.concat` pads shorter caches with entries that are not valid.
    growing = {"key": 2, "value": 2, "valid": 1}


@register_layer("transformer")
class Attention(SequenceLayer):
    """y_t = W_o concat_h( sum_s softmax_s(q_t . k_s / sqrt(d)) v_s ), over all s, or s <= t when causal.

    Args:
        d_model: H.
        n_heads: number of heads; divides `d_qkv`.
        d_qkv: total width of queries, keys and values; None means H. d = d_qkv / n_heads.
        rotary: rotate queries and keys by their positions (RoFormer, arXiv 2104.09864), which makes the scores
            depend on distances. Without it the scores do not depend on positions: add positions in the encoder.
        bidirectional: attend to later positions too (no state, no step).
        dropout: on the attention weights, in training.

    Time and memory grow as L^2 in the worst case (torch picks the kernel); parameters 4 H d_qkv + 3 d_qkv + H.
    A NaN or an infinite input of a causal layer makes the output at its position and all later ones NaN, and does not
    change earlier outputs; in a bidirectional layer it may affect every output of its sample.
    Derivatives of every order exist, also in forward mode and by torch.func, with memory for L^2 weights; with dropout
    in training only the first.
    A step's cost grows with the number of earlier inputs. In bf16 and fp16 the rotation stays in float32.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 8,
        d_qkv: int | None = None,
        rotary: bool = True,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        d_qkv = d_model if d_qkv is None else d_qkv
        check_sizes("Attention", d_model=d_model, n_heads=n_heads, d_qkv=d_qkv)
        check_parameter("Attention", d_model=d_model, three_d_qkv=3 * d_qkv)
        check_flags("Attention", rotary=rotary, bidirectional=bidirectional)
        if d_qkv % n_heads:
            raise UsageError(
                f"Attention splits d_qkv={d_qkv} (d_model unless given) over n_heads={n_heads}: it must divide."
            )
        if rotary and (d_qkv // n_heads) % 2:
            raise UsageError(
                f"Rotary positions rotate pairs, so a head's size must be even, got {d_qkv // n_heads} "
                f"(d_qkv={d_qkv}, n_heads={n_heads}). Choose other sizes or rotary=False."
            )
        check_probability("dropout", dropout)
        self.d_model, self.n_heads, self.head_size = d_model, n_heads, d_qkv // n_heads
        self.rotary, self.bidirectional, self.dropout = rotary, bidirectional, dropout
        self.qkv = nn.Linear(d_model, 3 * d_qkv)
        self.out = nn.Linear(d_qkv, d_model)

    @property
    def causal(self) -> bool:
        return not self.bidirectional

    def forward(
        self,
        u: Tensor,
        state: Cache | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Cache | None]:
        """See `SequenceLayer.forward`; `dt_scale`, per sample and per position too, stretches rotary distances."""
        self._check_input(u, state, lengths, return_state)
        self._check_dtype(u)
        self._check_state(state, u.shape[0])
        check_lengths(lengths, u.shape[1])
        batch, length, _ = u.shape
        if lengths is None:
            valid = u.new_ones(batch, length, dtype=torch.bool)
        else:
            valid = valid_mask(lengths, length)
            # A padded NaN would spread even with a weight of zero, as 0 * NaN.
            u = u.masked_fill(~valid[..., None], 0.0)
        broken = None
        if self.causal:
            # The same holds for a NaN at a later, masked position.
            broken = ~u.isfinite().all(-1)
            u = u.masked_fill(broken[..., None], 0.0)
        query, key, value = rearrange(self.qkv(u), "B l (part h d) -> part B h l d", part=3, h=self.n_heads)
        position = u.new_zeros(batch, dtype=self._position_dtype()) if state is None else state.position
        elapsed = self._elapsed(dt_scale, valid)
        if self.rotary:
            at = position[:, None] + elapsed
            query, key = rotate(query, at), rotate(key, at)
        if state is None:
            mask = valid[:, None, None, :] if self.bidirectional and lengths is not None else None
        else:
            key, value = torch.cat([state.key, key], dim=2), torch.cat([state.value, value], dim=2)
            mask = _chunk_mask(state.valid > 0, length)
            valid = torch.cat([state.valid > 0, valid], dim=1)
        # Without a cache, padded keys lie after every valid query, so the causal mask hides them as well.
        dropout = self.dropout if self.training else 0.0
        heads = attend(query, key, value, mask, causal=self.causal and mask is None, dropout=dropout)
        y = self.out(heads.transpose(1, 2).flatten(2))
        if broken is not None:
            y = y.masked_fill((broken.cumsum(1) > 0)[..., None], torch.nan)
            # Later calls must see the NaN in the cache.
            seen = F.pad(broken, (key.shape[2] - length, 0))[:, None, :, None]
            key, value = key.masked_fill(seen, torch.nan), value.masked_fill(seen, torch.nan)
        if self.bidirectional or not return_state:
            return y, None
        return y, Cache(key, value, valid.to(elapsed.dtype), position + elapsed[:, -1])

    def step(self, u_t: Tensor, state: Cache, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Cache]:
        if self.bidirectional:
            return super().step(u_t, state, dt_scale)
        self._check_tensor("u_t", u_t, f"(batch, {self.d_model})")
        if u_t.dim() != 2 or u_t.shape[1] != self.d_model:
            raise UsageError(
                f"Attention.step takes u_t of shape (batch, {self.d_model}), got {tuple(u_t.shape)}. Sequences go "
                f"through forward."
            )
        if state is None:
            raise UsageError(f"Attention.step needs a state: start with initial_state({u_t.shape[0]}).")
        scale = step_dt_scale(dt_scale, u_t)
        y, state = self.forward(u_t[:, None], state, dt_scale=1.0 if scale is None else scale)
        return y[:, 0], state

    def initial_state(self, batch_size: int) -> Any:
        if self.bidirectional:
            return super().initial_state(batch_size)
        self._check_batch_size(batch_size)
        weight = self.out.weight
        empty = weight.new_zeros(batch_size, self.n_heads, 0, self.head_size)
        dtype = self._position_dtype()
        return Cache(empty, empty, empty[:, 0, :, 0].to(dtype), weight.new_zeros(batch_size, dtype=dtype))

    def _check_state(self, state: Any, batch_size: int) -> None:
        if state is None:
            return
        given = type(state).__name__
        if isinstance(state, Cache):
            given = ", ".join(_described(part) for part in state)
        if not isinstance(state, Cache) or not self._fits(state, batch_size):
            raise UsageError(
                f"Attention takes a Cache of {batch_size} samples: key and value ({batch_size}, {self.n_heads}, T, "
                f"{self.head_size}), valid ({batch_size}, T), position ({batch_size},), floating, on "
                f"{self.out.weight.device}; got {given}. "
                f"Start with initial_state({batch_size}) and pass on what the last call returned."
            )

    def _fits(self, state: Cache, batch_size: int) -> bool:
        device = self.out.weight.device
        for part in state:
            if not isinstance(part, Tensor) or not part.is_floating_point() or part.device != device:
                return False
        if state.key.dim() != 4 or state.position.dtype != self._position_dtype():
            return False
        if torch.float64 in (state.key.dtype, self.out.weight.dtype) and state.key.dtype != self.out.weight.dtype:
            return False
        shape = (batch_size, self.n_heads, state.key.shape[2], self.head_size)
        return (
            state.key.shape == state.value.shape == shape
            and state.key.dtype == state.value.dtype
            and state.valid.shape == (batch_size, shape[2])
            and state.position.shape == (batch_size,)
        )

    def _check_dtype(self, u: Tensor) -> None:
        dtype = self.out.weight.dtype
        if not u.is_floating_point():
            raise wrong_dtype("Attention", dtype, u.dtype)
        cast = not u.is_meta and torch.is_autocast_enabled(u.device.type) and torch.float64 not in (u.dtype, dtype)
        if u.dtype != dtype and not cast:
            raise UsageError(
                f"Attention has {dtype} parameters and got u of {u.dtype}. Convert the input, u.to({dtype}), or the "
                f"layer, layer.to({u.dtype}), or run under torch.autocast."
            )

    def _elapsed(self, dt_scale: float | Tensor, valid: Tensor) -> Tensor:
        """(B, L) time from the state's position up to and including each input; padded inputs take no time."""
        if not self.rotary and (isinstance(dt_scale, Tensor) or dt_scale != 1.0):
            raise UsageError(
                "Attention with rotary=False has no notion of time, so dt_scale would do nothing: "
                "leave it at 1.0 or build the layer with rotary=True."
            )
        scale = broadcast_dt_scale(dt_scale, valid[..., None])
        if isinstance(scale, Tensor):
            scale = scale.to(self._position_dtype())
            scale = scale.squeeze(-1) if scale.dim() else scale
        return (scale * valid.to(self._position_dtype())).cumsum(dim=1)

    def _position_dtype(self) -> torch.dtype:
        # bf16 represents consecutive integers only up to 256.
        return torch.float64 if self.out.weight.dtype == torch.float64 else torch.float32


def _described(part: Any) -> str:
    return f"{tuple(part.shape)} {part.dtype} on {part.device}" if isinstance(part, Tensor) else type(part).__name__


def _chunk_mask(cached: Tensor, length: int) -> Tensor:
    """(B, 1, L, T + L) bool: query t of a chunk sees the valid cached inputs and the chunk's inputs up to t."""
    within = torch.ones(length, length, dtype=torch.bool, device=cached.device).tril()
    shape = (cached.shape[0], length, -1)
    return torch.cat([cached[:, None].expand(shape), within.expand(shape)], dim=-1)[:, None]
