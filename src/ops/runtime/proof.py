"""Check of a GPU kernel on its device at first use, once per process: values and gradients of a small case.

The tests run the kernels in Triton's interpreter and compile them ahead of time. Neither shows a miscompilation by a
newer compiler or a fault on a device that was not at hand. The check takes a few milliseconds, besides the compilation,
which is needed anyway.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .autograd import watched

# Values and gradients of the small case by a named backend on a device, in single precision.
Case = Callable[[str, torch.device], list[Tensor]]

# Single precision keeps four digits of every case; a kernel that is wrong keeps none.
_TOLERANCE = 1e-3
_found: dict[tuple[str, torch.device], str] = {}


def doubt(name: str, device: torch.device, case: Case) -> str:
    """Why the Triton kernels of `name` must not be used on `device`; empty if they agree with torch there."""
    if (name, device) not in _found:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "its kernels have not been checked on this device yet, and a CUDA graph is being captured"
        if watched():
            # Under a tracer or transform the case would not be computed on the device; check at a later call.
            return ""
        _found[name, device] = _compare(case, device)
    return _found[name, device]


def _compare(case: Case, device: torch.device) -> str:
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        expected = case("torch", device)
        try:
            found = case("triton", device)
            errors = [_deviation(one, other) for one, other in zip(found, expected, strict=True)]
        # Catch everything that a compiler or driver may throw: torch's operators are the fallback.
        except Exception as error:
            return f"its kernels failed on a small case ({type(error).__name__}: {error}); please report it"
    worst = max(errors)
    if worst <= _TOLERANCE:
        return ""
    return f"its kernels gave wrong results on a small case (relative error {worst:.2g}); please report it"


def _deviation(found: Tensor, expected: Tensor) -> float:
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    return error if error == error else float("inf")


def waves(*shape: int, device: torch.device, complex: bool = False) -> Tensor:
    """Deterministic numbers of modulus at most 1 for a case, made without a random generator."""
    count = torch.Size(shape).numel()
    phase = 1.7 * torch.arange(1, count + 1, dtype=torch.float64, device=device) ** 1.5
    values = torch.polar(torch.ones_like(phase), phase) if complex else phase.cos()
    return values.to(torch.complex64 if complex else torch.float32).view(shape)
