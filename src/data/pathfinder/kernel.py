"""The compiled generator: one call draws a run of images, each from its own random stream.

Importing this module imports numba; the package does so only when there are images to draw. The first call on a machine
compiles (20 to 60 seconds) and leaves the result beside the source or in numba's cache folder.

An attempt at a pair of target curves fails often (about 400 times per image at 128 px), so failed attempts must be
cheap: only two byte maps are kept, the mask M and the mask widened by the margin, both updated from short lists of
pixels or short rows. Nothing is drawn before an attempt has succeeded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from .paint import draw_curve, draw_disc, expose
from .stream import below, seed
from .vector import WIDTH, raise_row

# The constants stand here because numba reuses a cached result as long as this file is unchanged. After an edit of
# paint.py, stream.py or vector.py, change this file as well.
DEGREES = 360
# Fixed point: ONE stands for a mask of 1. Masks overshoot 1 by up to a sixth (Lanczos), and a byte must hold them.
ONE = 200
OUTSIDE = 255
WEIGHT = 1 << 20
# Masks up to FREE leave a place free; a dash collides where its mask and the others add up to COLLISION.
FREE = 0.3
BLOCKED = round(FREE * ONE)
COLLISION = round(1.8 * ONE)
# A curve ends where the candidates have less total weight than this.
MINIMUM_WEIGHT = round(1e-4 * ONE * WEIGHT)
# Tries that the law allows for a dash and for a distractor curve.
DASH_TRIES = 3
DISTRACTOR_TRIES = 5
# Random places tried before all places are searched; the result is uniform over the free places either way.
_GUESSES = 400
MAX_ATTEMPTS = 5_000_000


class Work(NamedTuple):
    """Buffers of one call; see `tables.buffers`."""

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
    """End of a growing curve: last pivot y, x; direction and start of the last dash (whose mask is not in M yet)."""

    y: int
    x: int
    direction: int
    start: int


class Growth(NamedTuple):
    """Tables of one margin that growing a curve needs; see `Tables`."""

    numbers: np.ndarray
    choices: np.ndarray
    core: np.ndarray
    mask: np.ndarray
    wide: np.ndarray
    joint: np.ndarray


class Maps(NamedTuple):
    """State that growing a curve changes (random words, mask, widened mask, sums of weights), and the maps' layout."""

    rng: np.ndarray
    mask: np.ndarray
    wide: np.ndarray
    total: np.ndarray
    stride: int
    ring: int


@njit(cache=True, nogil=True)
def draw(first, key, images, labels, counts, targets, discs, tables, layout, work):
    """Draw the images first, first + 1, ... of the stream `key` (uint64).

    images: uint8 (n, size, size) and labels: uint8 (n,) are filled; so are counts: int64 (n, 3) restarts of the target
    pair, distractors placed, index of the margin; targets: int32 (n, 2, contour_length, 3) direction, y, x of every
    dash of the two curves; discs: int32 (n, 2, 2) y, x of the two discs.
    Returns False where no pair was found in MAX_ATTEMPTS.
    """
    maps = Maps(work.rng, work.mask, work.wide, work.total, layout.stride, layout.ring)
    rng, usable = work.rng, tables.usable
    for k in range(len(images)):
        seed(rng, key, first + k)
        label = below(rng, 2)
        margin = below(rng, layout.margins)
        grown = tables.numbers[margin], tables.choices[margin], tables.core[margin]
        growth = Growth(*grown, tables.mask[margin], tables.wide[margin], tables.joint[margin])
        restarts = 0
        while True:
            # Tested here, before the dash is placed: most directions are refused at 32 and 64 px, and passing all
            # tables to a function costs more than the test.
            direction = below(rng, DEGREES)
            if usable[margin, direction] and _target_pair(direction, margin, growth, maps, tables, layout, work):
                break
            restarts += 1
            if restarts >= MAX_ATTEMPTS:
                return False
        work.canvas[:] = 0
        draw_curve(work.targets[0], 0, margin, tables, work)
        draw_curve(work.targets[1], 0, margin, tables, work)
        counts[k, 0] = restarts
        counts[k, 1] = _distractors(margin, growth, maps, tables, layout, work)
        counts[k, 2] = margin
        for curve in range(2):
            for i in range(layout.contour_length):
                targets[k, curve, i, 0] = work.targets[curve, i, 0]
                targets[k, curve, i, 1] = work.targets[curve, i, 1] // layout.stride - layout.ring
                targets[k, curve, i, 2] = work.targets[curve, i, 1] % layout.stride - layout.ring
        first_disc = below(rng, 2)
        second_disc = first_disc if label == 1 else 1 - first_disc
        discs[k, 0] = targets[k, first_disc, 0, 1:]
        discs[k, 1] = targets[k, second_disc, layout.contour_length - 1, 1:]
        draw_disc(discs[k, 0, 0], discs[k, 0, 1], tables, layout, work)
        draw_disc(discs[k, 1, 0], discs[k, 1, 1], tables, layout, work)
        expose(images[k], layout, work)
        labels[k] = label
    return True


