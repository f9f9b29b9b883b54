"""All that leans on torch's autograd and dispatcher beyond their public names, in one place.

- Who is watching: forward mode, torch.func transforms, tracers, dispatch modes. A custom operator gets no tangent
  through its inside, and torch drops the tangent without a word where no input also asks for an ordinary gradient;
  operators here therefore look first.
- Gradients by torch inside a hand-written backward, once (`gradients`) or to be differentiated again
  (`graph_gradients`).
- The body of a custom operator that torch.compile must not look into, run as if called outside of any graph
  (`as_outside`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from ...errors import UsageError

Function = TypeVar("Function", bound=Callable[..., object])

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)

# Where a compiled graph is run, torch (2.13) leaves these out for everything inside a custom operator: a lazily
# conjugated or negated tensor is then read as if it were not, silently. Autograd is left out of every custom operator.
_PLAIN = ("Conjugate", "Negative", "ZeroTensor")
_AUTOGRAD = ("AutogradFunctionality", "ADInplaceOrView")


def transform_active() -> bool:
    """Whether a forward-mode level or a transform of torch.func (jvp, grad, vmap, jacrev, ...) is open."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def watched() -> bool:
    """Whether something follows torch's operators: a transform, a compiler, a tracer, or a dispatch mode."""
    if transform_active() or torch.compiler.is_compiling():
        return True
    return bool(torch._C._len_torch_dispatch_stack()) or torch._C._get_tracing_state() is not None


def may_bypass_dispatcher(*tensors: Tensor) -> bool:
    """Whether these tensors may be read past torch's operators: plain ones in CPU memory, and nobody watching."""
    if watched():
        return False
    return all(type(tensor) in _PLAIN_TENSORS and tensor.is_cpu for tensor in tensors)


def is_batch_of_gradients(tensor: Tensor) -> bool:
    """Whether the tensor stands for several, as with `is_grads_batched`."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def has_memory(tensor: Tensor) -> bool:
    """Whether there is something to read: not of a fake tensor, but of what it stands for in a compiled graph."""
    return torch.compiler.is_compiling() or not isinstance(tensor, FakeTensor)


def constant_in_graphs(function: Function) -> Function:
    """Mark a function without arguments as a constant for torch.compile.

    What torch.compiler.assume_constant_result does, which imports torch._dynamo (1.5 s) to do it.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def break_graph(message: str) -> None:
    """Break a graph of torch.compile here, and say why where fullgraph=True allows no break."""
    torch._dynamo.graph_break(msg=message)


def refuse_transforms(what: str, grad: Tensor | None = None) -> None:
    """Refuse what has a hand-written backward while a transform is open.

    Args:
        grad: in a backward, the incoming gradient: torch.autograd.grad(is_grads_batched=True), which is what
            torch.autograd.functional calls vectorize=True, shows in the gradient alone.
    Raises:
        UsageError: see above.
    """
    if transform_active() or (grad is not None and is_batch_of_gradients(grad)):
        raise UsageError(
            f"{what} has derivatives of its own, which forward-mode derivatives and torch.func transforms (jvp, grad, "
            f"vmap, jacrev) cannot follow. Use torch.autograd.grad or backward(), or torch.autograd.functional with "
            f"its defaults (vectorize=False); for forward mode use S5, LRU or Fractal, whose scan has a reference form."
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
    # Differentiate with respect to views: an input made of another, or given twice, would be counted twice.
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
