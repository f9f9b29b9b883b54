"""A second implementation of the law of Pathfinder, in plain numpy floats over whole images: slow and independent.

Every map is a full image, every dilation is recomputed, masks are floats. Only `Parameters` comes from the package.
Directions are radians from +x (right) towards +y (down); coordinates are (y, x).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import grey_dilation


def disc(radius: int) -> np.ndarray:
    side = range(-radius, radius + 1)
    return np.array([[dy * dy + dx * dx <= radius * radius for dx in side] for dy in side])


def translate(place, angle, distance):
    return (
        math.ceil(place[0] + distance * math.sin(angle)),
        math.ceil(place[1] + distance * math.cos(angle)),
    )


def opposite(angle: float) -> float:
    return angle - math.pi if angle >= 0 else angle + math.pi


def reduced(canvas: np.ndarray, shape) -> np.ndarray:
    image = Image.fromarray(canvas.astype(np.float32))
    return np.asarray(image.resize((shape[1], shape[0]), Image.Resampling.LANCZOS)).astype(float) / 255


@lru_cache(maxsize=4096)
def patches(setting, margin: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Line and mask of a dash that starts in the middle."""
    scale = setting.antialias
    half = setting.paddle_length + math.ceil(setting.paddle_thickness) + margin
    y, x = translate((half * scale, half * scale), angle, setting.paddle_length * scale)
    canvas = Image.new("F", (2 * half * scale + 1,) * 2, 0)
    width = round(setting.paddle_thickness * scale)
    ImageDraw.Draw(canvas).line([(half * scale, half * scale), (x, y)], fill=255, width=width)
    line = np.array(canvas)
    wide = grey_dilation(line, footprint=disc(margin * scale), mode="constant", cval=-np.inf)
    shape = (2 * half + 1, 2 * half + 1)
    return reduced(line, shape), reduced(wide.astype(np.uint8), shape)


def pasted(patch: np.ndarray, place, shape) -> np.ndarray:
    """A float32 image with the patch around `place`, cut off at the edges."""
    image, half = np.zeros(shape, np.float32), len(patch) // 2
    for row in range(len(patch)):
        for column in range(len(patch)):
            y, x = place[0] - half + row, place[1] - half + column
            if 0 <= y < shape[0] and 0 <= x < shape[1]:
                image[y, x] = patch[row, column]
    return image


class Failed(Exception):
    """An attempt at the target pair or at a distractor has failed."""