@njit(cache=True)
def _target_pair(direction, margin, growth, maps, tables, layout, work):
    """One attempt at the two target curves, the first in a usable direction; False as soon as anything fails."""
    placed, y, x, first = _seed_in_box(direction, margin, tables, layout, work)
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
        grown, first = _extend(first, growth, maps)
        if not grown:
            return False
        _note(work.targets[0], i, first)
        grown, second = _extend(second, growth, maps)
        if not grown:
            return False
        _note(work.targets[1], i, second)
    # The law adds the last mask of the second curve only.
    _add_mask(second, growth, maps)
    _clear_ring(work.mask, layout)
    return True


@njit(cache=True)
def _distractors(margin, growth, maps, tables, layout, work):
    """Try every distractor, draw those that find a place, and return their number."""
    n_placed, rng, usable = 0, work.rng, tables.usable
    for _ in range(layout.distractors):
        if not _has_room(layout, work):
            break
        _copy(work.mask_before, work.mask)
        _copy(work.wide_before, work.wide)
        for _ in range(DISTRACTOR_TRIES):
            direction = below(rng, DEGREES)
            if usable[margin, direction] == 0:
                continue
            grown, touched = _distractor(direction, margin, growth, maps, tables, layout, work)
            if grown:
                n_placed += 1
                _clear_ring(work.mask, layout)
                draw_curve(work.distractor, 1, margin, tables, work)
                break
            if touched:
                _copy(work.mask, work.mask_before)
                _copy(work.wide, work.wide_before)
    return n_placed


@njit(cache=True)
def _distractor(direction, margin, growth, maps, tables, layout, work):
    """One attempt at a distractor: (whether it grew to its length, whether the maps were changed)."""
    placed, curve = _seed_anywhere(direction, margin, tables, layout, work)
    if not placed:
        return False, False
    _note(work.distractor, 0, curve)
    for i in range(1, layout.distractor_length):
        grown, curve = _extend(curve, growth, maps)
        if not grown:
            return False, i > 1
        _note(work.distractor, i, curve)
    _add_mask(curve, growth, maps)
    return True, True


@njit(cache=True)
def _extend(curve, growth, maps):
    """Grow a curve by one dash: (whether it could, the curve).

    The weight of a candidate is (1 - widened mask) * cos(turn)**2. A mask overshoots one in its middle, so weights may
    be negative: such candidates are never taken and lower the weight of their neighbours, as in the law.
    """
    choices = growth.choices[curve.direction]
    y, x = _moved(curve.y, curve.x, growth.joint[curve.direction])
    pivot = (y + maps.ring) * maps.stride + x + maps.ring
    total = np.int64(0)
    for i in range(growth.numbers[curve.direction, 0]):
        blocked = np.int64(maps.wide[pivot + choices[i, 0]])
        if blocked != OUTSIDE:
            total += (ONE - blocked) * choices[i, 2]
        maps.total[i] = total
    if total < MINIMUM_WEIGHT:
        return False, curve
    for _ in range(DASH_TRIES):
        # 28 random bits times a total below 2**35 stay within 63 bits.
        level = (below(maps.rng, 1 << 28) * total) >> 28
        i = 0
        while maps.total[i] <= level:
            i += 1
        new = Curve(y, x, np.int64(choices[i, 1]), np.int64(pivot + choices[i, 0]))
        if not _collides(maps.mask, new, growth.core[new.direction], growth.numbers[new.direction, 1]):
            _add_mask(curve, growth, maps)
            return True, new
    return False, curve


@njit(cache=True)
def _moved(y, x, move):
    """Pixel y, x after a move, rounded up: see `tables.moved`."""
    return np.int64(math.ceil(y + move[0])), np.int64(math.ceil(x + move[1]))


@njit(cache=True)
def _collides(mask, curve, core, n_core):
    for i in range(n_core):
        if np.int64(mask[curve.start + core[i, 0]]) + core[i, 1] >= COLLISION:
            return True
    return False


