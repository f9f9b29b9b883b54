"""Tables that depend on a setting but not on the image: dashes, their masks, directions and weights.

A dash starts at a pixel and points along one of finitely many directions: the 360 whole degrees for the first dash of a
curve, then the pixels of the circle on which the next dash may start. So each dash, each mask and each turning weight
is computed once here, and the kernel only copies short lists of pixels. Masks and weights are integers. Brightness and
moves are floats, computed in the order of the public generator, because its grey levels and rounded moves depend on
that order.

Positions are flat indices into a canvas of side `Layout.stride`, which surrounds the image by `Layout.ring` pixels, so
that no list of pixels needs a bounds check.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import binary_dilation, grey_dilation

from .kernel import BLOCKED, COLLISION, DEGREES, FREE, ONE, OUTSIDE, WEIGHT, Work
from .parameters import Parameters
from .vector import WIDTH

# Grey value of a full line on the drawing canvas.
WHITE = 255


class Tables(NamedTuple):
    """Integer tables of the kernel.

    The first axis is the margin and the second the direction of the dash: 360 degrees, then the circle. Flat steps
    start where the dash starts; lists of different lengths are padded, and their lengths stand in `numbers`. There are
    few arrays with many columns, because every array argument adds to the cost of a compiled call.

    numbers: (margins, directions, 2) number of choices, of core pixels.
    choices: (margins, directions, k, 3) from the next pivot to a pixel where a dash may start, the direction of that
        dash, and cos(turn)**2 as a multiple of 1 / WEIGHT.
    core: (margins, directions, pixels, 2) step and mask where the mask can collide, largest values first.
    mask: (margins, directions, side, WIDTH) mask around the start of the dash, padded with zeros on the right. All
        margins share one side: smaller masks are padded alike on all sides, so that the start stays in the middle.
    wide: the same for the mask widened by the disc of radius margin.
    joint: (margins, directions, 2) float64 move (dy, dx) from one pivot to the next, before it is rounded up.
    head, back: (margins, 360, 2) float64 moves from the tail of a first dash to its head and from there to its pivot.
    usable: (margins, 360) 1 where a first dash may point in a direction; see `_usable`.
    line_at, line, n_line: the dash; `line` (float32) has a leading axis (target, distractor) for their contrasts.
    element_at, n_element: pixels that must be free around the tail of a first dash.
    reach: (margins, 360, 4) lowest and highest dy, lowest and highest dx of these pixels.
    second: (360, 2) float64 moves from the first to the second seed, before they are rounded.
    marker: (edge, edge, side, side) float64, a disc at pixel (row, column) of a small image; see `_markers`.
    empty, empty_wide: (margins, canvas_bytes) mask and widened mask of an image without curves.
    """

    numbers: np.ndarray
    choices: np.ndarray
    core: np.ndarray
    mask: np.ndarray
    wide: np.ndarray
    joint: np.ndarray
    head: np.ndarray
    back: np.ndarray
    usable: np.ndarray
    line_at: np.ndarray
    line: np.ndarray
    n_line: np.ndarray
    element_at: np.ndarray
    n_element: np.ndarray
    reach: np.ndarray
    second: np.ndarray
    marker: np.ndarray
    empty: np.ndarray
    empty_wide: np.ndarray


class Layout(NamedTuple):
    """Numbers that the kernel needs: see `Parameters`, and the module's docstring for `ring` and `stride`."""

    size: int
    ring: int
    stride: int
    seed_border: int
    contour_length: int
    distractor_length: int
    distractors: int
    margins: int


def build(setting: Parameters) -> tuple[Tables, Layout]:
    """Compute the tables of a setting, in about a second."""
    margin = max(setting.paddle_margins)
    ring = setting.paddle_length + 2 * margin + math.ceil(setting.paddle_thickness) + margin + 2
    layout = Layout(
        size=setting.size,
        ring=ring,
        stride=setting.size + 2 * ring,
        seed_border=2 * setting.seed_distance,
        contour_length=setting.contour_length,
        distractor_length=setting.distractor_length,
        distractors=setting.distractors,
        margins=len(setting.paddle_margins),
    )
    columns = [_of_margin(setting, layout, each, margin) for each in setting.paddle_margins]
    stacked = {name: _ragged([column[name] for column in columns]) for name in columns[0]}
    # The contrast is the first axis of `line`, before the margin.
    stacked["line"] = np.ascontiguousarray(np.moveaxis(stacked["line"], 1, 0))
    second = _moves(_degrees(), setting.seed_distance)
    return Tables(**stacked, second=second, marker=_markers(setting)), layout


