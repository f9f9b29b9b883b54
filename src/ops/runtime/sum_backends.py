"""Which backend computes a Vandermonde or Cauchy sum: the named one or an error, or the best on the device."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ...errors import UsageError, unknown
from .backends import interpreting
from .keops import keops_reason
from .presence import numba_obstacle

BACKENDS = ("auto", "torch", "keops", "triton")


def check(what: str, backend: str) -> None:
    """Refuse an unknown backend, or one that cannot run on this machine, when a layer is built.

    Args:
        what: the operation, for the message.
        backend: one of `BACKENDS`.
    Raises:
        UsageError: with the reason and what to do.
    """
    if backend not in BACKENDS:
        raise unknown(f"backend of {what}", backend, BACKENDS)
    reason = {"keops": keops_reason, "triton": _triton_reason}.get(backend, str)()
    if reason:
        raise UsageError(f"backend='{backend}' of {what} cannot run here: {reason} Or use backend='torch'.")


def choose(what: str, backend: str, device: torch.device) -> str:
    """ "torch", "keops" or "triton"; "auto" is "triton" on a CUDA or ROCm device that has it, "torch" elsewhere.

    Raises:
        UsageError: as `check`, and for tensors on a device that the named backend does not reach.
    """
    if backend == "auto":
        return "triton" if device.type == "cuda" and not _triton_reason() else "torch"
    check(what, backend)
    if backend == "triton" and device.type != "cuda" and not (device.type == "cpu" and interpreting()):
        raise UsageError(
            f"backend='triton' of {what} needs tensors on a CUDA or ROCm device, and these are on {device.type}: move "
            f"the layer and its input there, or use backend='torch'."
        )
    return backend


def native_reaches(tensor: Tensor) -> bool:
    """Whether native code can run on this tensor, or on that which it stands for in a graph: on a CPU, with memory."""
    without_memory = isinstance(tensor, FakeTensor) and not torch.compiler.is_compiling()
    return tensor.device.type == "cpu" and not without_memory and not numba_obstacle()


def _triton_reason() -> str:
    """Why Triton cannot run here, with what to do; an empty string when it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install triton, on Linux)."
    if not torch.cuda.is_available() and not interpreting():
        return "triton needs a CUDA or ROCm device (or TRITON_INTERPRET=1 before the first import, to try it slowly)."
    return ""
