"""The body of a custom operator that torch.compile must not look into, run as if called outside of any graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


# Where a compiled graph is run, torch (2.13) leaves these out for everything inside a custom operator: a lazily
# conjugated or negated tensor is then read as if it were not, silently. Autograd is left out of every custom operator.
_PLAIN = ("Conjugate", "Negative", "ZeroTensor")
_AUTOGRAD = ("AutogradFunctionality", "ADInplaceOrView")


@contextlib.contextmanager
def as_outside(recording: bool) -> Iterator[None]:
    """Lazy conjugation and negation work, and with `recording` autograd records.

    The guard is private to torch (its own checkpoint uses it): tests compare compiled layers with eager ones, and
    `gradients` refuses when nothing was recorded.
    """
    with contextlib.ExitStack() as stack:
        for name in _PLAIN + (_AUTOGRAD if recording else ()):
            key = getattr(torch._C.DispatchKey, name)
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        stack.enter_context(torch.set_grad_enabled(recording))
        yield


def leaves(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
    """The same tensors cut off from any graph, those that are needed as leaves of a new one."""
    return [tensor.detach().requires_grad_(need) for tensor, need in zip(tensors, needed, strict=True)]


def gradients(out: Tensor, inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Gradients of the inputs that require one, zeros where `out` does not depend on it, in dense memory.

    Raises:
        RuntimeError: nothing was recorded, which would otherwise be zeros without a word.
    """
    wanted = [value for value in inputs if value.requires_grad]
    if not out.requires_grad:
        raise RuntimeError("Autograd recorded nothing inside a custom operator: this version of torch needs a new way.")
    found = torch.autograd.grad(out, wanted, grad, allow_unused=True)
    return [
        torch.zeros_like(value, memory_format=torch.contiguous_format) if one is None else dense(one)
        for value, one in zip(wanted, found, strict=True)
    ]


def dense(tensor: Tensor) -> Tensor:
    """What a fake tensor of the same shape promises: contiguous, conjugation and negation carried out."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