@njit(cache=True)
def _add_mask(curve, growth, maps):
    _raise_to(maps.mask, growth.mask[curve.direction], curve.start, maps.stride)
    _raise_to(maps.wide, growth.wide[curve.direction], curve.start, maps.stride)


@njit(cache=True)
def _raise_to(canvas, patch, middle, stride):
    """Raise the canvas to its maximum with a patch around the pixel `middle`."""
    half = len(patch) // 2
    corner = middle - half * stride - half
    for row in range(len(patch)):
        raise_row(canvas, corner + row * stride, patch, row * WIDTH)


@njit(cache=True)
def _clear_ring(canvas, layout):
    """Clear the masks outside of the image, which the law cuts off; otherwise seeds would find these pixels blocked."""
    ring, stride = layout.ring, layout.stride
    canvas[: ring * stride] = 0
    canvas[(stride - ring) * stride :] = 0
    for row in range(ring, stride - ring):
        canvas[row * stride : row * stride + ring] = 0
        canvas[(row + 1) * stride - ring : (row + 1) * stride] = 0


@njit(cache=True)
def _copy(target, source):
    # In words of eight bytes: byte by byte, this would be most of the time of an attempt.
    target_words, source_words = target.view(np.uint64), source.view(np.uint64)
    for i in range(len(target_words)):
        target_words[i] = source_words[i]


@njit(cache=True)
def _seed_in_box(direction, margin, tables, layout, work):
    """First dash of the first curve: (success, y, x, curve). Only a border is blocked, so the free places form a box.

    `direction` is that of the first try; further tries draw their own.
    """
    rng, low, high = work.rng, layout.seed_border, layout.size - 1 - layout.seed_border
    for _ in range(DASH_TRIES):
        if tables.usable[margin, direction] == 0:
            break
        top, left = low - tables.reach[margin, direction, 0], low - tables.reach[margin, direction, 2]
        height = high - tables.reach[margin, direction, 1] - top + 1
        width = high - tables.reach[margin, direction, 3] - left + 1
        if height < 1 or width < 1:
            break
        y, x = top + below(rng, height), left + below(rng, width)
        placed, curve = _first_dash(y, x, direction, margin, tables, layout)
        if placed:
            return True, y, x, curve
        direction = below(rng, DEGREES)
    return False, 0, 0, Curve(0, 0, 0, 0)


@njit(cache=True)
def _seed_beside(y, x, margin, tables, layout, work):
    """First dash of the second curve, at a fixed distance from the first: (success, curve)."""
    for _ in range(DASH_TRIES):
        direction = below(work.rng, DEGREES)
        around = below(work.rng, DEGREES)
        tail_y = np.int64(np.rint(y + tables.second[around, 0]))
        tail_x = np.int64(np.rint(x + tables.second[around, 1]))
        placed, curve = _first_dash(tail_y, tail_x, direction, margin, tables, layout)
        if placed:
            return True, curve
    return False, Curve(0, 0, 0, 0)


@njit(cache=True)
def _seed_anywhere(direction, margin, tables, layout, work):
    """First dash of a distractor, uniform over the free places: (success, curve). `direction`: see `_seed_in_box`."""
    size, ring, stride = layout.size, layout.ring, layout.stride
    for _ in range(DASH_TRIES):
        if tables.usable[margin, direction] == 0:
            break
        place = np.int64(-1)
        for _ in range(_GUESSES):
            guess = (below(work.rng, size) + ring) * stride + below(work.rng, size) + ring
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
            place = np.int64(work.found[below(work.rng, n)])
        y, x = place // stride - ring, place % stride - ring
        placed, curve = _first_dash(y, x, direction, margin, tables, layout)
        if placed:
            return True, curve
        direction = below(work.rng, DEGREES)
    return False, Curve(0, 0, 0, 0)


@njit(cache=True)
def _first_dash(y, x, direction, margin, tables, layout):
    """(whether the head and pivot of a dash with its tail at y, x lie in the image, the curve)."""
    size, ring, stride = layout.size, layout.ring, layout.stride
    head_y, head_x = _moved(y, x, tables.head[margin, direction])
    pivot_y, pivot_x = _moved(head_y, head_x, tables.back[margin, direction])
    inside = 0 <= min(head_y, head_x, pivot_y, pivot_x) and max(head_y, head_x, pivot_y, pivot_x) < size
    start = (y + ring) * stride + x + ring
    return inside, Curve(pivot_y, pivot_x, np.int64(direction), np.int64(start))


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
