"""The passes of `kernels`, called with tensors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..runtime.kernel import threads_for
from . import kernels


def gelu(x: Tensor) -> Tensor:
    out = _result(x)
    kernels.gelu(threads_for(x), _rows(x), _rows(out))
    return out


def gelu_gradient(g: Tensor, x: Tensor) -> Tensor:
    out = _result(x)
    kernels.gelu_gradient(threads_for(x), _rows(g), _rows(x), _rows(out))
    return out


def gated(v: Tensor, w: Tensor, silu: bool) -> Tensor:
    out = _result(v)
    kernels.gate(threads_for(v), _rows(v), _rows(w), silu, _rows(out))
    return out


def gated_gradients(g: Tensor, v: Tensor, w: Tensor, silu: bool) -> tuple[Tensor, Tensor]:
    dv, dw = _result(v), _result(w)
    g_v_w, results = (_rows(t) for t in (g, v, w)), (_rows(t) for t in (dv, dw))
    kernels.gate_gradients(threads_for(v), *g_v_w, silu, *results)
    return dv, dw


def _result(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _rows(t: Tensor) -> np.ndarray:
    """(1, rows, columns) of a tensor (..., columns), up to 64 of its rows joined to one; copied if not contiguous."""
    t = t.detach().resolve_neg().contiguous()
    joined = math.gcd(t.numel() // t.shape[-1], 64)
    return t.view(1, -1, joined * t.shape[-1]).numpy()
