"""The Pathfinder generator: statistics, geometry, labels, and images that do not depend on how it is run."""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
from scipy.ndimage import binary_opening, grey_dilation

from fractal_ssm.data.pathfinder import tables
from fractal_ssm.data.pathfinder.generate import Generator, checksum
from fractal_ssm.data.pathfinder.parameters import CONTOUR_LENGTHS, SIZES, parameters
from fractal_ssm.errors import UsageError


@lru_cache(maxsize=40)
def draw(
    size: int, n: int, difficulty: str = "hard", seed: int = 0, contrast: str = "released", rounds: str = "first_level"
):
    return Generator(parameters(size, difficulty, contrast, rounds), seed).draw(0, n)


@pytest.mark.parametrize(
    ("size", "first_level", "each_level"),
    [(32, 10, (10, 6, 5)), (64, 11, (11, 8, 6)), (128, 18, (18, 12, 9)), (256, 15, (15, 10, 8))],
)
def test_rounds_of_distractors(size, first_level, each_level):
    for difficulty, each in zip(CONTOUR_LENGTHS, each_level, strict=True):
        assert parameters(size, difficulty).distractors == first_level
        assert parameters(size, difficulty, rounds="each_level").distractors == each


@pytest.mark.parametrize(
    ("size", "released", "documented"), [(32, 2.0, 2.0), (64, 0.93, 0.8), (128, 0.82, 0.9), (256, 1.0, 1.0)]
)
def test_contrasts(size, released, documented):
    assert parameters(size).curve_contrast == released
    assert parameters(size, contrast="documented").curve_contrast == documented


