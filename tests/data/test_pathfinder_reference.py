"""The compiled generator against a slow second implementation of the law in plain floats (pathfinder_reference.py)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from pathfinder_reference import Failed, Reference, opposite
from scipy.ndimage import grey_dilation

from fractal_ssm.data.pathfinder import kernel, tables
from fractal_ssm.data.pathfinder.generate import Generator
from fractal_ssm.data.pathfinder.parameters import SIZES, parameters

MARGINS = [(32, 1), (64, 1), (128, 2), (128, 3), (256, 3)]
DEGREES = range(-180, 180)


@lru_cache
def built(size: int):
    return tables.build(parameters(size))


def alone(size: int):
    """The setting without distractors, so that the target curves and discs determine the image."""
    return replace(parameters(size), distractors=0)


def replayed(setting, margin: int, curve: np.ndarray):
    """Dashes (start, direction drawn) of a curve that the generator returned."""
    angles = tables.angles(setting, margin)
    first, *later = [(tuple(int(each) for each in row[1:]), float(angles[row[0]])) for row in curve]
    return [first, *((start, opposite(angle)) for start, angle in later)]


@pytest.mark.parametrize(
    ("size", "margin", "first", "last", "pixels"),
    [
        (32, 1, -165, -105, (2, 5)),
        (64, 1, -180, -79, (6, 15)),
        (128, 2, -180, 179, (14, 22)),
        (128, 3, -180, 179, (28, 34)),
        (256, 3, -180, 179, None),
    ],
)
def test_directions_that_a_first_dash_may_have(size, margin, first, last, pixels):
    setting, (maps, _) = parameters(size), built(size)
    row = setting.paddle_margins.index(margin)
    expected = [first <= degree <= last for degree in DEGREES]
    assert maps.usable[row].tolist() == expected
    if pixels:
        assert (maps.n_element[row].min(), maps.n_element[row].max()) == pixels
    # The original's own criterion, the dilation of a whole image; a small one has the same corners.
    reference = Reference(replace(setting, size=32, padding=1), margin, np.random.default_rng(0))
    for degree in DEGREES[:: 1 if size == 32 else 7]:
        found = reference.blocked(reference.empty(), 1, degree * math.pi / 180)
        assert np.isneginf(found).any() != expected[degree + 180]


@pytest.mark.parametrize(("size", "margin"), MARGINS)
def test_elements_of_first_dashes(size, margin):
    setting, (maps, layout) = parameters(size), built(size)
    reference, row = Reference(setting, margin, np.random.default_rng(0)), setting.paddle_margins.index(margin)
    for degree in DEGREES[::5]:
        pixels = np.argwhere(reference.element(degree * math.pi / 180)) - setting.paddle_length - margin
        wanted = {int(dy * layout.stride + dx) for dy, dx in pixels}
        n = maps.n_element[row, degree + 180]
        assert set(maps.element_at[row, degree + 180, :n].tolist()) == wanted


@pytest.mark.parametrize(("margin", "rows", "wide_rows"), [(2, (58, 62), (56, 64)), (3, (57, 63), (54, 66))])
def test_rows_of_the_masks_of_a_dash_at_both_margins_of_pathx(margin, rows, wide_rows):
    # A dash from (60, 60) to (60, 65). Tables of all margins have one side; a mask padded on one side would shift.
    setting, (maps, layout) = parameters(128), built(128)
    row, start = setting.paddle_margins.index(margin), (60 + layout.ring) * layout.stride + 60 + layout.ring
    for patches, (top, bottom) in ((maps.mask, rows), (maps.wide, wide_rows)):
        canvas = np.zeros_like(tables.buffers(layout).mask)
        kernel._raise_to(canvas, patches[row, 180], start, layout.stride)
        y, x = np.nonzero(canvas[: layout.stride**2].reshape(layout.stride, -1) >= kernel.ONE)
        assert (y.min() - layout.ring, y.max() - layout.ring) == (top, bottom)
        # The mask reaches as far before the tail as beyond the head.
        assert 60 - (x.min() - layout.ring) == x.max() - layout.ring - 65


@pytest.mark.parametrize(("size", "margin", "lowest_y", "lowest_x"), [(32, 1, 7, 3), (128, 2, 15, 7)])
def test_rounding_up_has_no_guard(size, margin, lowest_y, lowest_x):
    """sin(pi) and cos(pi / 2) are not zero: near the upper and left edge a move is a pixel longer."""
    setting, (maps, _) = parameters(size), built(size)
    angles, row = tables.angles(setting, margin), setting.paddle_margins.index(margin)
    left, down, up = (360 + int(np.flatnonzero(angles[360:] == a)[0]) for a in (math.pi, math.pi / 2, -math.pi / 2))
    for place in range(size):
        y, _ = kernel._moved(place, 20, maps.joint[row, left])
        assert y == place + (1 if place <= lowest_y else 0)
        for direction in (down, up):
            _, x = kernel._moved(20, place, maps.joint[row, direction])
            assert x == place + (1 if place <= lowest_x else 0)
    # At -180 degrees, which only a first dash has, the move ends before the pixel and is rounded up to it.
    assert [kernel._moved(place, 20, maps.head[row, 0])[0] for place in range(size)] == list(range(size))


@pytest.mark.parametrize("size", SIZES)
def test_images_of_two_curves_are_those_of_the_reference_pixel_for_pixel(size):
    setting, n = alone(size), 4 if size < 256 else 2
    drawn = Generator(setting, seed=5).draw(0, n)
    for k in range(n):
        margin = int(drawn.margins[k])
        reference = Reference(setting, margin, np.random.default_rng(0))
        curves = [replayed(setting, margin, curve) for curve in drawn.targets[k]]
        assert np.array_equal(reference.image(curves, drawn.discs[k]), drawn.images[k])


@pytest.mark.parametrize("size", SIZES)
def test_every_step_of_the_curves_is_one_of_the_reference(size):
    """Each dash is a candidate with a positive weight and no collision, and the final masks are equal."""
    setting = alone(size)
    generator = Generator(setting, seed=8)
    maps, layout = tables.build(setting)
    seen = set()
    for k in range(2):
        work, drawn = tables.buffers(layout), generator.draw(k, 1)
        found, labels, counts = drawn.images.copy(), drawn.labels.copy(), np.empty((1, 3), np.int64)
        arguments = (k, generator._key, found, labels, counts, drawn.targets, drawn.discs, maps, layout, work)
        assert kernel.draw(*arguments) and np.array_equal(found, drawn.images)
        margin = int(drawn.margins[0])
        seen.add(margin)
        reference = Reference(setting, margin, np.random.default_rng(0))
        mask = replay(reference, [replayed(setting, margin, curve) for curve in drawn.targets[0]])
        inside = slice(layout.ring, layout.ring + size)
        whole, wide = (
            canvas[: layout.stride**2].reshape(layout.stride, -1)[inside, inside] / kernel.ONE
            for canvas in (work.mask, work.wide)
        )
        # The error is half a rounding step, or one step where it decides whether a place is free.
        assert np.abs(whole - mask).max() <= 1 / kernel.ONE
        assert np.array_equal(whole > kernel.BLOCKED / kernel.ONE, mask > 0.3)
        y, x = np.ogrid[-margin : margin + 1, -margin : margin + 1]
        dilated = grey_dilation(mask, footprint=y * y + x * x <= margin * margin, mode="constant")
        assert np.abs(wide - dilated).max() <= 1 / kernel.ONE
    assert seen == set(setting.paddle_margins)


def replay(reference: Reference, curves) -> np.ndarray:
    mask = reference.empty()
    last = [reference.mask(*curve[0]) for curve in curves]
    state = [(reference.pivot(*curve[0]), curve[0][1]) for curve in curves]
    for i in range(1, reference.setting.contour_length):
        for curve in range(2):
            start, drawn = curves[curve][i]
            centre, places, angles, weights = reference.candidates(mask, *state[curve])
            k = places.index(start)
            assert opposite(angles[k]) == pytest.approx(drawn, abs=1e-12)
            assert weights[k] > -1e-9 and weights.sum() >= 1e-4
            new = reference.mask(start, drawn)
            # The kernel adds rounded masks in both sums.
            assert (mask + new).max() < 1.8 + 1 / kernel.ONE
            mask, last[curve] = np.maximum(mask, last[curve]), new
            state[curve] = centre, angles[k]
    return np.maximum(mask, last[1])


def agree(ours: np.ndarray, theirs: np.ndarray, sigmas: float = 3.5) -> None:
    """Two means agree within their sampling errors."""
    error = math.hypot(ours.std() / math.sqrt(len(ours)), theirs.std() / math.sqrt(len(theirs)))
    assert abs(ours.mean() - theirs.mean()) < sigmas * error, (ours.mean(), theirs.mean(), error)


def success(size: int, margin: int, n: int, **changes):
    """Restarts and placed distractors of n images of the generator (times 20) and of the reference."""
    setting = replace(parameters(size), paddle_margins=(margin,), **changes)
    drawn = Generator(setting, seed=9).draw(0, 20 * n)
    reference = Reference(setting, margin, np.random.default_rng(1))
    theirs = np.array([(reference.restarts(), reference.placed()) for _ in range(n)])
    return drawn, theirs


def test_restarts_and_distractors_of_short_curves_are_those_of_the_reference():
    drawn, theirs = success(32, 1, 60, contour_length=5, distractors=2)
    agree(drawn.restarts, theirs[:, 0])
    agree(drawn.placed, theirs[:, 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "margin", "n", "changes"),
    [(32, 1, 150, {}), (64, 1, 40, {"contour_length": 7}), (128, 2, 25, {}), (128, 3, 15, {"contour_length": 9})],
)
def test_restarts_and_distractors_are_those_of_the_reference(size, margin, n, changes):
    drawn, theirs = success(size, margin, n, **changes)
    agree(drawn.restarts, theirs[:, 0])
    agree(drawn.placed, theirs[:, 1])


def test_the_reference_refuses_what_the_law_refuses():
    # The comparison above would not detect a reference that never fails.
    reference = Reference(parameters(32), 1, np.random.default_rng(2))
    with pytest.raises(Failed):
        reference.seed(np.ones(reference.shape), 1)
