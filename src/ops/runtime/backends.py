"""The choice of the backend that computes an operation: the table of backends, the choice, and all its messages.

"auto" takes the backend that the table prefers on the tensors' device if it can run there and, on a GPU, has passed
its check (`proof`); otherwise it takes torch and logs once why. A named backend runs or raises.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UsageError, unknown
from .autograd import constant_in_graphs, has_memory, refuse_transforms, transform_active
from .keops import keops_reason
from .presence import numba_obstacle
from .proof import Case, doubt

_log = logging.getLogger("fractal_ssm.backends")
_said: set[tuple[str, ...]] = set()


@dataclass(frozen=True)
class Operation:
    """A row of the table.

    Attributes:
        label: what messages call it.
        backends: the names that may be given, besides "auto".
        preferred: the backend that "auto" takes per device type; "torch" on all others.
    """

    label: str
    backends: tuple[str, ...]
    preferred: Mapping[str, str]


_SCAN = ("reference", "torch", "native", "triton"), {"cpu": "native", "cuda": "triton"}
_SUM = ("torch", "triton", "keops"), {"cuda": "triton"}

OPERATIONS: dict[str, Operation] = {
    "scan": Operation("scan", *_SCAN),
    "vandermonde": Operation("vandermonde", *_SUM),
    "vandermonde_sum": Operation("vandermonde_sum", *_SUM),
    "cauchy": Operation(
        "the Cauchy kernel", ("torch", "native", "triton", "keops"), {"cpu": "native", "cuda": "triton"}
    ),
    "convolve": Operation("convolve", ("torch", "native"), {"cpu": "native"}),
}


def check(operation: str, backend: str) -> None:
    """Refuse an unknown backend, or one that cannot run on this machine, when a layer is built.

    Raises:
        UsageError: with the reason and what to do.
    """
    row = OPERATIONS[operation]
    _require_known(row, backend)
    if backend != "auto":
        _require_able(row, backend, obstacle(backend, None), "here")


def choose(
    operation: str,
    backend: str,
    at: Tensor | torch.device,
    limits: Mapping[str, str] | None = None,
    proof: Case | None = None,
    avoid: Collection[str] = (),
) -> str:
    """The backend to run.

    Args:
        operation: a row of `OPERATIONS`.
        backend: a name, or "auto".
        at: a tensor of the computation; or only its device if tensors without memory (fake ones) will do.
        limits: backends that cannot take these arguments, with the reason.
        proof: the small case on which Triton kernels are checked before their first use on a GPU.
        avoid: backends that "auto" passes over because they are slow on these arguments.
    Raises:
        UsageError: an unknown name, a named backend that cannot run, or an operation that an active transform cannot
            follow; the message gives the reason and the remedy.
    """
    row = OPERATIONS[operation]
    _require_known(row, backend)
    device = at if isinstance(at, torch.device) else at.device
    if transform_active() and "reference" not in row.backends:
        refuse_transforms(row.label)
    if backend == "auto":
        return _automatic(row, at, device, {*(limits or ()), *avoid}, proof)
    reason = (limits or {}).get(backend, "") or obstacle(backend, device.type)
    if not reason and backend == "triton":
        reason = _doubt(row, device, proof)
    _require_able(row, backend, reason, f"on {device.type}")
    if transform_active() and backend != "reference":
        raise UsageError(
            f"backend='{backend}' of {row.label} has derivatives of its own, which forward-mode derivatives and "
            f"torch.func transforms cannot follow. Use backend='auto' or 'reference' (one operator a step, slower), or "
            f"torch.autograd."
        )
    return backend


def obstacle(backend: str, device_type: str | None) -> str:
    """Why `backend` cannot run on this type of device (None: on any of this machine), with the remedy; empty if it
    can."""
    if backend == "native":
        return "it runs on a CPU only" if device_type not in (None, "cpu") else numba_obstacle()
    if backend == "keops":
        return keops_reason()
    if backend != "triton":
        return ""
    if not _triton_installed():
        return "triton is not installed. Run: pip install triton (Linux)"
    reached = torch.cuda.is_available() if device_type is None else device_type == "cuda"
    if reached or (interpreting() and device_type in (None, "cpu")):
        return ""
    return (
        "triton needs tensors on a CUDA or ROCm device (or TRITON_INTERPRET=1, set before the first import, to try it "
        "slowly on a CPU)"
    )


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@constant_in_graphs
def _triton_installed() -> bool:
    return _find_triton()


@functools.cache
def _find_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _require_known(row: Operation, backend: str) -> None:
    names = ("auto", *row.backends)
    if not isinstance(backend, str) or backend not in names:
        raise unknown(f"backend of {row.label}", backend, names)


def _require_able(row: Operation, backend: str, reason: str, where: str) -> None:
    if reason:
        raise UsageError(f"backend='{backend}' of {row.label} cannot run {where}: {reason}. Or use backend='auto'.")


def _automatic(
    row: Operation, at: Tensor | torch.device, device: torch.device, avoid: Collection[str], proof: Case | None
) -> str:
    if transform_active():
        return "reference"
    preferred = row.preferred.get(device.type, "torch")
    # No warning in these cases: the arguments rule the backend out, or there is no memory for native code to read.
    if preferred in avoid or (preferred == "native" and isinstance(at, Tensor) and not has_memory(at)):
        return "torch"
    reason = obstacle(preferred, device.type)
    if not reason and preferred == "triton":
        reason = _doubt(row, device, proof)
    if reason:
        _say(logging.WARNING, row.label, device.type, "torch", f" instead of '{preferred}': {reason}")
        return "torch"
    _say(logging.INFO, row.label, device.type, preferred, ", the fastest here")
    return preferred


def _doubt(row: Operation, device: torch.device, proof: Case | None) -> str:
    """Why the row's Triton kernels are not to be trusted on a GPU; empty while compiling, where no case can run."""
    if proof is None or device.type != "cuda" or torch.compiler.is_compiling():
        return ""
    return doubt(row.label, device, proof)


def _say(level: int, label: str, device: str, backend: str, why: str) -> None:
    # A compiled graph is traced once; logging there would only break the graph.
    if torch.compiler.is_compiling() or (label, device, backend, why) in _said:
        return
    _said.add((label, device, backend, why))
    _log.log(level, f"{label} on {device}: backend '{backend}'{why}.")