@pytest.mark.parametrize("size", [32, 128])
def test_labels_are_balanced(size):
    n = 2000 if size == 32 else 500
    assert abs(draw(size, n).labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(n)


def probe_accuracy(images: np.ndarray, labels: np.ndarray) -> float:
    """Test accuracy of a ridge regression on the histogram of grey values, fitted on the first half."""
    histograms = np.stack([np.bincount(image.ravel() // 8, minlength=32) for image in images]).astype(float)
    features = np.column_stack([histograms, images.mean((1, 2)), images.std((1, 2)), np.ones(len(images))])
    features[:, :-1] = (features[:, :-1] - features[:, :-1].mean(0)) / (features[:, :-1].std(0) + 1e-9)
    half = len(images) // 2
    train, test, signs = features[:half], features[half:], 2.0 * labels - 1
    weights = np.linalg.solve(train.T @ train + 10 * np.eye(train.shape[1]), train.T @ signs[:half])
    return float(((test @ weights > 0) == (labels[half:] == 1)).mean())


def test_no_global_statistic_tells_the_label():
    drawn = draw(32, 6000)
    assert abs(probe_accuracy(drawn.images, drawn.labels) - 0.5) < 3 * 0.5 / np.sqrt(3000)


def test_the_probe_can_find_a_leak():
    drawn = draw(32, 1000)
    leaky = np.minimum(drawn.images, 255 - 8 * drawn.labels[:, None, None])
    assert probe_accuracy(leaky, drawn.labels) > 0.9


def dashes(setting, margin: int, curve: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(tail, head) of every dash of a curve, beginning at the tail of the curve."""
    angles = tables.angles(setting, margin)[curve[:, 0]]
    along = np.stack([np.sin(angles), np.cos(angles)], 1) * setting.paddle_length
    first = (curve[0, 1:], curve[0, 1:] + along[0])
    return [first, *((start - step, start) for start, step in zip(curve[1:, 1:], along[1:], strict=True))]


@pytest.mark.parametrize("size", SIZES)
def test_discs_mark_one_curve_for_label_one_and_two_for_label_zero(size):
    setting = parameters(size)
    drawn = draw(size, 60)
    for k in range(60):
        ends = [(tuple(curve[0, 1:]), tuple(curve[-1, 1:])) for curve in drawn.targets[k]]
        first, second = (tuple(disc) for disc in drawn.discs[k])
        same = (first, second) in ends
        crossed = (first, second) in [(ends[0][0], ends[1][1]), (ends[1][0], ends[0][1])]
        assert (same, crossed) == ((True, False) if drawn.labels[k] else (False, True))
        for curve in drawn.targets[k]:
            chain = dashes(setting, drawn.margins[k], curve)
            gaps = [np.linalg.norm(tail - head) for (_, head), (tail, _) in itertools.pairwise(chain)]
            # Rounding of head, pivot and start moves each by less than a pixel and a half.
            assert len(chain) == 14
            assert max(gaps) < 2 * drawn.margins[k] + 3


@pytest.mark.parametrize("size", SIZES)
def test_every_dash_of_the_targets_is_in_the_image(size):
    setting, drawn = parameters(size), draw(size, 60)
    for k in range(60):
        for curve in drawn.targets[k]:
            for tail, head in dashes(setting, drawn.margins[k], curve):
                y, x = np.rint((tail + head) / 2).astype(int)
                assert drawn.images[k, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].max() > 64


def test_the_bright_discs_of_pathx_lie_where_the_geometry_says():
    drawn = draw(128, 60)
    y, x = np.ogrid[-2:3, -2:3]
    disc = y**2 + x**2 <= 4
    for k in range(60):
        # Only the discs of the image contain a bright disc of radius 2.
        places = np.argwhere(binary_opening(drawn.images[k] > 150, disc))
        distance = np.linalg.norm(places[:, None] - drawn.discs[k][None], axis=2)
        assert (distance.min(0) < 2).all()
        assert (distance.min(1) < 5).all()


@pytest.mark.parametrize("size", SIZES)
def test_images_use_the_whole_range_and_curves_keep_off_the_padding(size):
    padding, drawn = parameters(size).padding, draw(size, 60)
    assert (drawn.images.max((1, 2)) == 255).all()
    starts = drawn.targets[..., 1:]
    # The second curve's first dash is placed by distance only, so it alone may start in the padding.
    assert starts[:, :, 1:].min() >= padding
    assert starts[:, :, 1:].max() < size - padding


def test_curves_may_end_at_the_same_pixel():
    # One pair in 200, as in the public generator, although the label of such an image means little.
    ends = draw(32, 6000).targets[:, :, -1, 1:]
    share = (ends[:, 0] == ends[:, 1]).all(1).mean()
    assert 0.002 < share < 0.01


@pytest.mark.parametrize("size", SIZES)
def test_an_image_does_not_depend_on_its_company(size):
    generator = Generator(parameters(size, "easy"), seed=3)
    whole = generator.draw(0, 12)
    for first, n in ((0, 5), (5, 1), (6, 6)):
        part = generator.draw(first, n)
        for all_of_them, some in zip(whole, part, strict=True):
            assert np.array_equal(all_of_them[first : first + n], some)


def test_seeds_sizes_and_settings_give_other_images():
    sums = {checksum(draw(32, 20, seed=seed).images) for seed in (0, 1, 2**63 - 1)}
    sums |= {checksum(draw(32, 20, difficulty).images) for difficulty in ("easy", "intermediate")}
    sums.add(checksum(draw(32, 20, rounds="each_level").images))
    assert len(sums) == 6
    assert checksum(draw(128, 4, contrast="documented").images) != checksum(draw(128, 4).images)
    # Sizes have different random streams, so labels do not repeat between them.
    assert not np.array_equal(draw(32, 64).labels, draw(256, 64).labels)


# Change LAW_VERSION together with these, so that older caches are recognised as other images.
FIXED = {
    32: "a0ecca551554914af8ce25ccbdf7c7ed34fcb4d7b3f47463b48c1030c196846d",
    128: "0bc5fd90572eb37cc8692fae0f2eca394017a556009fe11a002651ff83d8ca0a",
}


@pytest.mark.parametrize(("size", "n"), [(32, 100), (128, 10)])
def test_the_images_of_a_seed_never_change(size, n):
    drawn = draw(size, n)
    assert checksum(drawn.images, drawn.labels) == FIXED[size]


@pytest.mark.parametrize("size", SIZES)
def test_the_widened_mask_is_the_mask_widened(size):
    # The kernel never dilates: it updates both maps from patches that were widened once.
    setting = parameters(size)
    generator = Generator(setting)
    maps, layout = tables.build(setting)
    work = tables.buffers(layout)
    outputs = generator.draw(0, 1)
    labels, counts = np.empty(1, np.uint8), np.empty((1, 3), np.int64)
    key = np.uint64(7)
    generator._kernel.draw(0, key, outputs.images, labels, counts, outputs.targets, outputs.discs, maps, layout, work)
    margin = setting.paddle_margins[counts[0, 2]]
    y, x = np.ogrid[-margin : margin + 1, -margin : margin + 1]
    inside = slice(layout.ring, layout.ring + size)
    mask, wide = (
        canvas[: layout.stride**2].reshape(layout.stride, layout.stride)[inside, inside]
        for canvas in (work.mask, work.wide)
    )
    assert mask.max() > 200
    assert np.array_equal(wide, grey_dilation(mask, footprint=y**2 + x**2 <= margin**2, mode="constant"))


def test_contours_have_the_length_of_their_difficulty():
    for difficulty, length in CONTOUR_LENGTHS.items():
        setting = parameters(64, difficulty)
        assert (setting.contour_length, setting.distractor_length) == (length, length // 3)
        assert draw(64, 2, difficulty).targets.shape == (2, 2, length, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((48,), "no size 48. Allowed: 32, 64, 128, 256"),
        ((32, "harder"), "Did you mean 'hard'"),
        ((32, "hard", "calibrated"), "Known: documented, released"),
        ((32, "hard", "released", "first"), "Did you mean 'first_level'"),
    ],
)
def test_unknown_settings_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        parameters(*arguments)


def test_a_seed_outside_its_range_is_refused():
    with pytest.raises(UsageError, match="got -1"):
        Generator(parameters(32), seed=-1)


def test_importing_the_package_loads_neither_compiler_nor_drawing_library():
    code = "import sys, fractal_ssm.data.pathfinder; print(sorted({'numba', 'PIL', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
