"""With the Hugging Face Trainer: a causal language model that learns to repeat a pattern, then generates.

pip install 'fractal-ssm[hf]'; python examples/hf_trainer.py
"""

import tempfile

import torch
from transformers import AutoModelForCausalLM, TrainingArguments

from fractal_ssm.interop import hf

# Token 0 is padding.
VOCABULARY, PERIOD = 8, 2


class Repetitions(torch.utils.data.Dataset):
    """A random pattern of PERIOD tokens, repeated."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pattern = torch.randint(1, VOCABULARY, (PERIOD,), generator=torch.Generator().manual_seed(index))
        ids = pattern.repeat(8)
        return {"input_ids": ids, "labels": ids}


def main() -> float:
    torch.manual_seed(0)
    config = hf.FractalSSMConfig.from_name(
        "s5", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, layer={"bidirectional": False, "d_state": 32}
    )
    model = hf.FractalSSMForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=60,
            per_device_train_batch_size=16,
            learning_rate=1e-2,
            weight_decay=0.01,
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
        )
        # SSMTrainer reads the marks of parameters; the plain Trainer would decay eigenvalues.
        hf.SSMTrainer(model, arguments, train_dataset=Repetitions()).train()
        model.save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.stack([Repetitions()[2000 + index]["input_ids"] for index in range(50)])
    # One step a token: the state of the layers is the cache.
    found = model.generate(ids[:, : 2 * PERIOD], max_new_tokens=9, do_sample=False, pad_token_id=0)
    accuracy = (found[:, 2 * PERIOD :] == ids[:, 2 * PERIOD : 2 * PERIOD + 9]).float().mean().item()
    print(f"tokens of new patterns continued correctly: {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
