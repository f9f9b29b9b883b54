"""The body of the models for transformers: encoder, blocks and final norm, with cache and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from ...errors import UsageError
from ...models.backbone import SequenceModel
from ...models.blocks.dense import dense
from ...models.marks import no_weight_decay
from .configuration import FractalSSMConfig
from .padding import Padding


class FractalSSMCache:
    """The state of every layer after the inputs so far; its size does not depend on the length (except for attention).

    Attributes:
        state: (position (B,), the state of every layer).
        seen: columns of input read so far, padding included.
    """

    # Read by generate(): this cache can be neither cropped nor compiled with a fixed size.
    is_linear: ClassVar[list[bool]] = [True]
    is_compileable = False
    is_sliding: ClassVar[list[bool]] = [False]

    def __init__(self, state: Any, seen: int):
        self.state, self.seen = state, seen

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of input read so far."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the states of these samples, in this order, for beam search."""
        self.state = _pytree.tree_map(lambda value: value.index_select(0, beam_idx.to(value.device)), self.state)


@dataclass
class FractalSSMOutput(ModelOutput):
    """Features (B, L, H), the cache, and (on request) the features before each block and at the end."""

    last_hidden_state: Tensor | None = None
    cache: FractalSSMCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class FractalSSMPreTrainedModel(PreTrainedModel):
    """Common base of the three models: configuration, initialisation, marks of the parameters."""

    config_class = FractalSSMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    # State space parameters stay in float32 in a 16-bit model, as everywhere in this package.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["layer"]
    _is_stateful = True

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are trained without weight decay, as timm asks for them."""
        return no_weight_decay(self)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **options: Any) -> Any:
        """As in transformers, but a file that lacks weights of the body is refused: they cannot be re-initialised."""
        model, told = super().from_pretrained(*args, output_loading_info=True, **options)
        missing = sorted(name for name in told["missing_keys"] if ".body." in name or name.startswith("body."))
        if missing:
            raise UsageError(
                f"{args[0] if args else 'The checkpoint'!r} lacks {len(missing)} weights of the model, {missing[0]!r} "
                f"first. Take the whole checkpoint, or the configuration that it was saved with."
            )
        return (model, told) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        # Every part initialises itself when built; only a head that a checkpoint lacks is initialised here.
        if isinstance(module, nn.Linear) and getattr(module, "_is_fractal_head", False):
            fresh = dense(module.in_features, module.out_features, self.config.body.get("framework", "torch"))
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if not getattr(parameter, "_is_hf_initialized", False):
                        parameter.copy_(fresh.get_parameter(name))


class FractalSSMModel(FractalSSMPreTrainedModel):
    """Encoder, blocks and final norm of a `SequenceModel`, without a head."""

    def __init__(self, config: FractalSSMConfig):
        super().__init__(config)
        self.body = SequenceModel(
            dict(config.layer),
            n_classes=1,
            n_tokens=config.vocab_size,
            d_input=config.d_input,
            d_model=config.hidden_size,
            n_layers=config.num_hidden_layers,
            **config.body,
        )
        del self.body.head
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def main_input_name(self) -> str:
        """The argument that holds the input."""
        return "input_ids" if self.config.vocab_size is not None else "input_values"

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.body.encoder.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of tokens."""
        self.body.encoder.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_values: Tensor | None = None,
        cache: FractalSSMCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        dt_scale: float | Tensor = 1.0,
        return_dict: bool | None = None,
    ) -> FractalSSMOutput | tuple:
        """Features of a batch.

        Args:
            input_ids: (B, L) token ids, or
            input_values: (B, L, d_input) real samples.
            attention_mask: (B, L) or, with a cache, (B, earlier + L): 1 where valid, padded on the left or the right.
            cache: the cache of an earlier call, to continue from.
            use_cache: return a cache; None takes the configuration's value, and False in training.
            output_hidden_states: also return the features before each block and at the end.
            dt_scale: factor on the layers' time steps.
            return_dict: False for a plain tuple.
        """
        inputs = self._input(input_ids, input_values)
        wanted = self.config.use_cache and not self.training if use_cache is None else use_cache
        wanted = wanted and self.body.causal
        padding = self._padding(attention_mask, inputs.shape[1], cache)
        lengths = None if padding is None else padding.lengths
        inputs = inputs if padding is None else padding.to_front(inputs)
        hidden: list[Tensor] | None = [] if output_hidden_states else None
        x, state = self._features(inputs, None if cache is None else cache.state, lengths, dt_scale, wanted, hidden)
        seen = (0 if cache is None else cache.seen) + inputs.shape[1]
        if padding is not None and self.config.body.get("pool") != "cls":
            x = padding.back(x)
            hidden = None if hidden is None else [padding.back(h) for h in hidden]
        output = FractalSSMOutput(
            last_hidden_state=x,
            cache=FractalSSMCache(state, seen) if wanted else None,
            hidden_states=None if hidden is None else tuple(hidden),
        )
        return output.to_tuple() if return_dict is False else output

    def _features(
        self,
        inputs: Tensor,
        state: Any,
        lengths: Tensor | None,
        dt_scale: float | Tensor,
        return_state: bool,
        hidden: list[Tensor] | None,
    ) -> tuple[Tensor, Any]:
        """`SequenceModel.features`, or one step of it, with hidden states and gradient checkpointing."""
        body = self.body
        position, states = (None, [None] * len(body.blocks)) if state is None else state
        x = body.encoder(inputs, position)
        if body.pool == "cls":
            lengths = None if lengths is None else lengths + 1
        one_step = state is not None and x.shape[1] == 1 and return_state and _is_one(dt_scale)
        recomputed = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        new_states = []
        for block, layer_state in zip(body.blocks, states, strict=True):
            if hidden is not None:
                hidden.append(x)
            if one_step:
                x_t, layer_state = block.step(x[:, 0], layer_state)
                x = x_t[:, None]
            elif recomputed:
                arguments = (x, layer_state, lengths, dt_scale, return_state)
                x, layer_state = self._gradient_checkpointing_func(block.__call__, *arguments)
            else:
                x, layer_state = block(x, layer_state, lengths, dt_scale, return_state)
            new_states.append(layer_state)
        if body.final_norm is not None:
            x = body.final_norm(x, lengths)
        if hidden is not None:
            hidden.append(x)
        if not return_state:
            return x, None
        start = torch.zeros(len(x), dtype=torch.int64, device=x.device) if position is None else position
        return x, (start + (x.shape[1] if lengths is None else lengths), tuple(new_states))

    def _input(self, input_ids: Tensor | None, input_values: Tensor | None) -> Tensor:
        given = {"input_ids": input_ids, "input_values": input_values}
        other = "input_values" if self.main_input_name == "input_ids" else "input_ids"
        if given[self.main_input_name] is None or given[other] is not None:
            raise UsageError(
                f"This model takes {self.main_input_name} and not {other}, as it was configured with vocab_size="
                f"{self.config.vocab_size}, d_input={self.config.d_input}."
            )
        return given[self.main_input_name]

    def _padding(self, mask: Tensor | None, length: int, cache: FractalSSMCache | None) -> Padding | None:
        if mask is None:
            return None
        if mask.dim() != 2 or mask.shape[1] < length:
            raise UsageError(
                f"attention_mask has the shape (batch, length) of the input, or of it and all before, got "
                f"{tuple(mask.shape)} for {length} positions."
            )
        mask = mask[:, mask.shape[1] - length :]
        if cache is not None and length == 1:
            return None
        # This check is cheap compared with shifting every sample.
        if not torch.compiler.is_compiling() and bool((mask != 0).all()):
            return None
        return Padding(mask)


def _is_one(dt_scale: float | Tensor) -> bool:
    return not isinstance(dt_scale, Tensor) and dt_scale == 1.0
