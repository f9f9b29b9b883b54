"""Statistics of generated images against those of the public generator, which was run, and of released images.

The figures of the generator are means over 928 images at 32 px, 83 at 64 and 194 at 128 (97 for each margin); those of
released images are means over 8 at 64 and 128 px each. Our means must agree with these within three standard errors of
the difference. Both errors come from the spread over our own images and from the numbers of images.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from scipy.ndimage import label

from fractal_ssm.data.pathfinder.generate import Generator, Images
from fractal_ssm.data.pathfinder.parameters import Parameters, parameters

FAST, SLOW = {32: 2000, 64: 150, 128: 400, 256: 200}, {32: 30_000, 64: 2000, 128: 6000, 256: 3000}
ORIGINAL = {32: 928, 64: 83, 128: 194}
EIGHT_CONNECTED = np.ones((3, 3))


def above(images: np.ndarray, level: int) -> np.ndarray:
    return (images > level).mean((1, 2))


def edge(images: np.ndarray) -> np.ndarray:
    """Share of lit pixels in the outermost rows and columns, corners counted twice."""
    lit = images > 0
    return np.concatenate([lit[:, 0], lit[:, -1], lit[:, :, 0], lit[:, :, -1]], 1).mean(1)


def components(images: np.ndarray) -> np.ndarray:
    return np.array([label(image > 100, EIGHT_CONNECTED)[1] for image in images])


def largest(images: np.ndarray) -> np.ndarray:
    """Number of pixels in the largest component brighter than 100."""
    return np.array([np.bincount(label(image > 100, EIGHT_CONNECTED)[0].ravel())[1:].max() for image in images])


def distance(drawn: Images) -> np.ndarray:
    return np.linalg.norm((drawn.discs[:, 0] - drawn.discs[:, 1]).astype(float), axis=1)


# Each value is one number per image.
STATISTICS = {
    "restarts": lambda drawn: drawn.restarts,
    "placed": lambda drawn: drawn.placed,
    "mean": lambda drawn: drawn.images.mean((1, 2)),
    "> 0": lambda drawn: above(drawn.images, 0),
    "> 64": lambda drawn: above(drawn.images, 64),
    "> 200": lambda drawn: above(drawn.images, 200),
    "edge": lambda drawn: edge(drawn.images),
    "components": lambda drawn: components(drawn.images),
    "largest": lambda drawn: largest(drawn.images),
    "start disc": lambda drawn: drawn.discs[:, 0].mean(1),
    "end disc": lambda drawn: drawn.discs[:, 1].mean(1),
    "distance": distance,
}

DOCUMENTED = {"contrast": "documented"}
# Settings, and the original's figures with half a unit of their last digit as error. Discs are means over y and x.
FIGURES = [
    pytest.param(
        parameters(32),
        {
            "restarts": (271, 0.5), "placed": (2.73, 0.005), "mean": (22.53, 0.005), "> 0": (0.415, 0.0005),
            "> 64": (0.141, 0.0005), "edge": (0.1165, 0.00005), "components": (18.6, 0.05), "largest": (28.9, 0.05),
            "start disc": (15.2, 0.05), "end disc": (16.5, 0.05), "distance": (13.2, 0.05),
        },
        id="32",
    ),
    pytest.param(
        parameters(32, rounds="each_level"),
        {"placed": (1.55, 0.005), "mean": (19.79, 0.005), "> 0": (0.373, 0.0005), "> 64": (0.125, 0.0005)},
        id="32-5-rounds",
    ),
    pytest.param(
        replace(parameters(32), distractors=3),
        {"placed": (0.95, 0.005), "mean": (18.42, 0.005), "> 0": (0.350, 0.0005), "> 64": (0.117, 0.0005)},
        id="32-3-rounds",
    ),
    pytest.param(
        parameters(64, **DOCUMENTED),
        {
            "restarts": (4146, 0.5), "placed": (5.27, 0.005), "mean": (14.10, 0.005), "> 0": (0.2705, 0.00005),
            "> 64": (0.0861, 0.00005),
        },
        id="64",
    ),
    pytest.param(parameters(64, rounds="each_level", **DOCUMENTED), {"placed": (3.07, 0.005)}, id="64-6-rounds"),
    pytest.param(
        parameters(128, **DOCUMENTED),
        {
            "> 0": (0.158, 0.0005), "> 64": (0.0525, 0.00005), "start disc": (67.8, 0.05), "end disc": (42.3, 0.05),
            "distance": (74.8, 0.05),
        },
        id="128",
    ),
    pytest.param(
        replace(parameters(128, **DOCUMENTED), paddle_margins=(2,)),
        {"restarts": (70, 0.5), "placed": (16.57, 0.005), "mean": (11.10, 0.005)},
        id="128-margin-2",
    ),
    pytest.param(
        replace(parameters(128, **DOCUMENTED), paddle_margins=(3,)),
        {"restarts": (687, 0.5), "placed": (12.84, 0.005), "mean": (9.33, 0.005)},
        id="128-margin-3",
    ),
]  # fmt: skip
# Figures of the released images, eight per size.
RELEASED = [
    pytest.param(
        parameters(64),
        {"mean": (16.15, 0.005), "> 0": (0.2664, 0.00005), "> 64": (0.1086, 0.00005), "> 200": (0.0118, 0.00005)},
        id="64",
    ),
    pytest.param(
        parameters(128),
        {"mean": (9.42, 0.005), "> 0": (0.161, 0.0005), "> 64": (0.0519, 0.00005), "> 200": (0.0091, 0.00005)},
        id="128",
    ),
]
# Another simulation at 256 px and the easy level at 32, both with the rounds of the first level; 500 images assumed.
SIMULATED = [
    pytest.param(
        parameters(32, "easy"), {"mean": (14.7, 0.05), "> 0": (0.279, 0.0005), "> 64": (0.086, 0.0005)}, id="32-easy"
    ),
    pytest.param(parameters(256), {"mean": (3.64, 0.005), "> 0": (0.048, 0.0005), "> 64": (0.0189, 0.00005)}, id="256"),
]


@lru_cache(maxsize=8)
def draw(setting: Parameters, n: int) -> Images:
    return Generator(setting, seed=11).draw(0, n)


def assert_agree(setting: Parameters, n: int, figures: dict[str, tuple[float, float]], n_theirs: int) -> None:
    drawn, misses = draw(setting, n), []
    for name, (wanted, rounding) in figures.items():
        values = STATISTICS[name](drawn).astype(float)
        error = values.std() * math.sqrt(1 / n + 1 / n_theirs)
        if abs(values.mean() - wanted) > 3 * error + rounding:
            misses.append(f"{name}: {values.mean():.5g}, wanted {wanted} +- {error:.2g}")
    assert not misses, misses


def n_original(setting: Parameters) -> int:
    return ORIGINAL[setting.size] // (2 if setting.paddle_margins in ((2,), (3,)) else 1)


@pytest.mark.parametrize(("setting", "figures"), FIGURES)
def test_statistics_of_the_public_generator(setting, figures):
    assert_agree(setting, FAST[setting.size], figures, n_original(setting))


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "figures"), FIGURES)
def test_statistics_of_the_public_generator_on_many_images(setting, figures):
    assert_agree(setting, SLOW[setting.size], figures, n_original(setting))


@pytest.mark.parametrize(("setting", "figures"), RELEASED)
def test_statistics_of_released_images(setting, figures):
    assert_agree(setting, FAST[setting.size], figures, 8)


@pytest.mark.parametrize(("setting", "figures"), SIMULATED)
def test_statistics_of_another_simulation(setting, figures):
    assert_agree(setting, FAST[setting.size], figures, 500)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "figures"), SIMULATED)
def test_statistics_of_another_simulation_on_many_images(setting, figures):
    assert_agree(setting, SLOW[setting.size], figures, 500)


def test_the_comparison_can_fail():
    # Figures of the first law at 32 px.
    with pytest.raises(AssertionError, match="restarts.*largest"):
        assert_agree(parameters(32), 600, {"restarts": (83, 0.5), "largest": (25.5, 0.05)}, 928)
    with pytest.raises(AssertionError, match="mean"):
        assert_agree(parameters(128, contrast="documented"), 300, {"mean": (9.42, 0.005)}, 194)


def test_discs_spread_as_those_of_the_public_generator():
    discs = draw(parameters(32), FAST[32]).discs.astype(float)
    assert discs[:, 1].std(0).mean() == pytest.approx(8.9, abs=0.5)
    assert distance(draw(parameters(32), FAST[32])).std() == pytest.approx(5.2, abs=0.3)
    # The tail of the first curve lies in the middle of a 32-px image, in rows and columns 14 to 16.
    starts = draw(parameters(32), FAST[32]).targets[:, 0, 0, 1:]
    assert set(np.unique(starts)) == {14, 15, 16}
