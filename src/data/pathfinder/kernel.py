"""The compiled generator: one call draws a run of images, each from a random stream of its own.

Importing this module imports numba; the package does so only when there are images to draw. A first import on a machine
compiles (about ten seconds) and leaves the result beside the source or in numba's cache folder.

An attempt at a pair of target curves fails often (about 250 times per image at 128 px), so what counts is the price of
a failed attempt: only two byte maps are kept, the mask M and the mask widened by the margin, both updated from short
lists of pixels. Nothing is drawn before an attempt has succeeded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .tables import BLOCKED, COLLISION, DEGREES, MINIMUM_WEIGHT, ONE, OUTSIDE, WIDTH, canvas_bytes

# Retries of the law: of a dash, of a distractor curve.
DASH_TRIES = 3
DISTRACTOR_TRIES = 5
# Random places tried before all places are searched; the result is uniform over the free places either way.
_GUESSES = 400
MAX_ATTEMPTS = 5_000_000


class Work(NamedTuple):
    """Buffers of one call; see `buffers`."""

    rng: np.ndarray
    mask: np.ndarray
    wide: np.ndarray
    mask_before: np.ndarray
    wide_before: np.ndarray
    canvas: np.ndarray
    total: np.ndarray
    found: np.ndarray
    targets: np.ndarray
    distractor: np.ndarray


class Curve(NamedTuple):
    """End of a growing curve: last pivot, and the direction and start of the last dash (whose mask is not in M yet)."""

    pivot: int
    direction: int
    start: int


def buffers(layout) -> Work:
    """Buffers for `draw`: random state, maps over the canvas, and the dashes (direction, start) of the curves."""
    canvas = canvas_bytes(layout.stride)
    return Work(
        rng=np.zeros(4, np.uint64),
        mask=np.zeros(canvas, np.uint8),
        wide=np.zeros(canvas, np.uint8),
        mask_before=np.zeros(canvas, np.uint8),
        wide_before=np.zeros(canvas, np.uint8),
        canvas=np.zeros(canvas, np.int32),
        total=np.zeros(512, np.int64),
        found=np.zeros(layout.size**2, np.int32),
        targets=np.zeros((2, layout.contour_length, 2), np.int32),
        distractor=np.zeros((layout.distractor_length, 2), np.int32),
    )


@njit(cache=True, nogil=True)
def draw(first, key, images, labels, counts, targets, discs, tables, layout, work):
    """Draw the images first, first + 1, ... of the stream `key` (uint64).

    images: uint8 (n, size, size) and labels: uint8 (n,) are filled; so are counts: int64 (n, 3) restarts of the target
    pair, distractors placed, index of the margin; targets: int32 (n, 2, contour_length, 3) direction, y, x of every
    dash of the two curves; discs: int32 (n, 2, 2) y, x of the two discs.
    Returns False where no pair was found in MAX_ATTEMPTS.
    """
    for k in range(len(images)):
        _seed(work.rng, key, first + k)
        label = _below(work.rng, 2)
        margin = _below(work.rng, layout.margins)
        attempts = 1
        while not _target_pair(margin, tables, layout, work):
            attempts += 1
            if attempts > MAX_ATTEMPTS:
                return False
        work.canvas[:] = 0
        _draw_curve(work.targets[0], 0, margin, tables, work)
        _draw_curve(work.targets[1], 0, margin, tables, work)
        counts[k, 0] = attempts - 1
        counts[k, 1] = _distractors(margin, tables, layout, work)
        counts[k, 2] = margin
        for curve in range(2):
            for i in range(layout.contour_length):
                targets[k, curve, i, 0] = work.targets[curve, i, 0]
                targets[k, curve, i, 1] = work.targets[curve, i, 1] // layout.stride - layout.ring
                targets[k, curve, i, 2] = work.targets[curve, i, 1] % layout.stride - layout.ring
        first_disc = _below(work.rng, 2)
        second_disc = first_disc if label == 1 else 1 - first_disc
        discs[k, 0] = targets[k, first_disc, 0, 1:]
        discs[k, 1] = targets[k, second_disc, layout.contour_length - 1, 1:]
        _draw_disc(discs[k, 0, 0], discs[k, 0, 1], tables, layout, work)
        _draw_disc(discs[k, 1, 0], discs[k, 1, 1], tables, layout, work)
        _expose(images[k], layout, work)
        labels[k] = label
    return True


@njit(cache=True)
def _target_pair(margin, tables, layout, work):
    """One attempt at the two target curves; False as soon as anything fails."""
    placed, y, x, first = _seed_in_box(margin, tables, layout, work)
    if not placed:
        return False
    placed, second = _seed_beside(y, x, margin, tables, layout, work)
    if not placed:
        return False
    _copy(work.mask, tables.empty[margin])
    _copy(work.wide, tables.empty_wide[margin])
    _note(work.targets[0], 0, first)
    _note(work.targets[1], 0, second)
    for i in range(1, layout.contour_length):
        grown, first = _extend(first, margin, tables, layout, work)
        if not grown:
            return False
        _note(work.targets[0], i, first)
        grown, second = _extend(second, margin, tables, layout, work)
        if not grown:
            return False
        _note(work.targets[1], i, second)
    # The law adds the last mask of the second curve only.
    _add_mask(second, margin, tables, layout, work)
    return True


@njit(cache=True)
def _distractors(margin, tables, layout, work):
    """Try every distractor; the number of those that found a place. Draws them."""
    n_placed = 0
    for _ in range(layout.distractors):
        if not _has_room(layout, work):
            break
        _copy(work.mask_before, work.mask)
        _copy(work.wide_before, work.wide)
        for _ in range(DISTRACTOR_TRIES):
            grown, touched = _distractor(margin, tables, layout, work)
            if grown:
                n_placed += 1
                _draw_curve(work.distractor, 1, margin, tables, work)
                break
            if touched:
                _copy(work.mask, work.mask_before)
                _copy(work.wide, work.wide_before)
    return n_placed


@njit(cache=True)
def _distractor(margin, tables, layout, work):
    """One attempt at a distractor: whether it grew to its length, and whether the maps were touched."""
    placed, curve = _seed_anywhere(margin, tables, layout, work)
    if not placed:
        return False, False
    _note(work.distractor, 0, curve)
    for i in range(1, layout.distractor_length):
        grown, curve = _extend(curve, margin, tables, layout, work)
        if not grown:
            return False, i > 1
        _note(work.distractor, i, curve)
    _add_mask(curve, margin, tables, layout, work)
    return True, True


@njit(cache=True)
def _extend(curve, margin, tables, layout, work):
    """Grow a curve by one dash: (whether it could, the curve).

    The weight of a candidate is (1 - widened mask) * cos(turn)**2. A mask overshoots one in its middle, so weights may
    be negative: such candidates are never taken and lower the weight of their neighbours, as in the law.
    """
    rng, mask, wide, totals = work.rng, work.mask, work.wide, work.total
    direction = curve.direction
    pivot = curve.pivot + tables.joint[margin, direction]
    total = np.int64(0)
    n = tables.n_choice[margin, direction]
    for i in range(n):
        blocked = wide[pivot + tables.choice_at[margin, direction, i]]
        if blocked != OUTSIDE:
            total += (ONE - np.int64(blocked)) * tables.weight[margin, direction, i]
        totals[i] = total
    if total < MINIMUM_WEIGHT:
        return False, curve
    for _ in range(DASH_TRIES):
        # 28 random bits times a total below 2**35 stay within 63 bits.
        level = (_below(rng, 1 << 28) * total) >> 28
        i = 0
        while totals[i] <= level:
            i += 1
        start = pivot + tables.choice_at[margin, direction, i]
        chosen = tables.choice[margin, direction, i]
        if not _collides(mask, start, chosen, margin, tables):
            _add_mask(curve, margin, tables, layout, work)
            return True, Curve(np.int64(pivot), np.int64(chosen), np.int64(start))
    return False, curve


@njit(cache=True)
def _collides(mask, start, direction, margin, tables):
    for i in range(tables.n_core[margin, direction]):
        there = np.int64(mask[start + tables.core_at[margin, direction, i]])
        if there + tables.core[margin, direction, i] >= COLLISION:
            return True
    return False


@njit(cache=True)
def _add_mask(curve, margin, tables, layout, work):
    _raise_to(work.mask, tables.mask[margin, curve.direction], curve.start, layout.stride)
    _raise_to(work.wide, tables.wide[margin, curve.direction], curve.start, layout.stride)


@njit(cache=True)
def _raise_to(canvas, patch, middle, stride):
    """Maximum of canvas and patch. Unsigned indices: a sign test at every pixel would keep the loop from vectorising."""
    half = len(patch) // 2
    corner = np.uint64(middle - half * stride - half)
    for row in range(np.uint64(len(patch))):
        for column in range(np.uint64(WIDTH)):
            at = corner + row * np.uint64(stride) + column
            canvas[at] = max(canvas[at], patch[row, column])


@njit(cache=True)
def _copy(target, source):
    # In words of eight bytes: byte by byte, this would be most of the time of an attempt.
    target_words, source_words = target.view(np.uint64), source.view(np.uint64)
    for i in range(len(target_words)):
        target_words[i] = source_words[i]


@njit(cache=True)
def _seed_in_box(margin, tables, layout, work):
    """First dash of the first curve: (success, y, x, curve). Only the wide border is blocked, so the free places are a box."""
    rng, low, high = work.rng, layout.seed_border, layout.size - 1 - layout.seed_border
    for _ in range(DASH_TRIES):
        direction = _below(rng, DEGREES)
        top, left = low - tables.reach[margin, direction, 0], low - tables.reach[margin, direction, 2]
        height = high - tables.reach[margin, direction, 1] - top + 1
        width = high - tables.reach[margin, direction, 3] - left + 1
        if height < 1 or width < 1:
            break
        y, x = top + _below(rng, height), left + _below(rng, width)
        placed, curve = _first_dash(y, x, direction, margin, tables, layout)
        if placed:
            return True, y, x, curve
    return False, 0, 0, Curve(0, 0, 0)


@njit(cache=True)
def _seed_beside(y, x, margin, tables, layout, work):
    """First dash of the second curve, at a fixed distance from the first: (success, curve)."""
    for _ in range(DASH_TRIES):
        direction = _below(work.rng, DEGREES)
        around = _below(work.rng, DEGREES)
        placed, curve = _first_dash(
            y + tables.second[around, 0], x + tables.second[around, 1], direction, margin, tables, layout
        )
        if placed:
            return True, curve
    return False, Curve(0, 0, 0)


@njit(cache=True)
def _seed_anywhere(margin, tables, layout, work):
    """First dash of a distractor, uniform over the free places: (success, curve)."""
    size, ring, stride = layout.size, layout.ring, layout.stride
    for _ in range(DASH_TRIES):
        direction = _below(work.rng, DEGREES)
        place = np.int64(-1)
        for _ in range(_GUESSES):
            guess = (_below(work.rng, size) + ring) * stride + _below(work.rng, size) + ring
            if _is_free(work.mask, guess, direction, margin, tables):
                place = guess
                break
        if place < 0:
            n = 0
            for row in range(ring, ring + size):
                for at in range(row * stride + ring, row * stride + ring + size):
                    if _is_free(work.mask, at, direction, margin, tables):
                        work.found[n] = at
                        n += 1
            if n == 0:
                break
            place = np.int64(work.found[_below(work.rng, n)])
        y, x = place // stride - ring, place % stride - ring
        placed, curve = _first_dash(y, x, direction, margin, tables, layout)
        if placed:
            return True, curve
    return False, Curve(0, 0, 0)


@njit(cache=True)
def _first_dash(y, x, direction, margin, tables, layout):
    """(whether the head and pivot of a dash with its tail at y, x lie in the image, the curve)."""
    size, ring, stride = layout.size, layout.ring, layout.stride
    head_y, head_x = y + tables.head[margin, direction, 0], x + tables.head[margin, direction, 1]
    pivot_y, pivot_x = y + tables.pivot[margin, direction, 0], x + tables.pivot[margin, direction, 1]
    inside = 0 <= min(head_y, head_x, pivot_y, pivot_x) and max(head_y, head_x, pivot_y, pivot_x) < size
    pivot = (pivot_y + ring) * stride + pivot_x + ring
    start = (y + ring) * stride + x + ring
    return inside, Curve(np.int64(pivot), np.int64(direction), np.int64(start))


@njit(cache=True)
def _is_free(mask, place, direction, margin, tables):
    for i in range(tables.n_element[margin, direction]):
        if mask[place + tables.element_at[margin, direction, i]] > BLOCKED:
            return False
    return True


@njit(cache=True)
def _has_room(layout, work):
    """Whether at least one pixel in a hundred is free."""
    needed = layout.size * layout.size
    n = 0
    for row in range(layout.ring, layout.ring + layout.size):
        at = row * layout.stride + layout.ring
        for x in range(layout.size):
            n += work.mask[at + x] <= BLOCKED
        if 100 * n >= needed:
            return True
    return False


@njit(cache=True)
def _note(dashes, i, curve):
    dashes[i, 0] = curve.direction
    dashes[i, 1] = curve.start


@njit(cache=True)
def _draw_curve(dashes, contrast, margin, tables, work):
    for i in range(len(dashes)):
        direction, start = dashes[i, 0], dashes[i, 1]
        for k in range(tables.n_line[margin, direction]):
            at = start + tables.line_at[margin, direction, k]
            work.canvas[at] = max(work.canvas[at], tables.line[contrast, margin, direction, k])


@njit(cache=True)
def _draw_disc(y, x, tables, layout, work):
    row, side = tables.marker.shape[0] // 2, tables.marker.shape[0]
    # The small image that has the disc as far from its edges as the large one has it.
    i = _from_edges(y, layout.size, row)
    j = _from_edges(x, layout.size, row)
    corner = (y - i + layout.ring) * layout.stride + x - j + layout.ring
    for dy in range(side):
        for dx in range(side):
            at = corner + dy * layout.stride + dx
            work.canvas[at] = max(work.canvas[at], tables.marker[i, j, dy, dx])


@njit(cache=True)
def _from_edges(place, size, edge):
    if place < edge:
        return place
    return max(edge, 2 * edge - (size - 1 - place))


@njit(cache=True)
def _expose(image, layout, work):
    """Scale the brightest pixel of the image to 255, rounding down."""
    brightest = np.int32(1)
    for y in range(layout.size):
        row = (y + layout.ring) * layout.stride + layout.ring
        for x in range(layout.size):
            brightest = max(brightest, work.canvas[row + x])
    for y in range(layout.size):
        row = (y + layout.ring) * layout.stride + layout.ring
        for x in range(layout.size):
            value = work.canvas[row + x]
            image[y, x] = 0 if value == 0 else np.int64(value) * 255 // brightest


@njit(cache=True)
def _below(rng, n):
    """Uniform integer in [0, n), n <= 2**28: the upper half of an xoshiro256++ word, scaled."""
    word = _rotate(rng[0] + rng[3], 23) + rng[0]
    shifted = rng[1] << np.uint64(17)
    rng[2] ^= rng[0]
    rng[3] ^= rng[1]
    rng[1] ^= rng[2]
    rng[0] ^= rng[3]
    rng[2] ^= shifted
    rng[3] = _rotate(rng[3], 45)
    return np.int64(((word >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(cache=True)
def _seed(rng, key, index):
    """State of the stream of one image: splitmix64 words from a mix of key and index."""
    state = _mix(np.uint64(key)) ^ _mix(np.uint64(index) + np.uint64(0x9E3779B97F4A7C15))
    for i in range(4):
        state += np.uint64(0x9E3779B97F4A7C15)
        rng[i] = _mix(state)


@njit(cache=True)
def _mix(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(cache=True)
def _rotate(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))
