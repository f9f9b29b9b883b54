"""ListOps trees by the benchmark's own recipe, drawn in compiled code.

A node at depth < max_depth is an operator with probability 1/4, otherwise a digit; at max_depth it is a digit. An
operator has 2..max_args arguments, and is one of MIN, MAX, MED, SM with equal probability. A tree is kept when its
length (operators, digits and closing brackets) lies in the wanted range and it was not drawn before.

With the benchmark's settings 8 % of the raw trees are kept; the compiled draw abandons a tree as soon as it is sure to
be too long. Trees are drawn in blocks, each with its own random stream (seed, block), and joined in the order of the
blocks, so the result does not depend on the number of workers.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ...errors import UsageError
from ...jit_cache import cached_jit

_MIN, _MAX, _MED, _SM, _CLOSE = range(10, 15)
_OPERATOR_SHARE = 0.25
_BLOCK = 256
# At the benchmark's settings a kept tree takes 12 draws; settings that need far more are taken for impossible.
_MAX_DRAWS_PER_TREE = 5_000


_compiled = functools.partial(cached_jit, what="the ListOps generator", nogil=True)


class Trees(NamedTuple):
    """Trees in one concatenated array.

    symbols: (total length,) uint8 codes into `symbols.SYMBOLS`;  lengths: (n,) int64;  values: (n,) uint8 in 0..9.
    """

    symbols: np.ndarray
    lengths: np.ndarray
    values: np.ndarray


def generate(
    n: int,
    seed: int,
    max_depth: int = 10,
    max_args: int = 10,
    min_length: int = 501,
    max_length: int = 1999,
    workers: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Trees:
    """Draw `n` distinct trees.

    Args:
        n: number of trees, >= 1.
        seed: >= 0; the same seed and settings give the same trees in the same order, for any `workers`.
        max_depth: depth of the deepest node, the root being at depth 1.
        max_args: largest number of arguments; the smallest is 2.
        min_length, max_length: range of the kept lengths, both included.
        workers: threads (the compiled code holds no interpreter lock); None takes all cores.
        advance: called with the number of trees just added.
    Raises:
        UsageError: no tree, or too few distinct ones, fit the settings.
    Source: the recipe of the Long Range Arena release (arXiv 2011.04006); its 500 < length < 2000 is 501..1999 here.
    """
    check_settings(n, seed, max_depth, max_args, min_length, max_length)
    settings = (max_depth, max_args, min_length, max_length)
    kept: list[tuple[np.ndarray, int]] = []
    seen: set[bytes] = set()
    for block in _blocks(seed, settings, workers or os.cpu_count() or 1):
        before = len(kept)
        for symbols, value in zip(np.split(block.symbols, np.cumsum(block.lengths)[:-1]), block.values, strict=True):
            digest = hashlib.blake2b(symbols.tobytes(), digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                kept.append((symbols, value))
            if len(kept) == n:
                break
        advance(len(kept) - before)
        if len(kept) == n:
            break
        if len(kept) - before < _BLOCK // 100:
            raise UsageError(
                f"Only about {len(kept)} distinct ListOps trees fit max_depth={max_depth}, max_args={max_args}, "
                f"lengths {min_length}..{max_length}; {n} were asked for. Allow deeper or longer ones, or take fewer."
            )
    lengths = np.array([len(symbols) for symbols, _ in kept], dtype=np.int64)
    values = np.array([value for _, value in kept], dtype=np.uint8)
    return Trees(np.concatenate([symbols for symbols, _ in kept]), lengths, values)


def check_settings(n: int, seed: int, max_depth: int, max_args: int, min_length: int, max_length: int) -> None:
    """Refuse settings that no tree can meet; arguments as in `generate`."""
    if n < 1 or seed < 0:
        raise UsageError(f"ListOps needs at least 1 tree and a seed >= 0, got n={n}, seed={seed}.")
    if not (1 <= max_depth <= 1_000 and 2 <= max_args <= 1_000):
        raise UsageError(
            f"ListOps needs max_depth >= 1 and max_args >= 2, both at most 1,000, got {max_depth} and {max_args}."
        )
    if not 1 <= min_length <= max_length <= 1_000_000:
        raise UsageError(
            f"ListOps needs 1 <= min_length <= max_length <= 1,000,000, got {min_length} and {max_length}."
        )
    longest = 1
    for _ in range(max_depth - 1):
        # Deeper trees are longer still, so stop at one that is long enough.
        if longest >= min_length:
            break
        longest = 2 + max_args * longest
    if min_length > longest:
        raise UsageError(
            f"The longest ListOps tree of max_depth={max_depth}, max_args={max_args} has {longest} tokens, "
            f"min_length is {min_length}. Allow deeper trees or more arguments."
        )


def evaluate(symbols: np.ndarray) -> int:
    """Value 0..9 of one tree given as symbol codes, uint8 (length,).

    Raises:
        UsageError: the codes are not one complete tree.
    """
    value = int(_evaluate(np.ascontiguousarray(symbols, dtype=np.uint8)))
    if value < 0:
        raise UsageError("These symbols are not one complete ListOps tree: a bracket or an argument is missing.")
    return value


def _blocks(seed: int, settings: tuple[int, int, int, int], workers: int) -> Iterator[Trees]:
    """Blocks 0, 1, 2, ... in order; a few are computed ahead."""
    with ThreadPoolExecutor(workers) as pool:
        ahead = deque(pool.submit(_block, seed, index, settings) for index in range(workers + 1))
        index = len(ahead)
        try:
            while True:
                yield ahead.popleft().result()
                ahead.append(pool.submit(_block, seed, index, settings))
                index += 1
        finally:
            for future in ahead:
                future.cancel()


def _block(seed: int, index: int, settings: tuple[int, int, int, int]) -> Trees:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, index))))
    symbols, lengths, values = _draw_block(generator, _BLOCK, *settings, _BLOCK * _MAX_DRAWS_PER_TREE)
    if len(lengths) < _BLOCK:
        max_depth, max_args, min_length, max_length = settings
        raise UsageError(
            f"Fewer than 1 in {_MAX_DRAWS_PER_TREE:,} ListOps trees of max_depth={max_depth}, max_args={max_args} have "
            f"{min_length}..{max_length} tokens. Widen the range or allow deeper trees."
        )
    return Trees(symbols, lengths, values)


@_compiled
def _draw_block(rng, n, max_depth, max_args, min_length, max_length, max_draws):
    symbols = np.empty(n * max_length, dtype=np.uint8)
    lengths = np.empty(n, dtype=np.int64)
    values = np.empty(n, dtype=np.uint8)
    tree = np.empty(max_length, dtype=np.uint8)
    pending = np.empty(max_depth + 1, dtype=np.int64)
    count = total = 0
    for _ in range(max_draws):
        length = _draw_tree(rng, max_depth, max_args, max_length, tree, pending)
        if length >= min_length:
            symbols[total : total + length] = tree[:length]
            lengths[count] = length
            values[count] = _evaluate(tree[:length])
            total += length
            count += 1
            if count == n:
                break
    return symbols[:total].copy(), lengths[:count], values[:count]


@_compiled
def _draw_tree(rng, max_depth, max_args, max_length, tree, pending):
    """Draw one raw tree into `tree`; return its length, or 0 when it is sure to exceed `max_length`."""
    length = 0
    depth = 1
    # Length of the shortest tree that can still come out: every argument not yet drawn counts as a digit.
    shortest = 1
    while True:
        if depth < max_depth and rng.random() <= _OPERATOR_SHARE:
            arguments = 2 + int(rng.random() * (max_args - 1))
            shortest += arguments + 1
            if shortest > max_length:
                return 0
            tree[length] = _MIN + int(rng.random() * 4)
            length += 1
            pending[depth] = arguments
            depth += 1
            continue
        tree[length] = int(rng.random() * 10)
        length += 1
        while depth > 1:
            pending[depth - 1] -= 1
            if pending[depth - 1] > 0:
                break
            depth -= 1
            tree[length] = _CLOSE
            length += 1
        if depth == 1:
            return length


@_compiled
def _evaluate(tree):
    """Value of a tree, or -1 when it is not one complete tree."""
    values = np.empty(len(tree) + 1, dtype=np.int64)
    starts = np.empty(len(tree) + 1, dtype=np.int64)
    operators = np.empty(len(tree) + 1, dtype=np.int64)
    n_values = depth = 0
    for position in range(len(tree)):
        symbol = tree[position]
        if symbol < _CLOSE and depth == 0 and position > 0:
            return -1
        if symbol < _MIN:
            values[n_values] = symbol
            n_values += 1
        elif symbol < _CLOSE:
            operators[depth] = symbol
            starts[depth] = n_values
            depth += 1
        else:
            if depth == 0 or starts[depth - 1] == n_values:
                return -1
            depth -= 1
            arguments = values[starts[depth] : n_values]
            n_values = starts[depth] + 1
            values[n_values - 1] = _apply(operators[depth], arguments)
    return values[0] if depth == 0 and n_values == 1 else -1


@_compiled
def _apply(operator, arguments):
    if operator == _MIN:
        return arguments.min()
    if operator == _MAX:
        return arguments.max()
    if operator == _SM:
        return arguments.sum() % 10
    ordered = np.sort(arguments)
    middle = len(ordered) // 2
    # An even number of arguments has two middle ones; their mean is truncated.
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
