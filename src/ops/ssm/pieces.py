"""What the operators of this folder share: the order in which they process a batch, and products of its rows.

A piece is several whole samples or a part of one sample: rows contiguous in memory, so that every product reads and
writes the tensors themselves. The states of a piece, or their gradients, stay in a processor's cache between the
product that computes them and the one that uses them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# States of a piece (2 MB of complex64), and its fewest positions: a product of fewer rows leaves the threads too little
# to do. Both are doubled if all states are kept and only their gradients are computed in pieces.
_STATES = 2**18
_FEWEST = 4096
# The same where states are recomputed to save memory: a piece then has two arrays of states, 0.5 MB each.
_STATES_REMADE = 2**16
_FEWEST_REMADE = 512


class Piece(NamedTuple):
    """Samples, steps, and the index of the part of these samples: 0, 1, ... in the order of the recurrence."""

    samples: slice
    steps: slice
    part: int

    def of(self, t: Tensor) -> Tensor:
        """The entries of t (B or 1, L or 1, ...) that belong to this piece."""
        return t[self.samples if t.shape[0] > 1 else slice(None), self.steps if t.shape[1] > 1 else slice(None)]


def most_rows(u: Tensor, modes: int, checkpoint: bool) -> int:
    """Positions that a piece of u (B, L, H) may hold.

    A GPU takes the whole batch at once, or with `checkpoint` a sixteenth of it.
    """
    rows = u.shape[0] * u.shape[1]
    if u.device.type != "cpu":
        return max(_FEWEST, _STATES // modes, rows // 16) if checkpoint else rows
    if checkpoint:
        return max(_FEWEST_REMADE, _STATES_REMADE // modes)
    return 2 * max(_FEWEST, _STATES // modes)


def longest_whole(u: Tensor, modes: int) -> int:
    """Most positions of a sample that is a single piece with `checkpoint`, for two directions of `modes` each."""
    return max(_FEWEST, _STATES // (2 * modes), u.shape[0] * u.shape[1] // 16)


def parts(length: int, most: int) -> int:
    """Number of parts that a sample is divided into."""
    return 1 if length <= most else -(-length // most)


def pieces(batch: int, length: int, most: int, reverse: bool = False) -> list[Piece]:
    """Divide a batch into pieces of at most `most` positions; those of a sample are in the order of the recurrence."""
    steps = _evenly(length, parts(length, most))
    if reverse:
        steps = steps[::-1]
    samples = _evenly(batch, min(batch, -(-batch // max(1, most // length))))
    return [Piece(one, cut, part) for one in samples for part, cut in enumerate(steps)]


def _evenly(total: int, count: int) -> list[slice]:
    size = -(-total // max(1, count))
    return [slice(start, min(total, start + size)) for start in range(0, total, max(1, size))]


class Scratch:
    """Memory for the states of one piece at a time, reused by every piece."""

    def __init__(self, like: Tensor, modes: int, work: list[Piece]):
        sizes = [(p.samples.stop - p.samples.start) * (p.steps.stop - p.steps.start) for p in work]
        self._memory = like.new_empty(max(sizes, default=0) * modes)
        self._modes = modes

    def of(self, piece: Piece) -> Tensor:
        samples, steps = (part.stop - part.start for part in piece[:2])
        return self._memory[: samples * steps * self._modes].view(samples, steps, self._modes)


def rows(t: Tensor) -> Tensor:
    """(B, L, H) to (B L, H), a view if t is contiguous; complex (B, L, P) to real (B L, 2P)."""
    if t.is_complex():
        t = torch.view_as_real(t).flatten(2)
    return t.reshape(-1, t.shape[2])


def product(left: Tensor, right: Tensor, out: Tensor, add: bool = False) -> None:
    """out = left right, or out += left right, for left (B L, K) and contiguous out (B, L, N), real or complex."""
    out = (torch.view_as_real(out) if out.is_complex() else out).view(-1, right.shape[1])
    torch.addmm(out, left, right, beta=int(add), out=out)


def sum_of_outer(like: Tensor, left: int, right: int) -> Tensor:
    """Zeros (left, right) for sums of left^T right, the longer side contiguous.

    With the shorter side contiguous, a product of tall, narrow matrices takes up to a third more time.
    """
    return like.new_zeros(left, right) if left <= right else like.new_zeros(right, left).t()


def input_matrix(B: Tensor) -> Tensor:
    """(P, H) complex to W_B (H, 2P) real."""
    return torch.view_as_real(B.t().resolve_conj().contiguous()).flatten(1)


def output_matrix(C: Tensor, conj_factor: float) -> Tensor:
    """(H_out, P) complex to W_C (2P, H_out) real, with X W_C = conj_factor Re(C x)."""
    return torch.stack([C.real, -C.imag], dim=-1).mul(conj_factor).flatten(1).t()
