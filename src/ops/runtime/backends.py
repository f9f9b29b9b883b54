"""Which backend runs: the named one or an error, or the best one here, said once."""

from __future__ import annotations

import importlib.util
import logging
import os
from types import ModuleType

import torch

from ...errors import UsageError, unknown
from .presence import numba_obstacle

BACKENDS = ("reference", "torch", "native", "triton")

_log = logging.getLogger("fractal_ssm.scan")
_said: set[str] = set()


def choose(backend: str, device: torch.device) -> str:
    """The name of the backend to run on `device`.

    Raises:
        UsageError: unknown name, or a named backend that cannot run; the message gives the reason and the remedy.
    """
    if backend == "auto":
        return _automatic(device)
    if backend not in BACKENDS:
        raise unknown("scan backend", backend, ("auto", *BACKENDS))
    obstacle = _obstacle(backend, device)
    if obstacle:
        raise UsageError(f"The scan backend '{backend}' cannot run on {device.type}: {obstacle}")
    return backend


def implementation(name: str) -> ModuleType:
    """The module with `forward` and `backward` of a backend; imported at its first use."""
    if name == "native":
        from ..scan import native

        return native
    if name == "triton":
        from ..scan import triton as triton_backend

        return triton_backend
    from ..scan import chunked

    return chunked


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _automatic(device: torch.device) -> str:
    preferred = {"cpu": "native", "cuda": "triton"}.get(device.type)
    if preferred is None:
        _say(f"scan on {device.type}: backend 'torch', the one that runs on every device.", logging.INFO)
        return "torch"
    obstacle = _obstacle(preferred, device)
    if obstacle:
        _say(f"scan on {device.type}: backend 'torch' instead of '{preferred}': {obstacle}", logging.WARNING)
        return "torch"
    _say(f"scan on {device.type}: backend '{preferred}', the fastest here.", logging.INFO)
    return preferred


def _obstacle(backend: str, device: torch.device) -> str | None:
    """Why `backend` cannot run on `device` and what to do about it; None when it can."""
    if backend == "native":
        if device.type != "cpu":
            return "it runs on the CPU only. Use backend='auto'."
        return numba_obstacle() or None
    if backend == "triton":
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed. Run: pip install triton (Linux), or use backend='auto'."
        if device.type != "cuda" and not (device.type == "cpu" and interpreting()):
            return (
                "it needs tensors on a CUDA or ROCm device (or TRITON_INTERPRET=1, set before the first import, "
                "to try it slowly on the CPU). Use backend='auto'."
            )
    return None


def _say(message: str, level: int) -> None:
    # A compiled graph is traced once; logging there would only break the graph.
    if message not in _said and not torch.compiler.is_compiling():
        _said.add(message)
        _log.log(level, message)
