"""Inputs of the GPU tests, and how far results are from double precision on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fractal_ssm import scan

MODES = ("constant", "per_sample", "shared", "full")


def gates(mode: str, dtype: torch.dtype, batch: int, length: int, modes: int) -> torch.Tensor:
    """|a| between 0.9 and 0.999."""
    shape = {
        "constant": (modes,),
        "per_sample": (batch, 1, modes),
        "shared": (length, modes),
        "full": (batch, length, modes),
    }[mode]
    a = 0.9 + 0.099 * torch.rand(shape)
    return (torch.polar(a, 6 * torch.rand(shape)) if dtype.is_complex else a).to(dtype)


def scan_inputs(mode: str, dtype: torch.dtype, batch: int, length: int, modes: int) -> list[torch.Tensor]:
    """a, b, x0 and the gradient of x."""
    b, g = (torch.randn(batch, length, modes, dtype=dtype) for _ in range(2))
    return [gates(mode, dtype, batch, length, modes), b, torch.randn(batch, modes, dtype=dtype), g]


def run_scan(inputs: Sequence[torch.Tensor], device: str, backend: str, reverse: bool, wide: bool = False) -> list:
    """[x, da, db, dx0]; `wide` in double precision."""
    *tensors, g = (as_precision(t, wide, device) for t in inputs)
    return with_gradients(lambda a, b, x0: scan(a, b, x0, reverse, backend=backend), tensors, [g])


def as_precision(t: torch.Tensor, wide: bool, device: str) -> torch.Tensor:
    if wide:
        return t.detach().to(device, torch.complex128 if t.is_complex() else torch.float64)
    return t.detach().to(device, torch.complex64 if t.is_complex() else torch.float32)


def with_gradients(function: Callable, tensors: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor]) -> list:
    """Outputs, and the gradients of every tensor."""
    tensors = [t.detach().requires_grad_() for t in tensors]
    outputs = function(*tensors)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, tensors, seeds)]


def deviation(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Largest deviation over all tensors, each relative to its own largest entry; NaN counts as infinite."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        error = (one.cpu().to(other.dtype) - other.cpu()).abs().max() / other.abs().max().cpu().clamp_min(1e-30)
        worst = max(worst, float("inf") if error.isnan() else error.item())
    return worst
