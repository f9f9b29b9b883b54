"""Compiled drawing: curves and discs onto a canvas of floats, and from there to grey levels."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def draw_curve(dashes, contrast, margin, tables, work):
    """Raise the canvas to the dashes (direction, start) of a curve; contrast: 0 for targets, 1 for distractors."""
    for i in range(len(dashes)):
        direction, start = dashes[i, 0], dashes[i, 1]
        for k in range(tables.n_line[margin, direction]):
            at = start + tables.line_at[margin, direction, k]
            work.canvas[at] = max(work.canvas[at], tables.line[contrast, margin, direction, k])


@njit(cache=True)
def draw_disc(y, x, tables, layout, work):
    """Raise the canvas to a disc around pixel y, x of the image."""
    row, side = tables.marker.shape[0] // 2, tables.marker.shape[0]
    # Choose the small image whose disc is as far from the edges as in the large image.
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
def expose(image, layout, work):
    """Scale the brightest pixel of the image to 255, rounding down; in float64 and in this order, as the law does."""
    brightest = 0.0
    for y in range(layout.size):
        row = (y + layout.ring) * layout.stride + layout.ring
        for x in range(layout.size):
            brightest = max(brightest, work.canvas[row + x])
    for y in range(layout.size):
        row = (y + layout.ring) * layout.stride + layout.ring
        for x in range(layout.size):
            value = work.canvas[row + x]
            image[y, x] = 0 if value == 0.0 else np.int64(value / brightest * 255.0)
