"""A classifier and a causal language model for transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import ModelOutput, SequenceClassifierOutput

from ...errors import UsageError
from ...models.backbone import SequenceModel
from ...models.blocks.decoder import ClassificationHead, pool_positions
from .body import FractalSSMCache, FractalSSMModel, FractalSSMPreTrainedModel
from .configuration import OPTIONS, FractalSSMConfig


@dataclass
class FractalSSMCausalLMOutput(ModelOutput):
    """Loss, if labels were given, scores (B, L, vocabulary), the cache and the hidden states."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: FractalSSMCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class FractalSSMForSequenceClassification(FractalSSMPreTrainedModel):
    """Scores (B, num_labels) of whole sequences: pooling by `body["pool"]`, then a linear map."""

    def __init__(self, config: FractalSSMConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = FractalSSMModel(config)
        self.score = ClassificationHead(config.hidden_size, config.num_labels, config.body.get("framework", "torch"))
        self.score.linear._is_fractal_head = True
        self.post_init()

    @property
    def main_input_name(self) -> str:
        """The argument that holds the input."""
        return self.model.main_input_name

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        input_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        dt_scale: float | Tensor = 1.0,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple:
        """Scores, and the loss if `labels` are given: (B,) classes; for problem_type "regression" (B,) or (B,
        num_labels) numbers, for "multi_label_classification" (B, num_labels) of 0 and 1."""
        model = self.model
        inputs = model._input(input_ids, input_values)
        padding = model._padding(attention_mask, inputs.shape[1], None)
        lengths = None if padding is None else padding.lengths
        inputs = inputs if padding is None else padding.to_front(inputs)
        hidden: list[Tensor] | None = [] if output_hidden_states else None
        x, _ = model._features(inputs, None, lengths, dt_scale, False, hidden)
        logits = self.score(pool_positions(x, model.body.pool, lengths))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        output = SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=None if hidden is None else tuple(hidden)
        )
        return output.to_tuple() if return_dict is False else output

    @classmethod
    def from_sequence_model(cls, model: SequenceModel) -> FractalSSMForSequenceClassification:
        """Convert a trained classifier (from `load_model` or `SequenceModel.from_pretrained`), with its weights."""
        return _converted(cls, model, "classification", "score", num_labels=model.config["n_classes"])


class FractalSSMForCausalLM(FractalSSMPreTrainedModel, GenerationMixin):
    """Scores (B, L, vocab_size) of the next token at every position; generation carries the layers' states."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.linear.weight": "model.body.encoder.embedding.weight"}

    def __init__(self, config: FractalSSMConfig):
        super().__init__(config)
        if config.vocab_size is None:
            raise UsageError("A language model needs vocab_size, the number of tokens; d_input is for real samples.")
        self.model = FractalSSMModel(config)
        if not self.model.body.causal:
            raise UsageError(
                f"A causal language model needs a causal layer, and {config.layer} looks ahead. Set "
                f"layer={{..., 'bidirectional': False}}."
            )
        self.lm_head = ClassificationHead(config.hidden_size, config.vocab_size, config.body.get("framework", "torch"))
        self.lm_head.linear._is_fractal_head = True
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The linear map to the scores."""
        return self.lm_head.linear

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the linear map to the scores."""
        value._is_fractal_head = True
        self.lm_head.linear = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: FractalSSMCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> FractalSSMCausalLMOutput | tuple:
        """Scores of the next token, and the mean loss if `labels` (B, L) are given.

        Args:
            input_ids, attention_mask, cache, use_cache, output_hidden_states: as for `FractalSSMModel`.
            labels: (B, L), the input ids again; they are shifted here. Positions with -100 are not scored.
            logits_to_keep: return scores of only the last so many positions; 0 for all.
            return_dict: False for a plain tuple.
        """
        output = self.model(
            input_ids,
            attention_mask=attention_mask,
            cache=cache,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        x = output.last_hidden_state
        logits = self.lm_head(x[:, -logits_to_keep:] if logits_to_keep else x)
        loss = None
        if labels is not None:
            if logits_to_keep:
                raise UsageError("labels are scored at every position: leave out logits_to_keep.")
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        result = FractalSSMCausalLMOutput(
            loss=loss, logits=logits, cache=output.cache, hidden_states=output.hidden_states
        )
        return result.to_tuple() if return_dict is False else result

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        cache: FractalSSMCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = True,
        logits_to_keep: int | None = None,
        **_unused: Any,
    ) -> dict[str, Any]:
        """The arguments of the next `forward`, with the columns that the cache has not seen."""
        total = input_ids.shape[1] if attention_mask is None else attention_mask.shape[1]
        if cache is not None and total == input_ids.shape[1]:
            input_ids = input_ids[:, cache.seen :]
        return {
            "input_ids": input_ids,
            "cache": cache,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep or 0,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        # `forward` creates the cache itself.
        return False

    @classmethod
    def from_sequence_model(cls, model: SequenceModel) -> FractalSSMForCausalLM:
        """Convert a trained next-token model (task "tokens", as many classes as tokens), with its weights."""
        return _converted(cls, model, "tokens", "lm_head")


def _converted(cls: type, model: SequenceModel, task: str, head: str, **fields: Any) -> Any:
    if not isinstance(model, SequenceModel) or model.task != task:
        kind = f"one of task={model.task!r}" if isinstance(model, SequenceModel) else type(model).__name__
        raise UsageError(f"{cls.__name__} is made from a SequenceModel of task={task!r}, got {kind}.")
    ours = model.config
    if task == "tokens" and ours["n_classes"] != ours["n_tokens"]:
        raise UsageError(
            f"A language model scores its own tokens, and this model has {ours['n_classes']} classes for "
            f"n_tokens={ours['n_tokens']}: it tags. Keep it as a SequenceModel."
        )
    config = FractalSSMConfig(
        vocab_size=ours["n_tokens"],
        d_input=ours["d_input"],
        hidden_size=ours["d_model"],
        num_hidden_layers=ours["n_layers"],
        layer=dict(ours["layer"]),
        body={key: ours[key] for key in OPTIONS},
        **fields,
    )
    made = cls(config).to(next(model.parameters()).dtype)
    weights = model.state_dict()
    made.load_state_dict(
        {
            (f"{head}.{name.removeprefix('head.')}" if name.startswith("head.") else f"model.body.{name}"): value
            for name, value in weights.items()
        }
    )
    return made.train(model.training)
