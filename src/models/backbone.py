"""`SequenceModel`: encoder, blocks around a sequence layer, pooling and head, the same for every layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError, unknown
from ..registry import check_options, layers
from . import streaming
from .base import SequenceLayer, valid_mask
from .blocks.block import Block
from .blocks.decoder import POOLS, build_head, pool_positions
from .blocks.dense import check_framework
from .blocks.encoder import Encoder
from .blocks.norm import build_norm
from .marks import no_weight_decay
from .pretrained import Pretrained
from .streaming import ModelState

LARGEST_DEPTH = 1000


class SequenceModel(Pretrained, nn.Module):
    """Sequence model: encoder, n residual blocks around one kind of layer, pooling if the task needs it, and head.

    Output of `forward` by task, for inputs of B sequences and L positions (`outputs` computes it from the features):

        classification           (B, n_classes) logits
        retrieval                (B, n_classes) logits for 2B stacked documents
        tokens                   (B, L, n_classes) logits, one a position
        regression               (B, d_target), or (B, L, d_target) with per_position=True;
            output="gaussian"    one more axis of 2, mean and variance (> 1e-6)
            output="quantiles"   one more axis, the quantiles in the order of their levels; they do not cross

    With the defaults, a sample's scores do not depend on the padding of its batch. The published models are named
    settings of the same options (configs/model).

    Args:
        layer: node of the layer, `{"name": "fractal", ...}`: `name` plus options of its signature.
        n_classes: scores per sequence or position; None for regression.
        n_tokens: size of the vocabulary if the input is token ids.
        d_input: channels if the input is real. Give exactly one of n_tokens and d_input.
        l_max: longest sequence, for layers with an option l_max; no parameter's shape depends on it.
        task: "classification"; "retrieval" for pairs of documents stacked as (2B, L); "tokens" for a class at every
            position; "regression" of real numbers.
        d_target: number of values that regression predicts; None for other tasks.
        per_position: for regression, one prediction per position instead of one per sequence.
        output: form of a regression output: "point", "gaussian" or "quantiles" (see `RegressionHead`).
        quantiles: rising levels in (0, 1), for output="quantiles".
        causal: True refuses layers that look ahead: output t must depend on inputs up to t only, as in forecasting.
        d_model: H, width of the residual stream.
        n_layers: number of blocks, >= 1.
        mixer: module after the layer: "glu" (S4), "full_glu", "half_glu1", "half_glu2", "gelu" (S5), "silu_gate"
            (FRACTAL; other readings of its gate: "sigmoid_gate", and "raw_silu_gate" and "raw_sigmoid_gate", whose gate
            reads the block's input before the norm), or "mlp" (Transformer: a feed-forward sub-block follows).
        norm: "layer", "batch" (as published for S4 and S5: padding counts in the statistics), "batch-masked", or
            "layer-scalar" (one scale and one shift for all features, as in S4's own layer norm).
        prenorm: norm before the layer (True) or after the residual sum (False).
        final_norm: one more norm after the last block (S4: with prenorm only; S5: never).
        dropout: probability in [0, 1); draws are shared by all positions of a sample except one inside "glu".
        pool: "mean" or "last" over the valid positions, or "cls" (a learned token in front; not for causal layers).
            Tasks with an output per position do not pool: "mean" and "last" then have no effect, "cls" raises.
        mask_padding: pass the true lengths to the layers (S4 does; in the published S5 padding passes through the
            scans, so that scores depend on how far the batch is padded).
        bn_momentum: share of the new batch in the running statistics, in (0, 1] (flax's 0.95 is 0.05).
        encoder_bias: bias after the token embedding (S5's one-hot dense layer has one, S4's embedding has none).
        positions: "none" or "sinusoidal" absolute positions added by the encoder.
        d_ff: width of the feed-forward sub-block of "mlp"; None means 4 H.
        framework: "torch" or "flax": its defaults apply to dense layers, layer-norm eps and the retrieval head's GELU.
    Attributes:
        config: the arguments of the constructor; `save_pretrained` keeps them.
    Raises:
        UsageError: an option out of range, or an unknown layer or name.
    """

    def __init__(
        self,
        layer: Mapping[str, Any],
        *,
        n_classes: int | None = None,
        n_tokens: int | None = None,
        d_input: int | None = None,
        l_max: int | None = None,
        task: str = "classification",
        d_target: int | None = None,
        per_position: bool = False,
        output: str = "point",
        quantiles: Sequence[float] | None = None,
        causal: bool = False,
        d_model: int = 128,
        n_layers: int = 6,
        mixer: str = "glu",
        norm: str = "layer",
        prenorm: bool = True,
        final_norm: bool = True,
        dropout: float = 0.0,
        pool: str = "mean",
        mask_padding: bool = True,
        bn_momentum: float = 0.1,
        encoder_bias: bool = True,
        positions: str = "none",
        d_ff: int | None = None,
        framework: str = "torch",
    ):
        options = {key: value for key, value in locals().items() if key not in ("self", "__class__", "layer")}
        super().__init__()
        check_options("SequenceModel", SequenceModel, options, ())
        _check(d_model, n_layers, pool)
        _check_positions(task, per_position, pool)
        check_framework(framework)
        self.config = {"layer": copy.deepcopy(layer), **options}
        self.d_model, self.pool, self.task = d_model, pool, task
        self.per_position = per_position or task == "tokens"
        self.output, self.quantiles = output, quantiles
        self.encoder = Encoder(
            d_model,
            n_tokens,
            d_input,
            bias=encoder_bias,
            positions=positions,
            class_token=pool == "cls",
            framework=framework,
        )
        self.blocks = nn.ModuleList(
            Block(
                build_layer(layer, d_model, l_max),
                mixer=mixer,
                norm=norm,
                prenorm=prenorm,
                dropout=dropout,
                mask_padding=mask_padding,
                bn_momentum=bn_momentum,
                framework=framework,
                d_ff=d_ff,
            )
            for _ in range(n_layers)
        )
        self.final_norm = build_norm(norm, d_model, bn_momentum, framework) if final_norm else None
        self.head = build_head(
            task, d_model, framework, n_classes=n_classes, d_target=d_target, output=output, quantiles=quantiles
        )
        if causal and not self.causal:
            raise UsageError(
                f"An output of this task may depend on inputs up to its own position only (causal=True), and the layer "
                f"'{layer['name']}' as configured looks ahead. Build it with bidirectional: false, or take a causal "
                f"layer."
            )
        if pool == "cls" and self.causal:
            raise UsageError(
                f"pool='cls' reads a token in front of the sequence, which a causal layer ('{layer['name']}' as "
                f"configured) never updates. Use pool='mean' or 'last', or bidirectional: true."
            )

    @property
    def causal(self) -> bool:
        """Whether the model can carry a state and be stepped."""
        return self.blocks[0].layer.causal

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, dt_scale: float | Tensor = 1.0) -> Tensor:
        """Compute the outputs of whole sequences.

        Args:
            inputs: (B, L) int64 token ids, or (B, L, d_input) real; (2B, ...) for retrieval.
            lengths: (B,) int64, valid positions of each sample; None means all.
            dt_scale: factor on every layer's time step (see `SequenceLayer.forward`).
        Returns:
            outputs in the task's shape, see above; at padded positions unspecified but finite.
        """
        x, _ = self.features(inputs, lengths=lengths, dt_scale=dt_scale, return_state=False)
        return self.outputs(x, lengths)

    def outputs(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Outputs from `features` (B, L, H), as `forward` returns them.

        For a task with an output per position, x may be any chunk of a sequence, and `head` takes one step (B, H).
        """
        if not self.per_position:
            return self.head(pool_positions(x, self.pool, lengths))
        if lengths is not None:
            # A layer's output at padded positions is unspecified and must not reach the gradient of the head.
            x = torch.where(valid_mask(lengths, x.shape[1])[..., None], x, 0.0)
        return self.head(x)

    def features(
        self,
        inputs: Tensor,
        state: Any = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """Compute the features before pooling, and the state after them.

        A causal model in eval mode gives the same features however the sequence is cut into chunks.

        Args:
            inputs, lengths, dt_scale: as for `forward`.
            state: a state from `initial_state`, `step` or an earlier call; None starts from the zero state.
            return_state: False skips computing the state, as in `forward`.
        Returns:
            x: (B, L, H) ((B, L + 1, H) with the class token of pool="cls" in front) and the state, None for a model
            that is not causal or with return_state=False.
        """
        if state is not None and not self.causal:
            raise UsageError("The model got a state but its layers carry none: build them with bidirectional: false.")
        position, states = (None, [None] * len(self.blocks)) if state is None else (state.position, state.layers)
        x = self.encoder(inputs, position)
        if self.pool == "cls":
            lengths = None if lengths is None else lengths + 1
            if isinstance(dt_scale, Tensor) and dt_scale.dim() == 2:
                raise UsageError("A dt_scale per position does not go with pool='cls', whose token has no time step.")
        new_states = []
        for block, layer_state in zip(self.blocks, states, strict=True):
            x, layer_state = block(x, layer_state, lengths, dt_scale, return_state)
            new_states.append(layer_state)
        if self.final_norm is not None:
            x = self.final_norm(x, lengths)
        if not (self.causal and return_state):
            return x, None
        start = streaming.start(self, x) if state is None else state
        return x, streaming.advanced(start, x, lengths, new_states)

    def step(self, inputs_t: Tensor, state: ModelState, dt_scale: float | Tensor = 1.0) -> tuple[Tensor, ModelState]:
        """Advance every sample by one position: the outputs after the inputs so far, and the next state.

        At every position equal to `forward` on the prefix. `features(inputs, state)` processes a chunk with the same
        states. Call `eval()` first: batch norm then uses its running statistics, and dropout is off.

        Args:
            inputs_t: (B,) int64 token ids, or (B, d_input) real; (2B, ...) for retrieval.
            state: a state from `initial_state`, `step` or `features`. `fractal_ssm.state` stores, selects, joins and
                resets states.
            dt_scale: factor on every layer's time step, a number or (B,): the time since the previous input.
        Returns:
            the head's outputs (B, ...), for the pooled features so far or, if the task has an output per position, for
            this position; and the next state.
        Raises:
            UsageError: layers that are not causal, batch norm in training mode, or a wrong shape.
        """
        return streaming.step(self, inputs_t, state, dt_scale)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters to train without weight decay, in the form that timm expects."""
        return no_weight_decay(self)

    def initial_state(self, batch_size: int) -> ModelState:
        """The zero state; see `ModelState`. Raises UsageError if the layers carry no state."""
        return streaming.initial_state(self, batch_size)


def build_layer(node: Mapping[str, Any], d_model: int, l_max: int | None) -> SequenceLayer:
    """Build the layer of a node, `{"name": "fractal", ...}`, and check that it keeps the layer contract."""
    layer = layers.build(node, d_model=d_model, l_max=l_max)
    if not isinstance(layer, SequenceLayer):
        raise UsageError(
            f"The layer '{node['name']}' is a {type(layer).__name__}, which does not keep the layer contract. "
            f"Derive it from fractal_ssm.models.base.SequenceLayer."
        )
    _check_layer(layer, d_model)
    return layer


def _check_layer(layer: SequenceLayer, d_model: int) -> None:
    """Refuse invalid attributes of a layer: they are used later without another check."""
    kind = type(layer).__name__
    if type(layer.causal) is not bool:
        raise UsageError(f"{kind}.causal is {layer.causal!r}. Make it a property that returns True or False.")
    if getattr(layer, "d_model", None) != d_model:
        raise UsageError(
            f"{kind} was built with d_model={d_model} and has d_model={getattr(layer, 'd_model', None)!r}. Set "
            f"self.d_model = d_model when building."
        )
    if type(layer.d_output) is not int or layer.d_output < 1:
        raise UsageError(f"{kind}.d_output is {layer.d_output!r}. Return a whole number >= 1; d_model is the default.")
    if not isinstance(layer.roles, Mapping):
        raise UsageError(f"{kind}.roles is {layer.roles!r}. Set a dict, parameter name -> A, B, C, D or dt.")


def check_depth(n_layers: int) -> None:
    """Refuse a number of blocks that would take minutes to build."""
    if n_layers > LARGEST_DEPTH:
        raise UsageError(f"The model takes n_layers of at most {LARGEST_DEPTH}, got {n_layers}. Usual are 4 to 8.")


def _check_positions(task: str, per_position: bool, pool: str) -> None:
    """Refuse options that contradict having one output per sequence, or one per position."""
    if per_position and task not in ("regression", "tokens"):
        raise UsageError(
            f"per_position=True belongs to task='regression', got task='{task}'. A class at every position is "
            f"task='tokens'."
        )
    if pool == "cls" and (per_position or task == "tokens"):
        raise UsageError(
            "pool='cls' makes one output of a whole sequence, and this task has an output at every position. Use "
            "pool='mean' (which has no effect there), and bidirectional: true if the task may look ahead."
        )


def _check(d_model: int, n_layers: int, pool: str) -> None:
    for name, value in {"d_model": d_model, "n_layers": n_layers}.items():
        if value < 1:
            raise UsageError(f"The model needs {name} >= 1, got {value}.")
    check_depth(n_layers)
    if pool not in POOLS:
        raise unknown("pool", pool, POOLS)
