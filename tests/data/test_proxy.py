"""The proxy tasks: their definition, and that pieces of a sequence do not give the answer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import KDTree

from fractal_ssm.data.pathfinder.generate import Generator
from fractal_ssm.data.pathfinder.matched import _first_pairs, draw_pairs
from fractal_ssm.data.proxy import ProxyAdding, ProxyPathfinder, ProxyPathfinderMatched, ProxyRecall
from fractal_ssm.errors import UsageError
from fractal_ssm.registry import datasets

NAMES = ["proxy-recall", "proxy-adding"]


@pytest.mark.parametrize("name", NAMES)
def test_samples_follow_from_the_seed(tmp_path, name):
    nodes = ({"name": name, "seed": seed, "length": 64} for seed in (0, 0, 1))
    data, same, other = (datasets.build(node, data_dir=tmp_path) for node in nodes)
    data.prepare()
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(data.split(split)[5][0], same.split(split)[5][0])
    assert not np.array_equal(data.split("train")[5][0], data.split("val")[5][0])
    assert not np.array_equal(data.split("train")[5][0], other.split("train")[5][0])
    assert data.describe()["checksum"] == same.describe()["checksum"] != other.describe()["checksum"]
    assert data.describe()["lra"] is False and data.describe()["label_shares"]["test"] == [0.5, 0.5]
    batch = data.collate([data.split("train")[index] for index in range(4)])
    assert batch.inputs.shape == (4, 64, data.d_input) and batch.targets.tolist() == [0, 1, 0, 1]
    with pytest.raises(IndexError):
        data.split("val")[len(data.split("val"))]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("length", "gap"), [(16, 0.8), (17, 0.01), (64, 0.5), (4096, 0.5), (4096, 0.8)])
def test_recall_has_two_opposite_pulses_far_apart(length, gap):
    data = ProxyRecall(None, n_train=40, length=length, gap=gap, noise=0.0)
    for x, label in (data.split("train")[index] for index in range(40)):
        values = x[:, 0]
        assert values.sum() == pytest.approx(0.0) and np.abs(values).sum() == pytest.approx(2 * (length // 16))
        places = np.flatnonzero(values)
        assert values[places[0]] == (1.0 if label else -1.0) and places[0] < length // 8
        assert np.flatnonzero(values == -values[places[0]])[0] - places[0] >= int(gap * length)


def test_recall_needs_the_order_of_far_parts():
    data = ProxyRecall(None, n_train=400)
    samples, labels = zip(*(data.split("train")[index] for index in range(400)), strict=True)
    values, labels = np.stack(samples)[:, :, 0], np.array(labels)
    # Windows of 256 steps in any order do not help: sorted window sums have the same law in both classes.
    windows = np.sort(values.reshape(400, 16, 256).sum(2), axis=1)
    direction = windows[:200][labels[:200] == 1].mean(0) - windows[:200][labels[:200] == 0].mean(0)
    scores = windows[200:] @ direction
    assert abs(((scores > np.median(scores)) == labels[200:]).mean() - 0.5) < 0.12
    # A running sum, averaged over time, gives the answer.
    memory = np.cumsum(values, axis=1).mean(1)
    assert ((memory > 0) == labels).mean() > 0.99


def test_adding():
    data = ProxyAdding(None, n_train=300, length=64)
    for x, label in (data.split("train")[index] for index in range(300)):
        plateaus = x.reshape(16, 4, 2)
        np.testing.assert_array_equal(plateaus, np.broadcast_to(plateaus[:, :1], plateaus.shape))
        values, marks = plateaus[:, 0, 0], plateaus[:, 0, 1]
        places = np.flatnonzero(marks)
        assert len(places) == 2 and places[0] < 8 <= places[1] and set(marks) == {0.0, 1.0}
        assert np.abs(values).max() <= 1.0 and len(set(values)) == 16
        total = values[places].sum()
        assert (total > 0.0) == bool(label) and abs(total) >= 0.2 - 1e-6


def test_adding_needs_both_marked_values():
    data = ProxyAdding(None, n_train=2000, length=16)
    samples, labels = zip(*(data.split("train")[index] for index in range(2000)), strict=True)
    x, labels = np.stack(samples), np.array(labels)
    second = (x[:, 8:, 0] * x[:, 8:, 1]).sum(1)
    assert ((x[:, :, 0].sum(1) > 0) == labels).mean() < 0.65
    assert 0.7 < ((second > 0) == labels).mean() < 0.85


def test_pathfinder_images_are_those_of_the_generator_and_splits_share_none():
    counts = {"n_train": 30, "n_val": 10, "n_test": 20}
    data, other = (ProxyPathfinder(None, **counts, seed=seed) for seed in (0, 1))
    with pytest.raises(UsageError, match="prepare"):
        data.split("train")
    data.prepare(), other.prepare()
    drawn = Generator(data.setting).draw(0, 60)
    samples = [sample for name in ("train", "val", "test") for sample in data.split(name)]
    pixels, labels = (np.stack(part) for part in zip(*samples, strict=True))
    np.testing.assert_allclose(pixels * 255, drawn.images.reshape(60, 1024, 1), atol=1e-4)
    np.testing.assert_array_equal(labels, drawn.labels)
    assert pixels.dtype == np.float32
    assert len(np.unique(pixels, axis=0)) == 60
    facts = data.describe()
    assert facts["counts"] == {"train": 30, "val": 10, "test": 20} and facts["lra"] is False
    assert facts["label_shares"]["test"] == [1 - labels[40:].mean(), labels[40:].mean()]
    assert facts["checksum"] != other.describe()["checksum"]
    batch = data.collate([data.split("val")[index] for index in range(4)])
    assert batch.inputs.shape == (4, 1024, 1) and batch.lengths.tolist() == [1024] * 4


@pytest.mark.parametrize(("dashes", "share"), [(6, 0.59), (4, 0.74), (3, 0.80)])
def test_what_the_distance_of_the_discs_tells(dashes, share):
    """The figures of the docstring: a table of distances, filled on one half of the images and read on the other."""
    drawn = Generator(ProxyPathfinder(None, contour_length=dashes).setting).draw(0, 20_000)
    distances = np.hypot(*(drawn.discs[:, 0] - drawn.discs[:, 1]).T.astype(float))
    bins, known, labels = (2 * distances).astype(int), slice(0, 10_000), drawn.labels
    ones = np.bincount(bins[known], labels[known], minlength=bins.max() + 1)
    guess = 2 * ones > np.bincount(bins[known], minlength=bins.max() + 1)
    assert (guess[bins[10_000:]] == labels[10_000:]).mean() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("dashes", "share"), [(6, 0.75), (4, 0.90), (3, 0.91)])
def test_what_the_places_of_the_discs_tell(dashes, share):
    """A vote of 25 images with similar places; which disc begins a curve is unknown, so the central one comes first."""
    drawn, known = Generator(ProxyPathfinder(None, contour_length=dashes).setting).draw(0, 55_000), 50_000
    discs = drawn.discs.astype(float)
    order = np.argsort(((discs - 15.2) ** 2).sum(2), axis=1)
    places = np.take_along_axis(discs, order[:, :, None], axis=1).reshape(len(discs), 4)
    _, neighbours = KDTree(places[:known]).query(places[known:], k=25)
    guess = drawn.labels[neighbours].mean(1) > 0.5
    assert (guess == drawn.labels[known:]).mean() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProxyRecall(None, length=15), "length >= 16"),
        (lambda: ProxyRecall(None, gap=0.9), "0 < gap <= 0.8"),
        (lambda: ProxyRecall(None, noise=-1.0), "0 <= noise <= 1e6"),
        (lambda: ProxyRecall(None, n_val=0), "n_val >= 1"),
        (lambda: ProxyAdding(None, margin=1.9), "margin < 1.9"),
        (lambda: ProxyAdding(None, length=100), "multiple of 16"),
        (lambda: ProxyAdding(None, seed=-1), "seed >= 0"),
        (lambda: ProxyPathfinder(None, contour_length=1), "contour_length >= 2 and <= 14"),
        (lambda: ProxyPathfinder(None, distractors=21), "distractors >= 0 and <= 20 .*got 21"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.fixture(scope="module")
def matched():
    """Pairs of Pathfinder images; drawing the generator's images again gives the places of their discs."""
    data = ProxyPathfinderMatched(None, n_train=400, n_val=20, n_test=80)
    with pytest.raises(UsageError, match="prepare"):
        data.split("train")
    data.prepare()
    return data


