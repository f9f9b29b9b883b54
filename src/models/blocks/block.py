"""One block for every layer of the comparison: norm, sequence layer, mixer, residual."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError
from ...registry import check_options
from ..base import SequenceLayer
from ..marks import no_weight_decay
from ..options import check_choice, check_probability, check_sizes
from .dense import TiedDropout, check_framework, dense
from .mixer import MIXERS, build_mixer
from .norm import build_norm


class Block(nn.Module):
    """Residual block around one sequence layer.

    prenorm:  x + dr(mixer(layer(norm(x))));     postnorm:  norm(x + dr(mixer(layer(x)))).
    With mixer="mlp" a feed-forward sub-block x + dr(W2 dr(gelu(W1 norm(x)))) (or its postnorm form) follows.

    Args:
        layer: the sequence layer; its d_model is the block's width H. A layer with more outputs than H (several
            channels) needs a mixer whose linear map joins them.
        mixer, norm, prenorm, dropout, mask_padding, bn_momentum, framework, d_ff: see `SequenceModel`.
    Raises:
        UsageError: `layer` is not a sequence layer, or an option is out of range.
    >>> block = Block(Fractal(64, d_state=32), mixer="silu_gate", dropout=0.1)  # doctest: +SKIP
    >>> y, state = block(torch.randn(2, 100, 64))  # doctest: +SKIP
    """

    def __init__(
        self,
        layer: SequenceLayer,
        *,
        mixer: str = "glu",
        norm: str = "layer",
        prenorm: bool = True,
        dropout: float = 0.0,
        mask_padding: bool = True,
        bn_momentum: float = 0.1,
        framework: str = "torch",
        d_ff: int | None = None,
    ):
        options = {key: value for key, value in locals().items() if key not in ("self", "__class__", "layer")}
        super().__init__()
        check_options("Block", Block, options, ())
        _check(layer, mixer, dropout, bn_momentum, d_ff)
        check_framework(framework)
        d_model = layer.d_model
        self.mask_padding = mask_padding
        self.prenorm = prenorm
        self.norm = build_norm(norm, d_model, bn_momentum, framework)
        self.layer = layer
        self.mixer = build_mixer(mixer, d_model, dropout, framework, layer.d_output)
        self._gate_reads_x = getattr(self.mixer, "reads_raw", False)
        self.dropout = TiedDropout(dropout)
        self.feed_forward = None
        if mixer == "mlp":
            width = 4 * d_model if d_ff is None else d_ff
            second_norm = build_norm(norm, d_model, bn_momentum, framework)
            self.feed_forward = FeedForward(second_norm, d_model, width, prenorm, dropout, framework)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "layer":
            # Here and not in __init__: the layer of a built block may be replaced.
            self._layer_takes_return_state = "return_state" in inspect.signature(value.forward).parameters
            self._step_takes_dt_scale = "dt_scale" in inspect.signature(value.step).parameters

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """x (B, L, H) to the same shape, and the layer's state (None for layers without one or return_state=False)."""
        z = self.norm(x, lengths) if self.prenorm else x
        # A plug-in layer may lack the argument; its state is then computed and dropped.
        asked = {"return_state": return_state} if self._layer_takes_return_state else {}
        lengths_seen = lengths if self.mask_padding else None
        found = self.layer(z, state=state, lengths=lengths_seen, dt_scale=dt_scale, **asked)
        y, state = checked_output(self.layer, z, found)
        return self._finish(x, y, z, lengths), state if return_state else None

    def step(self, x_t: Tensor, state: Any, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, Any]:
        """Advance by one position: x_t (B, H) and the layer's state to y_t (B, H) and the next state."""
        x = x_t[:, None]
        z = self.norm(x) if self.prenorm else x
        found = self.layer.step(z[:, 0], state, **self._scale_of_step(dt_scale))
        y_t, state = checked_output(self.layer, z[:, 0], found)
        return self._finish(x, y_t[:, None], z, None)[:, 0], state

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters to train without weight decay, in the form that timm expects."""
        return no_weight_decay(self)

    def _scale_of_step(self, dt_scale: float | Tensor) -> dict[str, float | Tensor]:
        # A plug-in layer may lack the argument.
        if self._step_takes_dt_scale:
            return {"dt_scale": dt_scale}
        if isinstance(dt_scale, Tensor) or dt_scale != 1.0:
            raise UsageError(
                f"{type(self.layer).__name__}.step takes no dt_scale, got {dt_scale}. Add the argument "
                f"dt_scale=1.0 to it, or pass the input to forward, as one position."
            )
        return {}

    def _finish(self, x: Tensor, y: Tensor, z: Tensor, lengths: Tensor | None) -> Tensor:
        x = x + self.dropout(self.mixer(y, x if self._gate_reads_x else z))
        if not self.prenorm:
            x = self.norm(x, lengths)
        return x if self.feed_forward is None else self.feed_forward(x, lengths)


def _check(layer: Any, mixer: str, dropout: float, bn_momentum: float, d_ff: int | None) -> None:
    if not isinstance(layer, SequenceLayer):
        raise UsageError(
            f"Block is built around a sequence layer, such as Fractal(64), got {type(layer).__name__}. A layer of your "
            f"own derives from fractal_ssm.SequenceLayer; one by its name is built by create_model."
        )
    check_probability("dropout", dropout)
    if not 0.0 < bn_momentum <= 1.0:
        raise UsageError(f"bn_momentum is a share in (0, 1], got {bn_momentum}. Flax's momentum m is 1 - m here.")
    check_choice("mixer", mixer, tuple(MIXERS))
    if d_ff is not None:
        if mixer != "mlp":
            raise UsageError(
                f"d_ff is the width of the feed-forward sub-block of mixer='mlp', but the mixer is '{mixer}'. Leave "
                f"out d_ff, or choose mixer='mlp'."
            )
        check_sizes("Block", d_ff=d_ff)


def checked_output(layer: SequenceLayer, u: Tensor, output: Any) -> tuple[Tensor, Any]:
    """Check that a layer returned (y, state) with y (..., d_output) for u (..., H), and return it; about 1 us.

    A y of another shape could broadcast in the residual sum, and the mistake would go unnoticed in training.

    Raises:
        UsageError: any other output.
    """
    # Traced code is not checked: the layer has run before.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return output
    wanted = (*u.shape[:-1], layer.d_output)
    if type(output) is tuple and len(output) == 2 and isinstance(output[0], Tensor):
        y = output[0]
        if y.shape == wanted and y.is_floating_point() and y.device == u.device:
            return output
        given = f"y of shape {tuple(y.shape)}, {str(y.dtype).removeprefix('torch.')} on {y.device}"
    else:
        given = f"a {type(output).__name__}"
    call = "forward" if u.dim() == 3 else "step"
    raise UsageError(
        f"{type(layer).__name__}.{call} returned {given}, for an input of shape {tuple(u.shape)} on {u.device}. "
        f"Return a tuple (y, state) with y real, of shape {tuple(wanted)} (d_output last), on the same device."
    )


class FeedForward(nn.Module):
    """The Transformer's second sub-block: x + dr(W2 dr(gelu(W1 norm(x)))), or norm(x + ...) when not prenorm."""

    def __init__(self, norm: nn.Module, d_model: int, width: int, prenorm: bool, dropout: float, framework: str):
        super().__init__()
        self.prenorm = prenorm
        self.norm = norm
        self.inner = dense(d_model, width, framework)
        self.outer = dense(width, d_model, framework)
        self.dropout = TiedDropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, L, H) to the same shape."""
        z = self.norm(x, lengths) if self.prenorm else x
        x = x + self.dropout(self.outer(self.dropout(F.gelu(self.inner(z)))))
        return x if self.prenorm else self.norm(x, lengths)
