"""The interface of state-spaces/s4's sequence modules around any layer of this package.

Using a layer in that code base takes one line in its registry of layers and one in a configuration:

    "fractal_ssm": "fractal_ssm.interop.s4.SequenceModule",   # src/utils/registry.py, in `layer`
    layer: {_name_: fractal_ssm, layer: {name: fractal, d_state: 64, bidirectional: true}}   # configs/model/layer

Its `setup_optimizer` sets learning rates and decays, which it reads from the parameters' `_optim`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..models.backbone import build_layer
from ..models.base import SequenceLayer
from ..models.blocks.dense import TiedDropout
from ..models.blocks.mixer import build_mixer
from ..models.marks import mark_parameters, no_weight_decay
from ..models.options import check_choice, check_flags, check_numbers, check_probability, check_sizes
from ..registry import check_options, layers

_MIXERS = ("glu", "full_glu", "half_glu1", "half_glu2", "gelu", "silu_gate", "none")


class SequenceModule(nn.Module):
    """A sequence layer followed by activation and channel mixing, as in s4's own block.

    Args:
        d_model: H, features in and out.
        layer: the layer's node, {"name": "fractal", "d_state": 64}, or only its name.
        transposed: True for sequences (B, H, L), s4's default; False for (B, L, H).
        mixer: channel mixing after the layer ("glu" as in s4), see `SequenceModel`; "none" returns the layer's output.
        dropout: probability in [0, 1); one mask per sample and feature for all positions.
        lr: learning rate in the `_optim` of eigenvalues, input matrices and steps; None takes the trainer's.
        l_max: longest sequence, for layers that need it.
    Attributes:
        d_model, d_output, d_state: sizes that s4 reads; d_state is the size of one sample's state, None if the layer
            has none.
    Raises:
        UsageError: an unknown layer or option, a value out of range, or an input of another shape.
    """

    def __init__(
        self,
        d_model: int,
        layer: str | Mapping[str, Any] = "fractal",
        transposed: bool = True,
        mixer: str = "glu",
        dropout: float = 0.0,
        lr: float | None = 0.001,
        l_max: int | None = None,
    ):
        super().__init__()
        check_sizes("SequenceModule", d_model=d_model)
        check_flags("SequenceModule", transposed=transposed)
        check_choice("mixer", mixer, _MIXERS)
        check_probability("dropout", dropout)
        self.transposed = transposed
        self.d_model = d_model
        self.layer = _built(layer, d_model, l_max)
        self.mixer = None if mixer == "none" else build_mixer(mixer, d_model, dropout, "torch", self.layer.d_output)
        self.dropout = TiedDropout(dropout) if mixer == "none" else None
        if lr != 0.001:
            if lr is not None:
                check_numbers(lr=lr)
            mark_parameters(self, lr=lr)

    @property
    def d_output(self) -> int:
        """Features of the output."""
        return self.d_model if self.mixer is not None else self.layer.d_output

    @property
    def d_state(self) -> int | None:
        """Numbers in the state of one sample."""
        if not self.layer.causal:
            return None
        return sum(part[0].numel() for part in torch.utils._pytree.tree_leaves(self.default_state(1)))

    @property
    def state_to_tensor(self) -> Callable[[Any], Tensor]:
        """A function from a state to (B, d_state) numbers, complex where the layer's state is."""
        return lambda state: torch.cat(
            [part.reshape(len(part), -1) for part in torch.utils._pytree.tree_leaves(state)], dim=1
        )

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        rate: float | Tensor = 1.0,
        **ignored: Any,
    ) -> tuple[Tensor, Any]:
        """Outputs in the layout of the input, and the state to continue from (None for a layer without one).

        Args:
            x: (B, H, L) if transposed, else (B, L, H).
            state: the state from an earlier call or from `default_state`.
            lengths: (B,) valid positions; also a number or a list, as s4 passes them.
            rate: factor on the layer's steps, for a sampling rate other than in training.
            ignored: further arguments of s4's residual blocks, which have no effect here.
        """
        if x.dim() != 3 or x.shape[1 if self.transposed else 2] != self.d_model:
            raise UsageError(
                f"SequenceModule takes x of shape {self._shape()}, got {tuple(x.shape)}. transposed="
                f"{not self.transposed} is the other layout."
            )
        u = x.transpose(1, 2) if self.transposed else x
        y, state = self.layer(u, state=state, lengths=_lengths(lengths, u), dt_scale=rate)
        y = self._mixed(y, u)
        return y.transpose(1, 2) if self.transposed else y, state

    def step(self, x: Tensor, state: Any, rate: float = 1.0, **ignored: Any) -> tuple[Tensor, Any]:
        """y (B, d_output) and the next state, from one position x (B, H) and a state; rate as for `forward`."""
        y, state = self.layer.step(x, state) if rate == 1.0 else self.layer.step(x, state, dt_scale=rate)
        return self._mixed(y[:, None], x[:, None])[:, 0], state

    def default_state(self, *batch_shape: int, device: torch.device | str | None = None) -> Any:
        """The state at rest for a batch; None for a layer without a state."""
        if not self.layer.causal:
            return None
        if len(batch_shape) != 1:
            raise UsageError(f"default_state takes one batch size, default_state(32), got {batch_shape}.")
        state = self.layer.initial_state(batch_shape[0])
        if device is None:
            return state
        return torch.utils._pytree.tree_map(lambda part: part.to(device), state)

    def setup_step(self, **ignored: Any) -> None:
        """Nothing to prepare: layers build their discrete system at the first step after a change."""

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are trained without weight decay, as timm asks for them."""
        return no_weight_decay(self)

    def _mixed(self, y: Tensor, u: Tensor) -> Tensor:
        return self.dropout(y) if self.mixer is None else self.mixer(y, u)

    def _shape(self) -> str:
        return f"(batch, {self.d_model}, length)" if self.transposed else f"(batch, length, {self.d_model})"


def _built(node: str | Mapping[str, Any], d_model: int, l_max: int | None) -> SequenceLayer:
    node = {"name": node} if isinstance(node, str) else node
    runtime = ("d_model", "l_max")
    layers.check(node, runtime)
    options = {key: value for key, value in node.items() if key != "name"}
    check_options(f"The layer '{node['name']}'", layers.get(node["name"]), options, runtime)
    return build_layer(node, d_model, l_max)


def _lengths(lengths: Any, u: Tensor) -> Tensor | None:
    """Lengths as int64 (B,), which the layers take; s4 also passes a single number, or floats."""
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths, device=u.device)
    if lengths.is_floating_point():
        if not torch.compiler.is_compiling() and bool((lengths % 1 != 0).any()):
            raise UsageError(f"lengths are whole numbers of positions, got {lengths.tolist()}. Round them.")
        lengths = lengths.long()
    return lengths.expand(len(u)) if lengths.dim() == 0 else lengths