class Reference:
    """Draws images of one setting and margin; `rng` is numpy's."""

    def __init__(self, setting, margin: int, rng: np.random.Generator):
        self.setting, self.margin, self.rng = setting, margin, rng
        self.shape = (setting.size, setting.size)

    def mask(self, place, angle) -> np.ndarray:
        return pasted(patches(self.setting, self.margin, angle)[1], place, self.shape).astype(float)

    def line(self, place, angle, contrast: float) -> np.ndarray:
        return pasted(patches(self.setting, self.margin, angle)[0] * contrast, place, self.shape).astype(float)

    def empty(self) -> np.ndarray:
        frame = np.ones(self.shape)
        inside = slice(self.setting.padding, -self.setting.padding)
        frame[inside, inside] = 0
        return frame

    def inside(self, place) -> bool:
        return all(0 <= each < self.setting.size for each in place)

    def element(self, angle) -> np.ndarray:
        radius = self.setting.paddle_length + self.margin
        patch = patches(self.setting, self.margin, angle)[1]
        return pasted(patch, (radius + 1, radius + 1), (2 * radius + 1, 2 * radius + 1)).astype(np.uint8) > 0

    def blocked(self, mask, border: int, angle) -> np.ndarray:
        """Map of the places; -inf where the whole element lies outside of the image."""
        mask = mask.copy()
        mask[:border], mask[-border:], mask[:, :border], mask[:, -border:] = 1, 1, 1, 1
        # scipy mirrors the element, OpenCV does not: mirrored twice it is as it was.
        return grey_dilation(mask, footprint=self.element(angle), mode="constant", cval=-np.inf)

    def seed(self, mask, border: int):
        """(tail, pivot, angle) of the first dash of the first curve and of distractors."""
        for _ in range(3):
            angle = int(self.rng.integers(-180, 180)) * math.pi / 180
            blocked = self.blocked(mask, border, angle)
            if np.isneginf(blocked).any():
                raise Failed
            free = np.argwhere(np.ceil(blocked - 0.3) == 0)
            if not len(free):
                raise Failed
            tail = tuple(int(each) for each in free[self.rng.integers(len(free))])
            pivot = self.pivot(tail, angle)
            if pivot:
                return tail, pivot, angle
        raise Failed

    def seed_beside(self, place):
        for _ in range(3):
            angle = int(self.rng.integers(-180, 180)) * math.pi / 180
            around = int(self.rng.integers(0, 360)) * math.pi / 180
            distance = self.setting.seed_distance
            tail = (
                int(np.round(place[0] + distance * math.sin(around))),
                int(np.round(place[1] + distance * math.cos(around))),
            )
            pivot = self.pivot(tail, angle)
            if pivot:
                return tail, pivot, angle
        raise Failed

    def pivot(self, tail, angle):
        head = translate(tail, angle, self.setting.paddle_length)
        pivot = translate(head, opposite(angle), self.setting.paddle_length + self.margin)
        return pivot if self.inside(head) and self.inside(pivot) else None

    def candidates(self, mask, pivot, angle):
        """Next pivot; pixels where the next dash may start, their angles and unnormalised weights."""
        setting, margin = self.setting, self.margin
        centre = translate(pivot, angle, setting.paddle_length + 2 * margin)
        wide = grey_dilation(mask, footprint=disc(margin), mode="constant", cval=-np.inf)
        radius = setting.paddle_length + margin
        places, step = set(), 360 / (2 * math.pi * radius)
        for k in range(math.ceil(360 / step)):
            around = k * step * math.pi / 180
            y, x = centre[0] + radius * math.sin(around), centre[1] + radius * math.cos(around)
            if 0 <= y < setting.size and 0 <= x < setting.size:
                places.add((int(y), int(x)))
        places = sorted(places)
        angles, weights = [], []
        for y, x in places:
            angles.append(math.atan2(y - centre[0], x - centre[1]))
            turn = abs(angles[-1] - angle)
            turn = min(min(turn, 2 * math.pi - turn) * setting.continuity, math.pi / 2)
            weights.append((1 - wide[y, x]) * math.cos(turn) ** 2)
        return centre, places, angles, np.array(weights)

    def extend(self, mask, pivot, angle, last):
        """(start, pivot, angle, mask of the new dash, M); M now includes the mask of the dash before."""
        centre, places, angles, weights = self.candidates(mask, pivot, angle)
        if not len(places) or weights.sum() < 1e-4:
            raise Failed
        sums = np.cumsum(weights) / weights.sum()
        for _ in range(3):
            k = int(np.argmax(sums > self.rng.random()))
            new = self.mask(places[k], opposite(angles[k]))
            if (mask + new).max() < 1.8:
                return places[k], centre, angles[k], new, np.maximum(mask, last)
        raise Failed

    def pair(self):
        """One attempt at the target curves: M, and (start, direction drawn) of every dash of both."""
        mask = self.empty()
        ends = [self.seed(mask, 2 * self.setting.seed_distance)]
        ends.append(self.seed_beside(ends[0][0]))
        curves = [[(tail, angle)] for tail, _, angle in ends]
        last = [self.mask(tail, angle) for tail, _, angle in ends]
        state = [(pivot, angle) for _, pivot, angle in ends]
        for _ in range(self.setting.contour_length - 1):
            for curve in range(2):
                start, pivot, angle, last[curve], mask = self.extend(mask, *state[curve], last[curve])
                state[curve] = pivot, angle
                curves[curve].append((start, opposite(angle)))
        return np.maximum(mask, last[1]), curves

    def restarts(self) -> int:
        """Number of failed attempts before the first success, whose result is in `mask` and `curves`."""
        failed = 0
        while True:
            try:
                self.target_mask, self.curves = self.pair()
                return failed
            except Failed:
                failed += 1

    def placed(self) -> int:
        """Number of distractors that find a place beside the target curves."""
        mask, n = self.target_mask, 0
        for _ in range(self.setting.distractors):
            for _ in range(5):
                try:
                    mask = self.distractor(mask)
                except Failed:
                    continue
                n += 1
                break
        return n

    def distractor(self, mask):
        if (np.ceil(mask - 0.3) == 0).mean() < 0.01:
            raise Failed
        tail, pivot, angle = self.seed(mask, 1)
        last = self.mask(tail, angle)
        for _ in range(self.setting.distractor_length - 1):
            _, pivot, angle, last, mask = self.extend(mask, pivot, angle, last)
        return np.maximum(mask, last)

    def marker(self, place) -> np.ndarray:
        scale, side = self.setting.antialias, self.setting.size * self.setting.antialias
        y, x = np.ogrid[:side, :side]
        radius = self.setting.marker_radius * scale
        inside = (y - place[0] * scale) ** 2 + (x - place[1] * scale) ** 2 <= radius**2
        return reduced(255.0 * inside, self.shape)

    def image(self, curves, discs) -> np.ndarray:
        """The finished image of target curves (start, direction drawn) and two discs, without distractors."""
        contrast, image = self.setting.curve_contrast * self.setting.paddle_contrast, np.zeros(self.shape)
        for start, angle in curves[0] + curves[1]:
            image = np.maximum(image, self.line(start, angle, contrast))
        for place in discs:
            image = np.maximum(image, self.marker(place))
        return (image / image.max() * 255).astype(np.uint8)
