"""Synthetic tasks of thousands of steps that train in minutes on a CPU: can a layer carry information that far at all?

They complement Path-X, where a run stays at chance for hours whether it will learn or not. A layer that learns them may
still fail on Path-X; a layer that does not learn them is unlikely to learn Path-X.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ..errors import UsageError
from ..registry import register_dataset
from .base import SPLITS
from .drawn import DrawnData, GeneratedData
from .options import check_real, check_required, is_real
from .pathfinder.parameters import parameters


class TwoClasses(DrawnData):
    """Two alternating classes, drawn on access; the arguments are those of `GeneratedData`."""

    n_classes = 2

    @abstractmethod
    def draw(self, rng: np.random.Generator, label: int) -> np.ndarray:
        """One sample (L, d_input) float32 of the class `label`."""

    def sample(self, rng: np.random.Generator, split: str, index: int) -> tuple[np.ndarray, int]:
        """See the base class."""
        return self.draw(rng, index % 2), index % 2

    def _labels(self, name: str) -> np.ndarray:
        return np.arange(self.n_samples[name]) % 2


@register_dataset("proxy-recall")
class ProxyRecall(TwoClasses):
    """Two pulses of opposite sign, far apart in noise: what was the sign of the first?

    The first pulse begins in the first eighth and the second at least `gap` * L later. Their values cancel, so a model
    that sees only pieces of the sequence, in any order, stays at chance: the answer needs a memory as long as the gap.
    With that memory the answer is linear in the input, under every pooling. A pulse has height 1 and lasts L // 16
    steps.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`.
        gap: smallest distance between the pulses as a share of the length, in (0, 0.8].
        noise: standard deviation of the noise.
    """

    name = "proxy-recall"
    d_input = 1

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 8_000,
        n_val: int = 500,
        n_test: int = 1_000,
        length: int = 4096,
        seed: int = 0,
        gap: float = 0.5,
        noise: float = 0.1,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        check_real(self.name, "gap", gap, is_real(gap) and 0.0 < gap <= 0.8, "0 < gap <= 0.8")
        check_real(self.name, "noise", noise, is_real(noise) and 0.0 <= noise <= 1e6, "0 <= noise <= 1e6")
        self.gap, self.noise = gap, noise

    def draw(self, rng: np.random.Generator, label: int) -> np.ndarray:
        """See the base class."""
        length, width = self.l_max, self.l_max // 16
        first = int(rng.integers(length // 8))
        second = int(rng.integers(first + max(width, int(self.gap * length)), length - width + 1))
        x = self.noise * rng.standard_normal(length)
        sign = 1.0 if label else -1.0
        x[first : first + width] += sign
        x[second : second + width] -= sign
        return x.astype(np.float32)[:, None]

    def _parameters(self) -> dict[str, Any]:
        return {"gap": self.gap, "noise": self.noise}


@register_dataset("proxy-adding")
class ProxyAdding(TwoClasses):
    """The adding problem as a question: is the sum of the two marked values positive?

    The sequence is 16 plateaus of equal length, each with its own value, uniform in [-1, 1], in channel 0. Channel 1 is
    1 on two of them, one in each half, and 0 elsewhere. With the model's pool=last the sum must be carried to the end;
    with pool=mean it need not be, and a layer without memory can solve the task.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test, length, seed: see `GeneratedData`; length is a multiple of 16.
        margin: smallest absolute value of the sum.
    """

    name = "proxy-adding"
    d_input = 2
    _PLATEAUS = 16

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 8_000,
        n_val: int = 500,
        n_test: int = 1_000,
        length: int = 4096,
        seed: int = 0,
        margin: float = 0.2,
    ):
        super().__init__(n_train, n_val, n_test, length, seed)
        if length % self._PLATEAUS:
            raise UsageError(f"proxy-adding needs a length that is a multiple of {self._PLATEAUS}, got {length}.")
        check_real(self.name, "margin", margin, is_real(margin) and 0.0 <= margin < 1.9, "0 <= margin < 1.9")
        self.margin = margin

    def draw(self, rng: np.random.Generator, label: int) -> np.ndarray:
        """See the base class."""
        half = self._PLATEAUS // 2
        marked = [int(rng.integers(half)), int(rng.integers(half, self._PLATEAUS))]
        while True:
            values = rng.uniform(-1.0, 1.0, self._PLATEAUS)
            if abs(values[marked].sum()) >= self.margin:
                break
        if (values[marked].sum() > 0.0) != bool(label):
            # Negated values have the other label and the same distribution.
            values = -values
        plateaus = np.zeros((self._PLATEAUS, 2), dtype=np.float32)
        plateaus[:, 0], plateaus[marked, 1] = values, 1.0
        return np.repeat(plateaus, self.l_max // self._PLATEAUS, axis=0)

    def _parameters(self) -> dict[str, Any]:
        return {"margin": self.margin}


class _Images(Dataset):
    """Grey images, black 0 and white 1, row by row."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index].reshape(-1, 1) / np.float32(255), int(self.labels[index])


@register_dataset("proxy-pathfinder")
class ProxyPathfinder(GeneratedData):
    """Pathfinder at 32 px with short curves: do two discs mark the two ends of one dashed curve? 1,024 steps.

    The generator is that of `pathfinder` at its easy level, with fewer dashes and other distractors. Short curves leak
    the answer: without distractors, the distance of the discs alone gives an accuracy of 59 % with 6 dashes, 74 % with
    4 and 80 % with 3; the places of both give 75, 90 and 91 %. Only a higher accuracy shows that a curve was followed.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test: number of images, drawn by `prepare` (5 to 15 us each).
        contour_length: dashes in each of the two target curves, 2 to 14.
        distractors: largest number of further curves, of two dashes each; 0 to 20.
        seed: of the images.
    """

    name = "proxy-pathfinder"
    d_input = 1
    n_classes = 2
    _SIZE = 32

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 40_000,
        n_val: int = 500,
        n_test: int = 1_000,
        contour_length: int = 3,
        distractors: int = 0,
        seed: int = 0,
    ):
        super().__init__(n_train, n_val, n_test, self._SIZE**2, seed)
        check_required(2, self.name, "dashes of a curve", 14, contour_length=contour_length)
        check_required(0, self.name, "further curves", 20, distractors=distractors)
        self.setting = replace(
            parameters(self._SIZE, "easy"), contour_length=contour_length, distractor_length=2, distractors=distractors
        )
        self._images: dict[str, _Images] = {}

    def prepare(self) -> None:
        """Draw the images of all splits, each once."""
        if self._images:
            return
        images, labels = self._drawn(sum(self.n_samples.values()))
        bounds = np.cumsum([self.n_samples[name] for name in SPLITS])[:-1]
        parts = zip(np.split(images, bounds), np.split(labels, bounds), strict=True)
        self._images = {name: _Images(*part) for name, part in zip(SPLITS, parts, strict=True)}

    def _drawn(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n images, uint8 (n, 32, 32), and their labels."""
        from .pathfinder.generate import Generator

        drawn = Generator(self.setting, self.seed).draw(0, n)
        return drawn.images, drawn.labels

    def _split(self, name: str) -> _Images:
        if not self._images:
            raise UsageError(f"Call prepare() before using the dataset '{self.name}'.")
        return self._images[name]

    def _labels(self, name: str) -> np.ndarray:
        return self._split(name).labels

    def _parameters(self) -> dict[str, Any]:
        return asdict(self.setting)


@register_dataset("proxy-pathfinder-matched")
class ProxyPathfinderMatched(ProxyPathfinder):
    """`proxy-pathfinder` in pairs: two images of different label whose discs lie on the same two pixels.

    Both images of a pair are in one split, so any rule that uses only the places of the discs is right on exactly one
    image of each pair: 50 % of every split. A higher accuracy must come from the dashes. Images are drawn as for
    `proxy-pathfinder`; those without a partner (about 7 of 8 with 3 dashes) are discarded.

    Args:
        data_dir: not used; there are no files.
        n_train, n_val, n_test: number of images, even; about 100 us each with 3 dashes.
        contour_length, distractors, seed: see `ProxyPathfinder`.
    """

    name = "proxy-pathfinder-matched"

    def __init__(
        self,
        data_dir: Path,
        n_train: int = 40_000,
        n_val: int = 500,
        n_test: int = 1_000,
        contour_length: int = 3,
        distractors: int = 0,
        seed: int = 0,
    ):
        super().__init__(data_dir, n_train, n_val, n_test, contour_length, distractors, seed)
        odd = {name: n for name, n in self.n_samples.items() if n % 2}
        if odd:
            raise UsageError(
                f"{self.name} is made of pairs and needs even numbers of images, got "
                f"{', '.join(f'n_{name}={n}' for name, n in odd.items())}. Add one."
            )

    def _drawn(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        from .pathfinder.generate import Generator
        from .pathfinder.matched import draw_pairs

        return draw_pairs(Generator(self.setting, self.seed), n // 2)
