"""Models for the transformers library, built of our layers; needs the extra `hf` (transformers, accelerate).

Importing this module registers the classes with `AutoConfig`, `AutoModel`, `AutoModelForSequenceClassification` and
`AutoModelForCausalLM` under the model type "fractal_ssm".

    from fractal_ssm.interop import hf
    config = hf.FractalSSMConfig.from_name("s5", vocab_size=256, hidden_size=128, num_hidden_layers=4,
                                           layer={"bidirectional": False})
    model = hf.FractalSSMForCausalLM(config)
    hf.SSMTrainer(model, args, train_dataset=data).train()
"""

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "fractal_ssm.interop.hf wraps models for the transformers library, which is not installed: "
        "pip install 'fractal-ssm[hf]'.",
        name="transformers",
    ) from error

from .body import FractalSSMCache, FractalSSMModel, FractalSSMPreTrainedModel
from .configuration import FractalSSMConfig
from .heads import FractalSSMForCausalLM, FractalSSMForSequenceClassification
from .trainer import SSMTrainer

transformers.AutoConfig.register(FractalSSMConfig.model_type, FractalSSMConfig, exist_ok=True)
for auto, model in (
    (transformers.AutoModel, FractalSSMModel),
    (transformers.AutoModelForSequenceClassification, FractalSSMForSequenceClassification),
    (transformers.AutoModelForCausalLM, FractalSSMForCausalLM),
):
    auto.register(FractalSSMConfig, model, exist_ok=True)

__all__ = [
    "FractalSSMCache",
    "FractalSSMConfig",
    "FractalSSMForCausalLM",
    "FractalSSMForSequenceClassification",
    "FractalSSMModel",
    "FractalSSMPreTrainedModel",
    "SSMTrainer",
]