def angles(setting: Parameters, margin: int) -> np.ndarray:
    """Direction in radians, from +x (right) towards +y (down), of each index: -180 .. 179 degrees, then the circle."""
    circle = _circle(setting.paddle_length + margin)
    return np.concatenate([_degrees(), np.array([math.atan2(dy, dx) for dy, dx in circle])])


def moved(place: float, move: float) -> int:
    """A coordinate after a move, rounded up without a guard against rounding errors, as in the public generator.

    sin(pi) and cos(pi / 2) are not zero but 1.2e-16 and 6e-17. Near the left and upper edge the sum keeps them, and the
    move is a pixel longer; elsewhere the coordinate absorbs them. `kernel._moved` is the compiled form.
    """
    return math.ceil(place + move)


def buffers(layout: Layout) -> Work:
    """Buffers for `kernel.draw`: random state, maps over the canvas, the dashes (direction, start) of the curves."""
    canvas = _canvas_bytes(layout.stride)
    return Work(
        rng=np.zeros(4, np.uint64),
        mask=np.zeros(canvas, np.uint8),
        wide=np.zeros(canvas, np.uint8),
        mask_before=np.zeros(canvas, np.uint8),
        wide_before=np.zeros(canvas, np.uint8),
        canvas=np.zeros(canvas, np.float64),
        total=np.zeros(512, np.int64),
        found=np.zeros(layout.size**2, np.int32),
        targets=np.zeros((2, layout.contour_length, 2), np.int32),
        distractor=np.zeros((layout.distractor_length, 2), np.int32),
    )


