"""Linear systems over sequences of any length in real arithmetic: products within chunks, a loop over the chunks.

    x_k = A x_{k-1} + B v_k,   y_k = C x_k + E v_k      for each of G groups, with N real states each

A sequence is cut into chunks of Q positions. In chunk c, with v_c and y_c as vectors over its positions,

    y_c = T v_c + O x_{c-1},   x_c = A^Q x_{c-1} + S v_c

    T[q, r] = C A^(q-r) B for q >= r (plus E for q = r),   S[r] = A^(Q-1-r) B,   O[q] = C A^(q+1)

T, S and O are computed in float64 when the module is built and kept in the layer's precision, so that running it needs
neither powers of A nor complex numbers. It takes Q times fewer iterations than a loop over single positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.runtime.loop import loop
from .complex_pairs import rotate

# Positions of a chunk, a power of two. Larger chunks need fewer iterations but more products; T grows with Q^2. In ONNX
# Runtime, with 64 modes and 128 features on one core, chunks of 8, 16, 32, 64 and 128 took 7.8, 6.9, 6.6, 7.5 and
# 8.5 ms at 4096 positions, and 0.04, 0.04, 0.05, 0.10 and 0.35 ms at 7, where a whole chunk is computed all the same.
CHUNK = 16


@dataclass(frozen=True, eq=False)
class ChunkMatrices:
    """The matrices of a `ChunkedSystem`, in float64, for row vectors; i inputs and o outputs per group.

    Attributes:
        within: (G, Q i, Q o), T transposed.
        into: (G, Q i, N), S transposed.
        out_of: (G, N, Q o), O transposed.
        powers: A^(2^k), k = 0 .. log2 Q: (k, G, N, N) transposed, or (k, G, N / 2, 2) where A multiplies pairs of
            states (re, im) by complex numbers.
    """

    within: Tensor
    into: Tensor
    out_of: Tensor
    powers: Tensor


class ChunkedSystem(nn.Module):
    """G systems, run over (B, L, G, i) from a state (B, G, N); see the module's docstring."""

    within: Tensor
    into: Tensor
    out_of: Tensor
    powers: Tensor

    def __init__(self, matrices: ChunkMatrices, dtype: torch.dtype):
        super().__init__()
        for name in ("within", "into", "out_of", "powers"):
            self.register_buffer(name, getattr(matrices, name).to(dtype).contiguous(), persistent=False)
        self.groups, self.states = self.into.shape[0], self.into.shape[2]
        self.inputs, self.outputs = self.within.shape[1] // CHUNK, self.within.shape[2] // CHUNK

    def forward(self, v: Tensor, x0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """v (B, L, G, i), L >= 1, to y (B, L, G, o) and the states before each chunk, (chunks + 1, B, G, N)."""
        batch, length = v.shape[:2]
        # One chunk more than needed, hence at least two: torch.export would specialise on the case of a single chunk.
        count = (length + 2 * CHUNK - 1) // CHUNK
        padded = F.pad(v, (0, 0, 0, 0, 0, count * CHUNK - length))
        chunks = (
            padded.unflatten(1, (count, CHUNK)).permute(3, 0, 1, 2, 4).flatten(3).flatten(1, 2)
        )  # (G, B count, Q i)
        added = torch.bmm(chunks, self.into).unflatten(1, (batch, count)).permute(2, 1, 0, 3)
        start = v.new_zeros(batch, self.groups, self.states) if x0 is None else x0
        whole = self.powers[-1]
        states = loop(lambda x, more: multiply(x, whole) + more, start, added)
        before = states[:-1].permute(2, 1, 0, 3).flatten(1, 2)
        y = torch.bmm(chunks, self.within) + torch.bmm(before, self.out_of)
        y = y.unflatten(2, (CHUNK, self.outputs)).unflatten(1, (batch, count)).flatten(2, 3).permute(1, 2, 0, 3)
        # No slice here: torch.export would specialise on the relation between the length and the number of chunks.
        return y.index_select(1, torch.arange(length, device=v.device)), states

    def state_after(self, v: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """State (B, G, N) after the first `lengths` (B,) positions, 1 .. L, from v and the states of `forward`."""
        batch = torch.arange(v.shape[0], device=v.device)
        last = lengths - 1
        chunk = last // CHUNK
        steps = lengths - chunk * CHUNK
        x = states[chunk, batch]
        for bit, power in enumerate(self.powers):
            taken = (steps // (1 << bit)) % 2 == 1
            x = torch.where(taken[:, None, None], multiply(x, power), x)
        # Shift the chunk's positions so that the last valid one comes last, with zeros in front.
        place = torch.arange(CHUNK, device=v.device) - (CHUNK - steps[:, None])
        source = (chunk[:, None] * CHUNK + place).clamp(min=0)
        ending = v[batch[:, None], source] * (place >= 0)[..., None, None].to(v.dtype)
        ending = ending.permute(2, 0, 1, 3).reshape(self.groups, -1, CHUNK * self.inputs)
        return x + torch.bmm(ending, self.into).transpose(0, 1)


def multiply(x: Tensor, power: Tensor) -> Tensor:
    """A x for states x (B, G, N), with A as complex factors of pairs (G, N / 2, 2) or as matrices (G, N, N)."""
    if power.shape[-2] == x.shape[-1]:
        return torch.matmul(x.unsqueeze(-2), power).squeeze(-2)
    return rotate(x.unflatten(-1, (-1, 2)), power).flatten(-2)
