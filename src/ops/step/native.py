"""Native code of one step, compiled by numba at its first call and cached on disk.

A step of one sample takes a few microseconds, less than passing its tensors one by one would. What does not change
between steps is therefore passed as one array of sizes and addresses, the rest as addresses. The type of `conj_factor`
(2 if a mode stands for a conjugate pair) gives the precision in which addresses are read. Arguments are not checked.
Tensors are contiguous, complex numbers pairs (re, im).
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numba.extending import overload, register_jitable

from ..runtime import pointers
from ..runtime.kernel import Kernel, threads_for  # noqa: F401 (the steps read it as kernels.threads_for)
from ..runtime.pointers import as_complex, as_real, at, load, multiply_add, splat, store, sums, zeros

# Real numbers in a vector: four registers of float32, whose sums are independent. The rest of a row is processed in
# shorter vectors, then as single complex numbers.
_WIDE, _NARROW, _SINGLE = 32, 8, 2

# Rules by which a step computes its gates: the two methods of `discretize`, and the system in scaled time (1 / t).
ZOH, BILINEAR, SCALED_TIME = 0, 1, 2


def _mimo(fixed, batch, u, x, y, after, conj_factor, times, scale, elapsed, until, scratch):
    """after = Lambda x + gamma (B u), y = conj_factor Re(C after) + D u: every mode reads and feeds every feature.

    fixed: P, H, the rule and the addresses of Lambda (P,), gamma (P,), B (P, H), C (H, P), D (H,), dt (P,); u, y
    (batch, H); x, after (batch, P). With times > 0 (1 or batch) Lambda is that of continuous time, gamma is not read,
    and both gates are computed by the rule in float64, from dt and `scale` (times,), float64; by SCALED_TIME from
    `scale` and `elapsed` (times,), float64, whose sum goes to `until`.
    scratch: an array of at least batch (2 H + 2 P) + 4 times P numbers, allocated by the caller: numba would free its
    own array while only its address is in use.
    """
    P, H, rule = fixed[0], fixed[1], fixed[2]
    Lambda, gamma = at(fixed[3], conj_factor), at(fixed[4], conj_factor)
    B, C, D = at(fixed[5], conj_factor), at(fixed[6], conj_factor), at(fixed[7], conj_factor)
    u, x, y, after = at(u, conj_factor), at(x, conj_factor), at(y, conj_factor), at(after, conj_factor)
    # u with every number twice, for the (re, im) pairs of B; x with signs, for Re(C x) = Re C Re x - Im C Im x.
    doubled, states = at(scratch.ctypes.data, conj_factor), at(scratch[2 * batch * H :].ctypes.data, conj_factor)
    if times > 0:
        gates = scratch[2 * batch * (H + P) :]
        at_times = at(gates.ctypes.data, conj_factor), at(gates[2 * times * P :].ctypes.data, conj_factor)
        if rule == SCALED_TIME:
            _scaled_time(P, Lambda, times, at(scale, 1.0), at(elapsed, 1.0), at(until, 1.0), at_times)
        else:
            _scaled_step(rule, P, Lambda, at(fixed[8], conj_factor), times, at(scale, 1.0), at_times)
        Lambda, gamma = at_times
    for q in range(batch * H):
        doubled[2 * q] = doubled[2 * q + 1] = u[q]
    for p in range(P):
        for i in range(batch):
            re, im = _products(B, 2 * p * H, doubled, 2 * i * H, 2 * H)
            q, g = 2 * (i * P + p), 2 * ((i if times > 1 else 0) * P + p)
            after_re = gamma[g] * re - gamma[g + 1] * im + Lambda[g] * x[q] - Lambda[g + 1] * x[q + 1]
            after_im = gamma[g] * im + gamma[g + 1] * re + Lambda[g] * x[q + 1] + Lambda[g + 1] * x[q]
            after[q], after[q + 1] = after_re, after_im
            states[q], states[q + 1] = conj_factor * after_re, -conj_factor * after_im
    for h in range(H):
        for i in range(batch):
            real, imaginary = _products(C, 2 * h * P, states, 2 * i * P, 2 * P)
            y[i * H + h] = real + imaginary + D[h] * u[i * H + h]


def _siso(fixed, batch, u, x, y, after, conj_factor):
    """after = Lambda x - sum_r P_r Re(Q_r x) + B u, y = conj_factor Re(C after) + D u, one system per feature.

    fixed: P, H, the rank R (0 or more), c and the addresses of Lambda and B (H, P), P and Q (R, H, P), C (c, H, P),
    D (c, H); u (batch, H), y (batch, c, H); x, after (batch, H, P).
    """
    for i in prange(batch):
        _sample(fixed, i, u, x, y, after, conj_factor)


@register_jitable
def _sample(fixed, i, u, x, y, after, conj_factor):
    P, H, rank, channels = fixed[0], fixed[1], fixed[2], fixed[3]
    system = at(fixed[4], conj_factor), at(fixed[5], conj_factor), at(fixed[6], conj_factor)
    Q, C, D = at(fixed[7], conj_factor), at(fixed[8], conj_factor), at(fixed[9], conj_factor)
    u, x, y, after = at(u, conj_factor), at(x, conj_factor), at(y, conj_factor), at(after, conj_factor)
    size = 2 * H * P
    start = i * size
    feedback = np.full(rank, conj_factor)
    for h in range(H):
        row, given = 2 * h * P, u[i * H + h]
        for r in range(rank):
            real, imaginary = _products(Q, r * size + row, x, start + row, 2 * P)
            feedback[r] = imaginary - real
        q = _advanced(_WIDE, system, given, feedback, x, after, start, size, row, row + 2 * P)
        q = _advanced(_NARROW, system, given, feedback, x, after, start, size, q, row + 2 * P)
        _advanced(_SINGLE, system, given, feedback, x, after, start, size, q, row + 2 * P)
        for c in range(channels):
            real, imaginary = _products(C, c * size + row, after, start + row, 2 * P)
            y[(i * channels + c) * H + h] = conj_factor * (real - imaginary) + D[c * H + h] * given


def _advanced(lanes, system, given, feedback, x, after, state, size, start, stop):
    """Write Lambda x + B given + sum_r P_r feedback_r to `after`, from `start` while vectors fit; return the end.

    state: index in x and after at which the sample begins.
    """


@overload(_advanced, prefer_literal=True)
def _(lanes, system, given, feedback, x, after, state, size, start, stop):
    n = lanes.literal_value

    def advanced(lanes, system, given, feedback, x, after, state, size, start, stop):
        Lambda, B, P = system
        q = start
        while q + n <= stop:
            value = multiply_add(load(B, q, n), splat(given, zeros(x, n)), zeros(x, n))
            for r in range(len(feedback)):
                value = multiply_add(load(P, r * size + q, n), splat(feedback[r], value), value)
            before = as_complex(load(x, state + q, n))
            value = as_real(multiply_add(as_complex(load(Lambda, q, n)), before, as_complex(value)))
            store(after, state + q, value)
            q += n
        return q

    return advanced


@register_jitable
def _products(row, i, other, j, count):
    """Sums over q < count of row[i + q] other[j + q], for even q and for odd q."""
    even, odd, q = _partial(_WIDE, row, i, other, j, 0, count)
    if q < count:
        more_even, more_odd, q = _partial(_NARROW, row, i, other, j, q, count)
        even, odd = even + more_even, odd + more_odd
    while q < count:
        even += row[i + q] * other[j + q]
        odd += row[i + q + 1] * other[j + q + 1]
        q += 2
    return even, odd


def _partial(lanes, row, i, other, j, start, count):
    """`_products` from `start` while whole vectors fit; also returns where it stopped."""


@overload(_partial, prefer_literal=True)
def _(lanes, row, i, other, j, start, count):
    n = lanes.literal_value

    def partial(lanes, row, i, other, j, start, count):
        total, q = zeros(row, n), start
        while q + n <= count:
            total = multiply_add(load(row, i + q, n), load(other, j + q, n), total)
            q += n
        even, odd = sums(total)
        return even, odd, q

    return partial


@register_jitable
def _scaled_time(P, Lambda, times, scale, elapsed, until, gates):
    """Gates of inputs of duration `scale` from `elapsed` on (see `discretize_scaled`); `until` gets their end times."""
    for i in range(times):
        until[i] = elapsed[i] + scale[i]
        if scale[i] > 0 and not elapsed[i] > 0:
            # A step from t = 0 takes any state to the steady value: Lambda_bar is 0.
            for p in range(P):
                _hold(gates, i * P + p, -1.0, 0.0, Lambda[2 * p], Lambda[2 * p + 1], 0.0)
            continue
        lasting = np.log1p(scale[i] / elapsed[i]) if elapsed[i] > 0 else 0.0
        for p in range(P):
            growth_re, growth_im = _expm1(lasting * float(Lambda[2 * p]), lasting * float(Lambda[2 * p + 1]))
            _hold(gates, i * P + p, growth_re, growth_im, Lambda[2 * p], Lambda[2 * p + 1], lasting)


@register_jitable
def _scaled_step(rule, P, Lambda, dt, times, scale, gates):
    """Gates of `discretize` with the step scale * dt."""
    for i in range(times):
        for p in range(P):
            step = scale[i] * float(dt[p])
            z_re, z_im = step * float(Lambda[2 * p]), step * float(Lambda[2 * p + 1])
            if rule == BILINEAR:
                _bilinear(gates, i * P + p, z_re, z_im, step)
            else:
                growth_re, growth_im = _expm1(z_re, z_im)
                _hold(gates, i * P + p, growth_re, growth_im, Lambda[2 * p], Lambda[2 * p + 1], step)


@register_jitable
def _expm1(real, imag):
    """exp(z) - 1 without cancellation, see `complex_expm1`."""
    growth, sine, cosine = np.expm1(real), np.sin(0.5 * imag), np.cos(0.5 * imag)
    return growth - 2.0 * (1.0 + growth) * sine * sine, 2.0 * (1.0 + growth) * sine * cosine


@register_jitable
def _hold(gates, row, growth_re, growth_im, Lambda_re, Lambda_im, lasting):
    """Lambda_bar = 1 + growth and gamma = growth / Lambda, or `lasting` for an eigenvalue of exactly 0."""
    real, imag = float(Lambda_re), float(Lambda_im)
    square = real * real + imag * imag
    gates[0][2 * row], gates[0][2 * row + 1] = 1.0 + growth_re, growth_im
    if square > 0:
        gates[1][2 * row] = (growth_re * real + growth_im * imag) / square
        gates[1][2 * row + 1] = (growth_im * real - growth_re * imag) / square
    else:
        gates[1][2 * row], gates[1][2 * row + 1] = lasting, 0.0


@register_jitable
def _bilinear(gates, row, z_re, z_im, step):
    """Lambda_bar = (1 + z/2) / (1 - z/2) and gamma = step / (1 - z/2)."""
    below_re, below_im = 1.0 - 0.5 * z_re, -0.5 * z_im
    square = below_re * below_re + below_im * below_im
    inverse_re, inverse_im = below_re / square, -below_im / square
    above_re, above_im = 1.0 + 0.5 * z_re, 0.5 * z_im
    gates[0][2 * row] = above_re * inverse_re - above_im * inverse_im
    gates[0][2 * row + 1] = above_re * inverse_im + above_im * inverse_re
    gates[1][2 * row], gates[1][2 * row + 1] = step * inverse_re, step * inverse_im


mimo = Kernel(_mimo, uses=(pointers,))
siso = Kernel(_siso, uses=(pointers,))
