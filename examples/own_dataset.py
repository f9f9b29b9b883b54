"""A dataset of your own in the training loop: which of two tokens is the more frequent?

    python examples/own_dataset.py
With a configs/dataset/majority.yaml of yours: python -m train imports=[examples.own_dataset] dataset=majority
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from fractal_ssm import register_dataset
from fractal_ssm.config import compose
from fractal_ssm.data.base import SequenceData, label_shares
from fractal_ssm.train import run


class Sequences(Dataset):
    """n pairs (token ids (L,), label); token 0 is padding, so the two are 1 and 2."""

    def __init__(self, n: int, length: int, seed: int):
        random = np.random.default_rng(seed)
        share = random.uniform(0.2, 0.8, size=(n, 1))
        self.tokens = 1 + (random.random((n, length)) < share).astype(np.int64)
        self.labels = (self.tokens == 2).sum(axis=1) > length / 2

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.tokens[index], int(self.labels[index])


@register_dataset("majority")
class Majority(SequenceData):
    """The registry passes `data_dir`; every other argument is an option, dataset.length=101."""

    n_tokens, n_classes = 3, 2

    def __init__(self, data_dir: Path, length: int = 101, n_train: int = 960):
        self.l_max = length
        self._counts = {"train": n_train, "val": 200, "test": 200}

    def prepare(self) -> None:
        """Nothing to download or to cache."""

    def split(self, name: str) -> Sequences:
        return Sequences(self._counts[name], self.l_max, seed=list(self._counts).index(name))

    def describe(self) -> dict[str, Any]:
        shares = {name: label_shares(self.split(name).labels, self.n_classes) for name in self._counts}
        return {
            "name": "majority",
            "source": "generated",
            "lra": False,
            "path": None,
            "counts": self._counts,
            "checksum": f"seeds 0 to 2, length {self.l_max}",
            "split": "own seeds",
            "split_fingerprint": f"{self._counts}",
            "label_shares": shares,
        }


def main() -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = compose(
            [
                "experiment=lra/s5-listops",
                "budget=smoke",
                "model.layer.bidirectional=false",
                *("model.d_model=16", "model.n_layers=1", "optimizer.lr=0.01", "optimizer.ssm_lr=0.01"),
                *("training.max_steps=60", "training.limit_train_batches=null", "training.limit_eval_batches=null"),
            ]
        )
        config.dataset = {"name": "majority", "length": 51}
        config.model["pool"] = "mean"
        facts = run(config, Path(folder) / "run")
    return facts["metrics"]["test"]["accuracy"]


if __name__ == "__main__":
    main()