def test_both_images_of_a_pair_have_their_discs_on_the_same_pixels(matched):
    generator = Generator(matched.setting, matched.seed)
    chosen = _first_pairs(generator, 250)
    drawn = generator.draw(0, int(chosen.max()) + 1)
    samples = [sample for name in ("train", "val", "test") for sample in matched.split(name)]
    pixels, labels = (np.stack(part) for part in zip(*samples, strict=True))
    np.testing.assert_allclose(pixels[:, :, 0] * 255, drawn.images[chosen.ravel()].reshape(500, -1), atol=1e-4)
    np.testing.assert_array_equal(labels, drawn.labels[chosen.ravel()])
    # Discs of the two images, each pair of places in one order.
    discs = np.sort(drawn.discs[chosen][..., 0] * 32 + drawn.discs[chosen][..., 1], axis=2)
    np.testing.assert_array_equal(discs[:, 0], discs[:, 1])
    assert (labels.reshape(-1, 2).sum(1) == 1).all()
    assert len(np.unique(chosen)) == 500
    assert matched.describe()["label_shares"]["test"] == [0.5, 0.5]


def test_the_places_of_the_discs_tell_half(matched):
    """The vote of near places, which is right on 91 % of unpaired images, is right on half of the images in pairs."""
    chosen = _first_pairs(generator := Generator(matched.setting, 0), 3000)
    discs, labels = [], []
    for first in range(0, int(chosen.max()) + 1, 20_000):
        drawn = generator.draw(first, 20_000)
        discs.append(drawn.discs), labels.append(drawn.labels)
    discs, labels = np.concatenate(discs)[chosen.ravel()], np.concatenate(labels)[chosen.ravel()]
    order = np.argsort(discs[:, :, 0] * 32 + discs[:, :, 1], axis=1)
    places = np.take_along_axis(discs, order[:, :, None], axis=1).reshape(len(discs), 4)
    _, neighbours = KDTree(places[:5000]).query(places[5000:], k=25)
    # A tie among equally near places could be broken in two ways, but the guess must be a function of the place.
    guess = {tuple(place): labels[near].mean() > 0.5 for place, near in zip(places[5000:], neighbours, strict=True)}
    right = [guess[tuple(place)] == label for place, label in zip(places[5000:], labels[5000:], strict=True)]
    assert sum(right) == 500


def test_more_pairs_only_add_to_fewer(matched):
    generator = Generator(matched.setting, 0)
    np.testing.assert_array_equal(draw_pairs(generator, 40)[0], draw_pairs(generator, 100)[0][:80])


def test_pairs_need_even_splits():
    with pytest.raises(UsageError, match="n_val=25, n_test=7.*Add one"):
        ProxyPathfinderMatched(None, n_train=10, n_val=25, n_test=7)
