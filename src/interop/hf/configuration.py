"""The configuration: options of `SequenceModel`, sizes under the names that transformers uses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ...create import model_node
from ...errors import UsageError, did_you_mean
from ...models.backbone import SequenceModel

# Set by other fields, or by the head of the wrapper.
_ELSEWHERE = ("layer", "n_classes", "n_tokens", "d_input", "task", "d_target", "per_position", "output", "quantiles")
_ELSEWHERE = (*_ELSEWHERE, "causal", "d_model", "n_layers")
OPTIONS = tuple(name for name in inspect.signature(SequenceModel).parameters if name not in _ELSEWHERE)


@strict
class FractalSSMConfig(PreTrainedConfig):
    """Configuration of the `fractal_ssm` models of transformers.

    Args:
        vocab_size: number of tokens, for token ids as input; or
        d_input: number of channels, for real input. Exactly one of the two is given.
        hidden_size: H. num_hidden_layers: blocks.
        layer: the sequence layer, {"name": "s5", "d_state": 64}; None is {"name": "fractal"}. A causal language model
            needs a causal one.
        body: further options of `SequenceModel` (mixer, norm, prenorm, final_norm, dropout, pool, mask_padding,
            bn_momentum, encoder_bias, positions, d_ff, framework, l_max), with the defaults of `SequenceModel`.
        use_cache: whether a causal model returns the state from which generation continues.
        tie_word_embeddings: use the embedding as the output matrix of the language model.
    Raises:
        UsageError: an option of `body` that does not exist. Values are checked when a model is built.
    """

    model_type = "fractal_ssm"
    attribute_map = {"d_model": "hidden_size", "n_layers": "num_hidden_layers"}
    keys_to_ignore_at_inference = ["cache"]

    vocab_size: int | None = None
    d_input: int | None = None
    hidden_size: int = 128
    num_hidden_layers: int = 6
    layer: dict | None = None
    body: dict | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any):
        if self.layer is None:
            self.layer = {"name": "fractal"}
        self.body = dict(self.body or {})
        for option in self.body:
            if option not in OPTIONS:
                raise UsageError(
                    f"body has no option {option!r}. Options: {', '.join(OPTIONS)}.{did_you_mean(option, OPTIONS)} "
                    f"Sizes are vocab_size, d_input, hidden_size, num_hidden_layers; the layer's own go into layer."
                )
        super().__post_init__(**kwargs)

    @classmethod
    def from_name(cls, name: str, *, layer: Mapping[str, Any] | None = None, **fields: Any) -> FractalSSMConfig:
        """The configuration of a model by its name (`fractal_ssm.list_models()`), overridden by `layer` and `fields`.

        >>> FractalSSMConfig.from_name("s5", vocab_size=256, layer={"bidirectional": False}).layer
        {'name': 's5', 'bidirectional': False}
        """
        node = model_node(name, layer)
        sizes = {ours: node.pop(ours) for ours in ("d_model", "n_layers") if ours in node}
        named = {cls.attribute_map[ours]: value for ours, value in sizes.items()}
        body = {**{key: value for key, value in node.items() if key in OPTIONS}, **fields.pop("body", {})}
        return cls(**{**named, "layer": dict(node["layer"]), "body": body, **fields})
