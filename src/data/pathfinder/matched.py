"""Pairs of images with different labels whose discs lie on the same pixels, so that only the dashes differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from .generate import Generator, Images

# Images drawn at a time, which bounds the memory: 20 MB at 32 px.
_CHUNK = 20_000


def draw_pairs(generator: Generator, n_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """The first n_pairs pairs of the generator's sequence of images.

    An image is paired with the earliest unpaired image that has the same two places and the other label. Pairs stand in
    the order in which they are completed, so a larger n_pairs only appends pairs. The images are drawn twice, the first
    time for the places alone: most find no partner, and all of them would not fit into memory.

    Args:
        generator: of any setting.
        n_pairs: >= 1.
    Returns:
        images uint8 (2 n_pairs, size, size) and labels uint8 (2 n_pairs,): image 2 i and its partner 2 i + 1, the
        earlier one first.
    """
    chosen = _first_pairs(generator, n_pairs).ravel()
    images = np.empty((len(chosen), generator.setting.size, generator.setting.size), np.uint8)
    labels = np.empty(len(chosen), np.uint8)
    for first in np.unique(chosen // _CHUNK) * _CHUNK:
        drawn = generator.draw(int(first), _CHUNK)
        here = (chosen >= first) & (chosen < first + _CHUNK)
        images[here], labels[here] = drawn.images[chosen[here] - first], drawn.labels[chosen[here] - first]
    return images, labels


def places(drawn: Images) -> np.ndarray:
    """(n,) int64, one number for each unordered pair of places of the two discs."""
    size = drawn.images.shape[-1]
    pixels = np.sort(drawn.discs[:, :, 0].astype(np.int64) * size + drawn.discs[:, :, 1], axis=1)
    return pixels[:, 0] * size**2 + pixels[:, 1]


def _first_pairs(generator: Generator, n_pairs: int) -> np.ndarray:
    """(n_pairs, 2) int64, indices of the images of each pair."""
    alone: dict[tuple[int, int], list[int]] = defaultdict(list)
    found: list[tuple[int, int]] = []
    for index, (place, label) in enumerate(_sequence(generator)):
        partners = alone[place, 1 - label]
        if not partners:
            alone[place, label].append(index)
            continue
        found.append((partners.pop(0), index))
        if len(found) == n_pairs:
            break
    return np.array(found)


def _sequence(generator: Generator) -> Iterator[tuple[int, int]]:
    """Places and label of image 0, 1, 2, ..."""
    first = 0
    while True:
        drawn = generator.draw(first, _CHUNK)
        yield from zip(places(drawn).tolist(), drawn.labels.tolist(), strict=True)
        first += _CHUNK
