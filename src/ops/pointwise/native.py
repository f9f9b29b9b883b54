"""The passes of `kernels`, called with tensors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..kernel import threads_for
from . import kernels


def gelu(x: Tensor) -> Tensor:
    out = _result(x)
    kernels.gelu(threads_for(x), _long_rows(x), _long_rows(out))
    return out


def gelu_gradient(g: Tensor, x: Tensor) -> Tensor:
    out = _result(x)
    kernels.gelu_gradient(threads_for(x), _long_rows(g), _long_rows(x), _long_rows(out))
    return out


def gated(v: Tensor, w: Tensor, silu: bool) -> Tensor:
    out = _result(v)
    kernels.gate(threads_for(v), _long_rows(v), _long_rows(w), 0, silu, _long_rows(out))
    return out


def gated_gradients(g: Tensor, v: Tensor, w: Tensor, silu: bool) -> tuple[Tensor, Tensor]:
    dv, dw = _result(v), _result(w)
    g_v_w, results = (_long_rows(t) for t in (g, v, w)), (_long_rows(t) for t in (dv, dw))
    kernels.gate_gradients(threads_for(v), *g_v_w, 0, silu, *results)
    return dv, dw


def glu(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    out, rows = x.new_empty(*x.shape[:-1], half), _rows(x)
    kernels.gate(threads_for(x), rows, rows, half, False, _rows(out))
    return out


def glu_gradient(g: Tensor, x: Tensor) -> Tensor:
    dx, rows = _result(x), _rows(x)
    kernels.gate_gradients(threads_for(x), _rows(g), rows, rows, x.shape[-1] // 2, False, _rows(dx), _rows(dx))
    return dx


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of the columns of x (N, H), float64 (H,).

    Each tile of rows in the dtype of x around its own mean, so that a large mean costs no digits; joined in float64.
    """
    tiles = -(-len(x) // kernels.TILE)
    mean, squares = x.new_empty(tiles, x.shape[1]), x.new_empty(tiles, x.shape[1])
    kernels.moments(threads_for(x), _rows(x), _rows(mean), _rows(squares))
    means = mean.double()
    counts = torch.full((tiles, 1), float(kernels.TILE), dtype=torch.float64)
    counts[-1] = len(x) - (tiles - 1) * kernels.TILE
    whole = (counts * means).sum(0) / len(x)
    return whole, (squares.double() + counts * (means - whole).square()).sum(0) / len(x)


def products(g: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the rows of g and of g (x - mean), float64 (H,); g and x (N, H)."""
    tiles = -(-len(x) // kernels.TILE)
    sums, weighted = x.new_empty(tiles, x.shape[1]), x.new_empty(tiles, x.shape[1])
    kernels.products(threads_for(x), _rows(g), _rows(x), _row(mean, x), _rows(sums), _rows(weighted))
    return sums.double().sum(0), weighted.double().sum(0)


def normalise(x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(x - mean) scale + shift: x (N, H), the others (H,)."""
    out = _result(x)
    kernels.normalise(threads_for(x), _rows(x), *(_row(t, x) for t in (mean, scale, shift)), _rows(out))
    return out


def normalise_gradient(g: Tensor, x: Tensor, mean: Tensor, level: Tensor, slope: Tensor, scale: Tensor) -> Tensor:
    """(g - level - (x - mean) slope) scale: g and x (N, H), the others (H,)."""
    out = _result(x)
    columns = (_row(t, x) for t in (mean, level, slope, scale))
    kernels.normalise_gradient(threads_for(x), _rows(g), _rows(x), *columns, _rows(out))
    return out


def _result(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rows(t: Tensor) -> np.ndarray:
    """(1, rows, columns) of a tensor (..., columns), copied where it does not lie so."""
    return t.detach().resolve_neg().contiguous().view(1, -1, t.shape[-1]).numpy()


def _long_rows(t: Tensor) -> np.ndarray:
    """The same of a tensor whose columns are alike, up to 64 of its rows joined to one."""
    rows = _rows(t)
    return rows.reshape(1, -1, rows.shape[2] * math.gcd(rows.shape[1], 64))


def _row(t: Tensor, like: Tensor) -> np.ndarray:
    return _rows(t.to(like.dtype))
