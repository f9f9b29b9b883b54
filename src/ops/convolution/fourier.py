"""The transform of `convolution`: values of polynomials modulo x^n - i at the n-th roots of i, and back.

A polynomial modulo x^m - e^(i angle) is reduced to r polynomials modulo x^(m/r) - e^(i (angle + 2 pi j) / r) for all
j < r, down to single points. A whole node shares its twiddle factors, and no bit reversal is needed, since a product of
transforms does not depend on their order. Blocks are processed depth first, so that most of the work is done in the
innermost cache.

`LANES` polynomials are transformed at once: an array (n, 2, LANES) of coefficients, real parts and imaginary parts.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch

from ..runtime.complex_rows import LANES, compiled, get, minus, negative, plus, put, scaled, times, times_conj, turned
from ..runtime.vectors import add, load, multiply, splat, store, subtract, zeros_like

# Most rows of a block, within which stages run one after another: 32 KiB of float32.
_BLOCK = 256
_SIN_60 = math.sqrt(0.75)


class Plan(NamedTuple):
    """The transform of n points: its stages, coarsest first."""

    size: int
    radices: np.ndarray
    block: int
    # (nodes of all stages, 6): cos and sin of angle / r, and of twice and three times that.
    table: np.ndarray
    # First row in the table of each stage's nodes.
    offsets: np.ndarray


@functools.lru_cache(maxsize=64)
def plan_of(length: int, dtype: torch.dtype) -> Plan:
    """Stages of the smallest n >= length among 4 (1, 2, 3 or 6) 4^k."""
    rest = -(-length // 4)
    level = max(0, math.ceil(math.log(rest / 6, 4)))
    factor, level = min((f * 4**k, (f, k)) for f in (1, 2, 3, 6) for k in range(level + 3) if f * 4**k >= rest)[1]
    radices = [4, *{1: [], 2: [2], 3: [3], 6: [2, 3]}[factor], *[4] * level]
    sizes = [math.prod(radices[i:]) for i in range(len(radices) + 1)]
    angles, rows, offsets = np.array([math.pi / 2]), [], []
    for radix in radices:
        offsets.append(sum(map(len, rows)))
        once = angles / radix
        rows.append(np.stack([f(m * once) for m in (1, 2, 3) for f in (np.cos, np.sin)], axis=-1))
        angles = ((angles[:, None] + 2 * math.pi * np.arange(radix)) / radix).ravel()
    block = next(size for size in sizes[1:] if size <= _BLOCK)
    real = np.float32 if dtype == torch.float32 else np.float64
    return Plan(sizes[0], np.array(radices), block, np.concatenate(rows).astype(real), np.array(offsets))


@compiled
def down(x, start, first, size, radices, block, table, offsets):
    """Run the stages from `first` on for the block at `start`; a coarse stage runs when its node begins there."""
    m = size
    for stage in range(len(radices)):
        radix = radices[stage]
        q = m // radix
        if stage >= first:
            if m > block:
                if start % m == 0:
                    _split(x, start, q, radix, table[offsets[stage] + start // m])
            else:
                for at in range(start, start + block, m):
                    _split(x, at, q, radix, table[offsets[stage] + at // m])
        m = q


@compiled
def up(x, start, first, size, radices, block, table, offsets):
    """n times the inverse of `down`; a coarse stage runs when its node ends with the block at `start`."""
    m = 1
    for stage in range(len(radices) - 1, first - 1, -1):
        q, radix = m, radices[stage]
        m *= radix
        if m > block:
            if (start + block) % m == 0:
                _join(x, start + block - m, q, radix, table[offsets[stage] + start // m])
        else:
            for at in range(start, start + block, m):
                _join(x, at, q, radix, table[offsets[stage] + at // m])


@compiled
def _split(x, start, q, radix, w):
    """Split the node of r q rows at `start` into r nodes of q rows: out_j = sum_k (w e^(2 pi i j / r))^k in_k."""
    if radix == 4:
        for t in range(start, start + q):
            a, b = get(x, t), turned(w[0], w[1], get(x, t + q))
            c, d = turned(w[2], w[3], get(x, t + 2 * q)), turned(w[4], w[5], get(x, t + 3 * q))
            s, e, p, f = plus(a, c), minus(a, c), plus(b, d), minus(b, d)
            put(x, t, plus(s, p))
            put(x, t + q, (subtract(e[0], f[1]), add(e[1], f[0])))
            put(x, t + 2 * q, minus(s, p))
            put(x, t + 3 * q, (add(e[0], f[1]), subtract(e[1], f[0])))
    elif radix == 3:
        for t in range(start, start + q):
            a, b, c = get(x, t), turned(w[0], w[1], get(x, t + q)), turned(w[2], w[3], get(x, t + 2 * q))
            s, d = plus(b, c), scaled(splat(_SIN_60, a[0]), minus(b, c))
            e = minus(a, scaled(splat(0.5, a[0]), s))
            put(x, t, plus(a, s))
            put(x, t + q, (subtract(e[0], d[1]), add(e[1], d[0])))
            put(x, t + 2 * q, (add(e[0], d[1]), subtract(e[1], d[0])))
    else:
        for t in range(start, start + q):
            a, b = get(x, t), turned(w[0], w[1], get(x, t + q))
            put(x, t, plus(a, b))
            put(x, t + q, minus(a, b))


@compiled
def _join(x, start, q, radix, w):
    """r times the inverse of `_split`."""
    if radix == 4:
        for t in range(start, start + q):
            a, b, c, d = get(x, t), get(x, t + q), get(x, t + 2 * q), get(x, t + 3 * q)
            s, p, e, f = plus(a, c), minus(a, c), plus(b, d), minus(b, d)
            put(x, t, plus(s, e))
            put(x, t + q, turned(w[0], -w[1], (add(p[0], f[1]), subtract(p[1], f[0]))))
            put(x, t + 2 * q, turned(w[2], -w[3], minus(s, e)))
            put(x, t + 3 * q, turned(w[4], -w[5], (subtract(p[0], f[1]), add(p[1], f[0]))))
    elif radix == 3:
        for t in range(start, start + q):
            a, b, c = get(x, t), get(x, t + q), get(x, t + 2 * q)
            s, d = plus(b, c), scaled(splat(_SIN_60, a[0]), minus(b, c))
            e = minus(a, scaled(splat(0.5, a[0]), s))
            put(x, t, plus(a, s))
            put(x, t + q, turned(w[0], -w[1], (add(e[0], d[1]), subtract(e[1], d[0]))))
            put(x, t + 2 * q, turned(w[2], -w[3], (subtract(e[0], d[1]), add(e[1], d[0]))))
    else:
        for t in range(start, start + q):
            a, b = get(x, t), get(x, t + q)
            put(x, t, plus(a, b))
            put(x, t + q, turned(w[0], -w[1], minus(a, b)))


@compiled
def first(x, u, b, h, table):
    """The first stage (radix 4), from LANES features of the real sequence u[b], padded with zeros."""
    q, w = len(x) // 4, table[0]
    for t in range(q):
        a, p = _input(u, b, t, h), _input(u, b, t + q, h)
        c, d = _input(u, b, t + 2 * q, h), _input(u, b, t + 3 * q, h)
        p, c, d = _ray(w[0], w[1], p), _ray(w[2], w[3], c), _ray(w[4], w[5], d)
        s, e = (add(a, c[0]), c[1]), (subtract(a, c[0]), negative(c[1]))
        v, f = plus(p, d), minus(p, d)
        put(x, t, plus(s, v))
        put(x, t + q, (subtract(e[0], f[1]), add(e[1], f[0])))
        put(x, t + 2 * q, minus(s, v))
        put(x, t + 3 * q, (add(e[0], f[1]), subtract(e[1], f[0])))


@compiled
def last(x, y, b, h, table):
    """The last stage of the inverse (radix 4); its real part goes to LANES features of y[b]."""
    q, w = len(x) // 4, table[0]
    for t in range(q):
        a, p, c, d = get(x, t), get(x, t + q), get(x, t + 2 * q), get(x, t + 3 * q)
        s, v, e, f = plus(a, c), minus(a, c), plus(p, d), minus(p, d)
        _output(y, b, t, h, add(s[0], e[0]))
        _output(y, b, t + q, h, _real_turn(w[0], w[1], (add(v[0], f[1]), subtract(v[1], f[0]))))
        _output(y, b, t + 2 * q, h, _real_turn(w[2], w[3], minus(s, e)))
        _output(y, b, t + 3 * q, h, _real_turn(w[4], w[5], (subtract(v[0], f[1]), add(v[1], f[0]))))


@compiled
def multiply_rows(x, k, start, rows, conjugate):
    """x k, or x conj(k), to x."""
    for t in range(start, start + rows):
        a, b = get(x, t), get(k, t)
        put(x, t, times_conj(a, b) if conjugate else times(a, b))


@compiled
def correlate_rows(x, v, total, start, rows):
    """total + x conj(v) to total."""
    for t in range(start, start + rows):
        put(total, t, plus(get(total, t), times_conj(get(x, t), get(v, t))))


@compiled
def _input(u, b, t, h):
    return load(u, b, t, h, LANES) if t < u.shape[1] else zeros_like(load(u, b, 0, h, LANES))


@compiled
def _output(y, b, t, h, row):
    if t < y.shape[1]:
        store(y, b, t, h, row)


@compiled
def _ray(re, im, a):
    """(re + i im) a for real a."""
    return multiply(splat(re, a), a), multiply(splat(im, a), a)


@compiled
def _real_turn(re, im, a):
    """Re((re - i im) a)."""
    return add(multiply(splat(re, a[0]), a[0]), multiply(splat(im, a[0]), a[1]))
