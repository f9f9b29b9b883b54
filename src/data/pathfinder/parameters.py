"""Parameters of Pathfinder images: four sizes, three difficulties, and options where the release is ambiguous."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import UsageError, unknown

# Dashes of the two target curves; the release's folder names follow from these.
CONTOUR_LENGTHS = {"easy": 6, "intermediate": 9, "hard": 14}
FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
CONTRASTS = ("released", "documented")
ROUNDS = ("first_level", "each_level")

# Raised whenever a change makes the same seed give other images, so that old caches are recognised.
# Law 1 lacked the full-mask element, the refused directions and the unguarded ceil, and misplaced masks at 128 px.
LAW_VERSION = 2


@dataclass(frozen=True)
class Parameters:
    """One setting of the generator. Lengths are pixels of the finished image.

    Attributes:
        size: side of the square image.
        padding: width of the border that no curve may enter.
        antialias: factor between the drawing canvas and the image.
        seed_distance: distance between the tails of the two target curves.
        marker_radius: radius of the two discs.
        contour_length: dashes in each target curve.
        distractor_length: dashes in each distractor curve.
        distractors: number of distractor curves that are tried; some fail, so fewer are placed.
        paddle_length, paddle_thickness: one dash.
        paddle_margins: distance kept between a dash and its neighbours; drawn uniformly per image.
        continuity: factor on the turning angle in its weight; larger gives smoother curves.
        curve_contrast: factor on the brightness of every curve.
        paddle_contrast: further factor on the brightness of the two target curves.
    """

    size: int
    padding: int
    antialias: int
    seed_distance: int
    marker_radius: float
    contour_length: int
    distractor_length: int
    distractors: int
    paddle_length: int
    paddle_thickness: float
    paddle_margins: tuple[int, ...]
    continuity: float
    curve_contrast: float
    paddle_contrast: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a manifest (tuples become lists, as JSON would make them)."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How a recipe differs from the wanted one, in words: "law 1 (wanted: 2), distractors 3 (wanted: 10)"."""
    keys = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    # The law comes first: if it differs, the rest matters little.
    keys.sort(key=lambda key: key != "law")
    return ", ".join(f"{key} {found.get(key, 'missing')} (wanted: {wanted.get(key, 'none')})" for key in keys)


_SIZES: dict[int, dict[str, Any]] = {
    32: dict(
        padding=1, seed_distance=7, marker_radius=1.5, paddle_length=2, paddle_thickness=0.5, paddle_margins=(1,),
        continuity=1.0, curve_contrast=2.0, paddle_contrast=0.75,
    ),
    64: dict(
        padding=1, seed_distance=12, marker_radius=2.5, paddle_length=5, paddle_thickness=1.0, paddle_margins=(1,),
        continuity=1.8, curve_contrast=0.8, paddle_contrast=1.0,
    ),
    128: dict(
        padding=1, seed_distance=20, marker_radius=3.0, paddle_length=5, paddle_thickness=1.5, paddle_margins=(2, 3),
        continuity=1.8, curve_contrast=0.9, paddle_contrast=1.0,
    ),
    256: dict(
        padding=22, seed_distance=27, marker_radius=5.0, paddle_length=5, paddle_thickness=2.0, paddle_margins=(3,),
        continuity=1.8, curve_contrast=1.0, paddle_contrast=1.0,
    ),
}  # fmt: skip
SIZES = tuple(_SIZES)

# Measured on released images; none was available at the other sizes.
_RELEASED_CONTRAST = {64: 0.93, 128: 0.82}
# Total number of dashes in the distractors of one image. The number of rounds is this over the distractor length; the
# public wrapper uses the length of its first level, 2 dashes, at every level. At 32 px the documented division rounds
# down.
_DISTRACTOR_DASHES = {32: 20, 64: 22, 128: 35, 256: 30}


def parameters(
    size: int = 32, difficulty: str = "hard", contrast: str = "released", rounds: str = "first_level"
) -> Parameters:
    """The setting of the Long Range Arena for one image size and difficulty.

    Args:
        size: 32, 64, 128 or 256.
        difficulty: "easy" (6 dashes), "intermediate" (9) or "hard" (14, the benchmark's tasks).
        contrast: "released", the brightness of the released images at 64 px (0.93) and 128 px (0.82), and elsewhere
            the documented one; or "documented" everywhere (0.8 and 0.9).
        rounds: rule for the number of distractors. "first_level", as in the public generator: 10, 11, 18 and 15 at 32,
            64, 128 and 256 px, at every difficulty. "each_level", the literal reading of the documentation, which
            divides by the distractor length of the difficulty: 5, 6, 9 and 8 at the hard level.
    Raises:
        UsageError: a value outside the lists above.
    """
    if size not in _SIZES:
        raise UsageError(f"Pathfinder has no size {size}. Allowed: {', '.join(map(str, SIZES))}.")
    if difficulty not in CONTOUR_LENGTHS:
        raise unknown("Pathfinder difficulty", difficulty, CONTOUR_LENGTHS)
    if contrast not in CONTRASTS:
        raise unknown("Pathfinder contrast", contrast, CONTRASTS)
    if rounds not in ROUNDS:
        raise unknown("Pathfinder rounds", rounds, ROUNDS)
    values = dict(_SIZES[size])
    if contrast == "released":
        values["curve_contrast"] = _RELEASED_CONTRAST.get(size, values["curve_contrast"])
    contour_length = CONTOUR_LENGTHS[difficulty]
    distractor_length = contour_length // 3
    divisor = distractor_length if rounds == "each_level" else CONTOUR_LENGTHS["easy"] // 3
    exact = _DISTRACTOR_DASHES[size] / divisor
    return Parameters(
        size=size,
        antialias=2,
        contour_length=contour_length,
        distractor_length=distractor_length,
        distractors=math.floor(exact) if size == 32 else math.ceil(exact),
        **values,
    )
