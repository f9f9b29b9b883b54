"""The datasets Pathfinder and Path-X: the user's release files, or images drawn by the same recipe."""

from __future__ import annotations

import json
from functools import partialmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...errors import UsageError
from ...registry import register_dataset
from ..base import SPLITS
from ..cache import Cache
from ..cached import CachedData, take
from ..options import check_at_least
from ..pixels import PixelSequences
from ..splits import check_convention, chunks
from .parameters import FOLDERS, LAW_VERSION, differences, parameters
from .release import expected, find_all, read_images, read_tables

OFFICIAL = 200_000


@register_dataset("pathfinder")
class Pathfinder(CachedData):
    """Do two discs mark the two ends of one dashed curve? Images row by row, (resolution**2, 1); 2 classes.

    Label 1: the discs mark both ends of one curve; label 0: the start of one curve and the end of the other. The task
    of the Long Range Arena is the hard level at 32 px; `pathx` is the same at 128 px.

    Args:
        data_dir: root of all data.
        source: "release" reads the user's files, "generated" draws images by the same recipe; "auto" takes the release
            if it is there and no option of the recipe was changed, and draws otherwise.
        resolution: side of the images, 32, 64, 128 or 256.
        difficulty: "easy", "intermediate" or "hard": curves of 6, 9 or 14 dashes.
        n: number of images to use, the first ones; null takes all 200,000.
        split: "s4_seed42" (a tenth each for validation and test, the rest for training, by one seeded permutation, as
            the S4 and S5 repositories) or "lra_sequential" (the first 80 %, the next 10 %, the last 10 %).
        center: pixels in [-1, 1] (S4's class default, S4's third version, S5); False gives [0, 1] (S4's maintained
            configs).
        tokenize: grey values 0..255 as token ids instead of one real channel; `center` has no effect then.
        contrast: "released" or "documented", for generated images; see `parameters.parameters`.
        rounds: "first_level" or "each_level", for the distractors of generated images; see there.
        seed: of generated images.
    """

    name = "pathfinder"
    title = "Pathfinder"
    drawing = "200,000 images, 0.2 GB, about half a minute on one core"
    benchmark_resolution: ClassVar[int] = 32
    expected = expected(32, "hard", "pathfinder")
    sources = ("auto", "release", "generated")
    n_classes = 2

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        resolution: int = 32,
        difficulty: str = "hard",
        n: int | None = None,
        split: str = "s4_seed42",
        center: bool = True,
        tokenize: bool = False,
        contrast: str = "released",
        rounds: str = "first_level",
        seed: int = 0,
    ):
        super().__init__(data_dir, source, {})
        self.setting = parameters(resolution, difficulty, contrast, rounds)
        check_at_least(10, self.name, "n", n, "each split has a sample then")
        check_convention(split)
        self.resolution, self.difficulty, self.n, self.convention = resolution, difficulty, n, split
        self.center, self.tokenize, self.seed = center, tokenize, seed
        self.d_input, self.n_tokens = (None, 256) if tokenize else (1, None)
        self.l_max = resolution**2
        if not 0 <= seed < 1 << 63:
            raise UsageError(f"{self.name} needs a seed in 0 .. 2**63 - 1, got {seed}.")
        defaults = {"contrast": (contrast, "released"), "rounds": (rounds, "first_level"), "seed": (seed, 0)}
        self._changed = [option for option, (value, default) in defaults.items() if value != default]
        if source == "release" and self._changed:
            raise UsageError(
                f"dataset.{self._changed[0]} belongs to generated images and has no effect on dataset.source=release. "
                f"Drop it, or set dataset.source=generated."
            )

    @classmethod
    def found(cls, data_dir: Path) -> list[tuple[str, Path]]:
        """See the base class."""
        return [("release", path) for path in find_all(data_dir, cls.benchmark_resolution, "hard", cls.name)]

    def split(self, name: str) -> PixelSequences:
        """The samples of one split, (pixels, label); see the base class."""
        folder, indices = self.cache.folder, self.indices(name)
        if self.tokenize:
            return PixelSequences(folder, indices)
        mean, std = (0.5, 0.5) if self.center else (0.0, 1.0)
        return PixelSequences(folder, indices, mean=(mean,), std=(std,))

    def describe(self) -> dict[str, Any]:
        """See the base class; adds the resolution, the difficulty, the number of images left out and the recipe."""
        made = self.cache.parameters
        return {
            **super().describe(),
            "resolution": made["resolution"],
            "difficulty": made["difficulty"],
            "left_out": self.cache.facts.get("left_out", 0),
            "recipe": made.get("recipe"),
        }

    def _load(self) -> Cache:
        n = OFFICIAL if self.n is None else self.n
        common = {"resolution": self.resolution, "difficulty": self.difficulty, "n": n, "layout": 1}
        folders = find_all(self.data_dir, self.resolution, self.difficulty, self.name)
        if folders and self.source != "generated" and not self._changed:
            folder = folders[0] / FOLDERS[self.difficulty]
            rows, digest = read_tables(folder)
            made = {"source": "release", "tables": digest, **common}
            return self._store(made, lambda target: self._write(target, folder, rows))
        if self.source == "release":
            raise UsageError(expected(self.resolution, self.difficulty, self.name).missing(self.data_dir))
        recipe = {**self.setting.as_dict(), "seed": self.seed, "law": LAW_VERSION}
        made = {"source": "generated", "recipe": recipe, **common}
        self._refuse_older_laws(made)
        return self._store(made, self._draw, resumable=True)

    def _refuse_older_laws(self, wanted: dict[str, Any]) -> None:
        """Refuse to draw beside a cache of the same set from another law, whose results do not compare.

        Raises:
            UsageError: names that cache and the differences.
        """
        for path in sorted((self.data_dir / "cache" / self.name).glob("generated-*/manifest.json")):
            try:
                found = json.loads(path.read_text())["parameters"]
                same_set = all(found[key] == wanted[key] for key in ("resolution", "difficulty", "n"))
                recipe = found["recipe"]
                is_older = same_set and recipe["seed"] == self.seed and recipe["law"] != LAW_VERSION
            except (OSError, ValueError, KeyError, TypeError):
                # A damaged cache is reported when it is opened.
                continue
            if is_older:
                raise UsageError(
                    f"{path.parent} holds {self.title} images of an older law: "
                    f"{differences(recipe, wanted['recipe'])}. Results on them do not compare with those of this "
                    f"version. Delete the folder, or move it out of {path.parents[1]}, and run again: the images are "
                    f"then drawn again ({self.drawing})."
                )

    def _draw(self, target: Path) -> dict[str, Any]:
        from .generate import Generator, fill

        fill(target, Generator(self.setting, self.seed), OFFICIAL if self.n is None else self.n)
        return {"read_from": None}

    def _write(self, target: Path, folder: Path, rows: list) -> dict[str, Any]:
        rows = rows[: take(len(rows), self.n, OFFICIAL, str(folder), "n")]
        shape = (len(rows), self.l_max, 1)
        n_kept, labels = 0, np.zeros(len(rows), np.uint8)
        pixels = np.lib.format.open_memmap(target / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        for row, image in read_images(folder, rows, self.resolution):
            if image is not None:
                pixels[n_kept], labels[n_kept] = image.reshape(-1, 1), row.label
                n_kept += 1
        pixels.flush()
        np.save(target / "labels.npy", labels[:n_kept])
        return {"read_from": str(folder), "left_out": len(rows) - n_kept}

    def _members(self) -> dict[str, np.ndarray]:
        n = len(self.cache.array("labels"))
        held_out = int(0.1 * n)
        parts = chunks(n, (n - 2 * held_out, held_out, held_out), self.convention)
        return dict(zip(SPLITS, parts, strict=True))

    def _convention(self) -> str:
        return self.convention

    def _is_benchmark(self) -> bool:
        made = self.cache.parameters
        whole = made["n"] == OFFICIAL
        return whole and made["difficulty"] == "hard" and made["resolution"] == self.benchmark_resolution


@register_dataset("pathx")
class PathX(Pathfinder):
    """Path-X: Pathfinder at 128 px, 16,384 steps. Options are those of `Pathfinder`; the default resolution is 128."""

    name = "pathx"
    title = "Path-X"
    drawing = "200,000 images, 3.3 GB, about 6 minutes on one core, less on several"
    benchmark_resolution = 128
    expected = expected(128, "hard", "pathx")
    __init__ = partialmethod(Pathfinder.__init__, resolution=128)
