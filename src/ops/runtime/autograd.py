"""Forward-mode derivatives and torch.func transforms: what an operator with a hand-written backward cannot follow.

A custom operator gets no tangent through its inside, and torch drops the tangent without a word where no input also
asks for an ordinary gradient. Operators here therefore look first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import UsageError


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


def graph_gradients(
    function: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of a function made of torch's operators, to be differentiated again: for a hand-written backward.

    Args:
        inputs: of the function.
        needed: for which of them a gradient is wanted.
        gradients: of the outputs; None for one that nothing depends on.
    Returns:
        One for each input; None where it is not needed, or no output depends on it.
    """
    # Differentiated are views: of the inputs themselves, one that is made of another, or is the same tensor, would be
    # counted along the path outside as well.
    given = [None if t is None else t.view_as(t) for t in inputs]
    outputs = function(*given)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    pairs = [(out, g) for out, g in zip(outputs, gradients, strict=True) if g is not None and out.requires_grad]
    if not pairs:
        return [None] * len(given)
    wanted = [t for t, need in zip(given, needed, strict=True) if need]
    outputs, seeds = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, seeds, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]