def fingerprint(tables: Tables) -> str:
    """Checksum of the tables; it differs if another version of the drawing library draws other dashes."""
    digest = hashlib.sha256()
    for table in tables:
        # Floats are rounded to millionths: the last bit of a sine differs between machines. That changes no image,
        # except at the exact zeros of sine and cosine, whose rounding errors are the same everywhere.
        whole = np.rint(table * 1e6) if table.dtype.kind == "f" else table
        digest.update(np.ascontiguousarray(whole, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


def _of_margin(setting: Parameters, layout: Layout, margin: int, largest: int) -> dict[str, np.ndarray]:
    length, stride = setting.paddle_length, layout.stride
    circle = _circle(length + margin)
    angle = angles(setting, margin)
    weights = _turn_weights(angle, angle[DEGREES:], setting.continuity)
    allowed = [np.flatnonzero(row) for row in weights]
    steps = _flat(circle, stride)
    choices = [np.stack([steps[k], k + DEGREES, row[k]], 1) for row, k in zip(weights, allowed, strict=True)]
    # The first dash is drawn from its tail; a later dash starts at its head and points back.
    dashes = [dash(setting, margin, a) for a in np.concatenate([angle[:DEGREES], turned(angle[DEGREES:])])]
    lines = [_largest_first(line, stride) for line, _ in dashes]
    masks = [_whole(mask) for _, mask in dashes]
    peak = max(mask.max() for mask in masks)
    cores = [np.stack(_largest_first(np.where(mask >= COLLISION - peak, mask, 0), stride), 1) for mask in masks]
    contrasts = (setting.curve_contrast * setting.paddle_contrast, setting.curve_contrast)
    elements = [_element(mask, length + margin) for _, mask in dashes[:DEGREES]]
    # On each side, one more pixel of margin makes the mask one pixel larger and the widened mask two.
    room = largest - margin
    empty = _frame(setting, layout, outside=0)
    return {
        "numbers": np.stack([_lengths(choices), _lengths(cores)], 1),
        "choices": _ragged(choices),
        "core": _ragged(cores),
        "mask": _rows([np.pad(mask, room) for mask in masks]),
        "wide": _rows([np.pad(_widened(np.pad(mask, margin), margin), 2 * room) for mask in masks]),
        "joint": _moves(angle, length + 2 * margin),
        "head": _moves(angle[:DEGREES], length),
        "back": _moves(turned(angle[:DEGREES]), length + margin),
        "usable": np.array([_usable(e) for e in elements], np.uint8),
        "line_at": _ragged([at for at, _ in lines]),
        "line": np.stack([_ragged([brightness(values, c) for _, values in lines]) for c in contrasts]),
        "n_line": _lengths([at for at, _ in lines]),
        "element_at": _ragged([_flat(e, stride) for e in elements]),
        "n_element": _lengths(elements),
        "reach": np.stack([[e[:, 0].min(), e[:, 0].max(), e[:, 1].min(), e[:, 1].max()] for e in elements]),
        "empty": _canvas(empty),
        "empty_wide": _canvas(np.maximum(_widened(empty, margin), _frame(setting, layout, OUTSIDE))),
    }


def _degrees() -> np.ndarray:
    return np.array([degree * math.pi / 180 for degree in range(-180, 180)])


def turned(angle: np.ndarray) -> np.ndarray:
    """The opposite directions, in -pi .. pi."""
    return np.where(angle >= 0, angle - math.pi, angle + math.pi)


def _moves(angle: np.ndarray, distance: int) -> np.ndarray:
    """(dy, dx) of moves in the directions `angle`, before rounding; math.sin, as numpy's differs in the last bit."""
    return np.array([[distance * math.sin(a), distance * math.cos(a)] for a in angle])


def _circle(radius: int) -> np.ndarray:
    """Distinct pixels (dy, dx) of a circle, one per pixel of arc, rounded down."""
    angle = np.radians(np.arange(0, 360, 360 / (2 * math.pi * radius)))
    exact = radius * np.stack([np.sin(angle), np.cos(angle)], 1)
    return np.unique(np.floor(exact).astype(np.int64), axis=0)


def _turn_weights(before: np.ndarray, after: np.ndarray, continuity: float) -> np.ndarray:
    """cos(min(continuity * |turn|, pi / 2))**2 as integer multiples of 1 / WEIGHT, indexed [before, after]."""
    turn = np.abs(np.angle(np.exp(1j * (after - before[:, None]))))
    return np.rint(np.cos(np.minimum(turn * continuity, np.pi / 2)) ** 2 * WEIGHT).astype(np.int64)


def dash(setting: Parameters, margin: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Line (float32, WHITE where it is full) and mask (float32, 1 where it is full) of a dash from the patch's middle.

    The resampling is in floating point, which neither clips nor rounds, as the released images show.
    """
    scale = setting.antialias
    half = setting.paddle_length + math.ceil(setting.paddle_thickness) + margin
    centre = half * scale
    (dy, dx), distance = (math.sin(angle), math.cos(angle)), setting.paddle_length * scale
    canvas = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    ends = [(centre, centre), (moved(centre, distance * dx), moved(centre, distance * dy))]
    ImageDraw.Draw(canvas).line(ends, fill=WHITE, width=round(setting.paddle_thickness * scale))
    line = np.asarray(canvas)
    wide = binary_dilation(line, _disc(margin * scale))
    return _shrink(line, 2 * half + 1), brightness(_shrink(WHITE * wide, 2 * half + 1), 1.0)


def _shrink(canvas: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(Image.fromarray(canvas.astype(np.float32)).resize((side, side), Image.Resampling.LANCZOS))


def brightness(values: np.ndarray, contrast: float) -> np.ndarray:
    """float32 brightness, 1 where a line of contrast 1 is full, in the public generator's order of rounding."""
    return (values.astype(np.float64) / WHITE * contrast).astype(np.float32)


def _whole(mask: np.ndarray) -> np.ndarray:
    """A mask as multiples of 1 / ONE, rounded so that exactly the values above FREE are above BLOCKED."""
    whole = np.rint(mask.astype(np.float64) * ONE).astype(np.int64)
    return np.where(mask > FREE, np.maximum(whole, BLOCKED + 1), whole)


def _widened(mask: np.ndarray, margin: int) -> np.ndarray:
    """Largest value of the mask within the disc of radius margin."""
    return grey_dilation(mask, footprint=_disc(margin), mode="constant")


def _element(mask: np.ndarray, radius: int) -> np.ndarray:
    """Pixels (dy, dx) that must be free for a first dash, in spread order so that a blocked place is found early.

    Only pixels where the mask is full count, because the public generator first casts the mask to bytes. The element is
    cut to a square of side 2 * radius + 1 whose middle is one pixel off the tail in both directions.
    """
    pixels = np.argwhere(mask >= 1) - len(mask) // 2 + 1
    pixels = pixels[(np.abs(pixels) <= radius).all(1)]
    return pixels[np.argsort(np.arange(len(pixels)) * 0.6180339887498949 % 1)]


def _usable(element: np.ndarray) -> bool:
    """Whether every pixel of an image has part of its element in the image; the corners are the hardest.

    Otherwise the public generator's search reports that no place in the whole image is free.
    """
    return all(((element * corner) >= 0).all(1).any() for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1)))


def _disc(radius: int) -> np.ndarray:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return y * y + x * x <= radius * radius


def _frame(setting: Parameters, layout: Layout, outside: int) -> np.ndarray:
    """Canvas that is 0 where curves may go, ONE in the padding and `outside` around the image."""
    frame = np.full((layout.stride, layout.stride), outside, np.int64)
    image = frame[layout.ring : -layout.ring, layout.ring : -layout.ring]
    image[:] = ONE
    image[setting.padding : -setting.padding, setting.padding : -setting.padding] = 0
    return frame


def _canvas(frame: np.ndarray) -> np.ndarray:
    """Flat bytes, with room for a row of WIDTH that starts at the last pixel."""
    return np.pad(frame.astype(np.uint8).ravel(), (0, _canvas_bytes(len(frame)) - frame.size))


def _canvas_bytes(stride: int) -> int:
    """Room for a canvas and for a row of WIDTH that starts at its last pixel, in whole 64-bit words."""
    return (stride**2 + WIDTH + 7) // 8 * 8


def _markers(setting: Parameters) -> np.ndarray:
    """Images of discs, one per distance from both edges: near an edge discs are cut and resampled differently.

    Entry [i, j] is an image of side 2 * edge + 1 with a disc at (i, j); i = edge stands for every place that is at
    least `edge` pixels from the top and bottom.
    """
    edge = math.ceil(setting.marker_radius) + 4
    side, scale = 2 * edge + 1, setting.antialias
    y, x = np.ogrid[: side * scale, : side * scale]
    radius = setting.marker_radius * scale
    return (
        np.array(
            [
                [_shrink(WHITE * ((y - i * scale) ** 2 + (x - j * scale) ** 2 <= radius**2), side) for j in range(side)]
                for i in range(side)
            ],
            np.float64,
        )
        / WHITE
    )


def _rows(patches: Sequence[np.ndarray]) -> np.ndarray:
    """Patches of one size as bytes, with rows of WIDTH, so that a row is one step of the processor's vector unit."""
    side = patches[0].shape[0]
    rows = np.zeros((len(patches), side, WIDTH), np.uint8)
    rows[:, :, :side] = np.maximum(patches, 0)
    return rows


def _largest_first(patch: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Flat steps from the patch's middle to its positive pixels, and their values."""
    pixels = np.argwhere(patch > 0)
    values = patch[tuple(pixels.T)]
    order = np.argsort(-values, kind="stable")
    return _flat(pixels[order] - len(patch) // 2, stride), values[order]


def _flat(steps: np.ndarray, stride: int) -> np.ndarray:
    return steps[..., 0] * stride + steps[..., 1]


def _lengths(lists: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(entry) for entry in lists], np.int32)


def _ragged(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays of different shapes, padded with zeros."""
    shape = np.max([np.shape(a) for a in arrays], axis=0)
    kept = np.int32 if arrays[0].dtype == np.int64 else arrays[0].dtype
    stacked = np.zeros((len(arrays), *shape), kept)
    for i, a in enumerate(arrays):
        stacked[(i, *(slice(n) for n in np.shape(a)))] = a
    return stacked
