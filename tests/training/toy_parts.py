"""A layer and a dataset small enough to train in a second; registered by being imported, as a user's package would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fractal_ssm import register_dataset, register_layer
from fractal_ssm.data.base import SequenceData
from fractal_ssm.models.base import SequenceLayer, valid_mask


@register_layer("toy-decay")
class ToyDecay(SequenceLayer):
    """y_t = C x_t + D u_t with x_t = exp(-exp(log_dt)) x_{t-1} + B u_t, one state per feature."""

    roles = {"log_dt": "dt", "B": "B", "C": "C", "D": "D", "left_out": "A"}

    def __init__(self, d_model: int, dt: float = 0.1, break_at: int | None = None):
        super().__init__()
        self.d_model, self.break_at, self.calls = d_model, break_at, 0
        self.log_dt = nn.Parameter(torch.full((d_model,), float(np.log(dt))))
        self.B = nn.Parameter(torch.randn(d_model))
        self.C = nn.Parameter(torch.randn(d_model))
        self.D = nn.Parameter(torch.zeros(d_model))

    @property
    def causal(self) -> bool:
        return True

    def forward(self, u, state=None, lengths=None, dt_scale=1.0) -> tuple[Tensor, Any]:
        if lengths is not None:
            u = u * valid_mask(lengths, u.shape[1])[..., None]
        rate = torch.exp(self.log_dt) * dt_scale
        t = torch.arange(u.shape[1], dtype=u.dtype)
        # decay[t, s] = exp(-rate (t - s)) for s <= t: short sequences need no loop.
        decay = torch.exp(-rate * (t[:, None, None] - t[None, :, None]).clamp(min=0)) * (t[:, None] >= t)[..., None]
        x = torch.einsum("tsh,bsh->bth", decay, self.B * u)
        if state is not None:
            x = x + torch.exp(-rate * (t[:, None] + 1)) * state[:, None]
        y = self.C * x + self.D * u
        self.calls += self.training
        if self.break_at is not None and self.calls > self.break_at:
            y = y / 0.0
        return y, x[:, -1]


class ToySamples(torch.utils.data.Dataset):
    def __init__(self, n: int, seed: int):
        random = np.random.default_rng(seed)
        self.x = [random.integers(3, 6, size=random.integers(5, 16)) for _ in range(n)]
        self.y = [int(np.bincount(x, minlength=6)[3:].argmax()) for x in self.x]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return self.x[index], self.y[index]


@register_dataset("toy-counts")
class ToyCounts(SequenceData):
    """Which of three tokens is the most frequent?"""

    n_tokens, n_classes, l_max = 6, 3, 16

    def __init__(self, data_dir: Path, n_train: int = 64, n_val: int = 21, n_test: int = 21, test_scale: float = 1.0):
        self._test_scale = test_scale
        self._counts = {"train": n_train, "val": n_val, "test": n_test}

    def prepare(self) -> None:
        pass

    def split(self, name: str) -> ToySamples:
        return ToySamples(self._counts[name], ["train", "val", "test"].index(name))

    def dt_scale(self, name: str) -> float:
        return self._test_scale if name == "test" else 1.0

    def describe(self) -> dict[str, Any]:
        return {"name": "toy-counts", "source": "generated", "lra": False, "counts": self._counts, "checksum": "none"}
