"""The scan as a plain loop in C (`one_pass.c`), built by the system's compiler: the cost of one pass over memory."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_OPTIONS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")


def obstacle(mode: str) -> str:
    """Why the loop cannot run here; empty if it can."""
    if mode != "constant":
        return "the loop takes a constant gate"
    return "" if shutil.which("cc") else "there is no C compiler (cc)"


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "one_pass.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", *_OPTIONS, str(source), "-o", str(target)], check=True)
        return ctypes.CDLL(str(target))


def _call(name: str, tensors: tuple[Tensor, ...], shape: torch.Size) -> None:
    getattr(_library(), name)(*(ctypes.c_void_p(t.data_ptr()) for t in tensors), *map(ctypes.c_long, shape))


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x = torch.empty_like(b)
        _call("forward", (a, b, x), b.shape)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, x = ctx.saved_tensors
        G, da = torch.empty_like(x), a.new_zeros(x.shape[0], x.shape[2], dtype=torch.complex128)
        _call("backward", (a, x, g.contiguous(), G, da), x.shape)
        return da.sum(0).to(a.dtype), G


def scan(a: Tensor, b: Tensor) -> Tensor:
    """x_k = a x_{k-1} + b_k: a (P,), b (B, L, P), both complex64 and contiguous."""
    return _Scan.apply(a, b)
