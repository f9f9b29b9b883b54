"""Forward-mode derivatives and torch.func transforms: what an operator with a hand-written backward cannot follow.

A custom operator gets no tangent through its inside, and torch drops the tangent without a word where no input also
asks for an ordinary gradient. Operators here therefore look first.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from ..errors import UsageError


def transform_active() -> bool:
    """Whether a forward-mode level or a transform of torch.func (jvp, grad, vmap, jacrev, ...) is open."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def backend_to_follow(name: str, asked: str) -> str:
    """The scan backend `name`, or "reference", which every transform can follow, where one is open.

    Raises:
        UsageError: another backend was asked for by name.
    """
    if name == "reference" or not transform_active():
        return name
    if asked == "auto":
        return "reference"
    raise UsageError(
        f"The scan backend '{asked}' has derivatives of its own, which forward-mode derivatives and torch.func "
        f"transforms cannot follow. Use backend='auto' or 'reference' (one operator a step, slower), or torch.autograd."
    )


def refuse_transforms(what: str) -> None:
    """Refuse what has a hand-written backward while a transform is open.

    Raises:
        UsageError: see above.
    """
    if transform_active():
        raise UsageError(
            f"{what} has derivatives of its own, which forward-mode derivatives and torch.func transforms (jvp, grad, "
            f"vmap, jacrev) cannot follow. Use torch.autograd.grad or backward(), or torch.autograd.functional with "
            f"its default strategy; for forward mode use S5, LRU or Fractal, whose scan has a reference form."
        )
