"""Random numbers for compiled code: one stream per image, the same on every machine.

xoshiro256++ (Blackman and Vigna, public domain) over four 64-bit words, seeded by splitmix64.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def below(rng, n):
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
def seed(rng, key, index):
    """Set the state `rng` of one image's stream: splitmix64 words from a mix of key and index."""
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
