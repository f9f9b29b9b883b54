"""Every use of torch's private interfaces to autograd and the dispatcher, in one place.

- Detection of forward mode, torch.func transforms, tracers and dispatch modes. A custom operator passes no tangent
  through its body, and torch drops the tangent silently when no input requires an ordinary gradient; the operators
  here therefore check first.
- Gradients computed by torch inside a hand-written backward, of first order (`gradients`) or differentiable
  themselves (`graph_gradients`).
- Running the body of a custom operator, which torch.compile must not trace, as if it were called outside any graph
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

# In a compiled graph torch (2.13) excludes these dispatch keys inside a custom operator: a lazily conjugated or negated
# tensor is then silently read as if it were not. Autograd's keys are excluded inside every custom operator.
_PLAIN = ("Conjugate", "Negative", "ZeroTensor")
_AUTOGRAD = ("AutogradFunctionality", "ADInplaceOrView")


def transform_active() -> bool:
    """Whether a forward-mode level or a transform of torch.func (jvp, grad, vmap, jacrev, ...) is active."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def watched() -> bool:
    """Whether something intercepts torch's operators: a transform, a compiler, a tracer, or a dispatch mode."""
    if transform_active() or torch.compiler.is_compiling():
        return True
    return bool(torch._C._len_torch_dispatch_stack()) or torch._C._get_tracing_state() is not None


def may_bypass_dispatcher(*tensors: Tensor) -> bool:
    """Whether the dispatcher may be bypassed: plain tensors in CPU memory, and nothing intercepts their operators."""
    if watched():
        return False
    return all(type(tensor) in _PLAIN_TENSORS and tensor.is_cpu for tensor in tensors)


def is_batch_of_gradients(tensor: Tensor) -> bool:
    """Whether the tensor is a batch of gradients, as torch.autograd.grad(is_grads_batched=True) passes it."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def has_memory(tensor: Tensor) -> bool:
    """Whether the tensor has data to read. A fake tensor has none, except while compiling: it stands for a real one."""
    return torch.compiler.is_compiling() or not isinstance(tensor, FakeTensor)


def constant_in_graphs(function: Function) -> Function:
    """Mark a function without arguments as a constant for torch.compile.

    Same effect as torch.compiler.assume_constant_result, which would import torch._dynamo (1.5 s).
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def break_graph(message: str) -> None:
    """Break a graph of torch.compile here; with fullgraph=True, which allows no break, torch raises with `message`."""
    torch._dynamo.graph_break(msg=message)


def refuse_transforms(what: str, grad: Tensor | None = None) -> None:
    """Refuse an operation with a hand-written backward while a transform is active.

    Args:
        what: the operation, as messages call it.
        grad: in a backward, the incoming gradient. Only it reveals torch.autograd.grad(is_grads_batched=True), which
            torch.autograd.functional calls vectorize=True.
    Raises:
        UsageError: a transform is active, or `grad` is a batch of gradients.
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
    """Differentiable gradients of a function made of torch's operators, for the double backward of an operator.

    Args:
        inputs: arguments of the function.
        needed: for each input, whether its gradient is wanted.
        gradients: incoming gradients of the outputs; None for an output that is not used.
    Returns:
        One gradient per input; None where it is not needed, or no output depends on the input.
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
    """Enable lazy conjugation and negation inside a custom operator, and with `recording` autograd too.

    The guard is private to torch (whose own checkpoint uses it), so tests compare compiled layers with eager ones, and
    `gradients` raises when nothing was recorded.
    """
    with contextlib.ExitStack() as stack:
        for name in _PLAIN + (_AUTOGRAD if recording else ()):
            key = getattr(torch._C.DispatchKey, name)
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        stack.enter_context(torch.set_grad_enabled(recording))
        yield


def leaves(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor]:
    """The tensors detached from any graph; those `needed` are leaves of a new one."""
    return [tensor.detach().requires_grad_(need) for tensor, need in zip(tensors, needed, strict=True)]


def gradients(out: Tensor, inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Gradients of the inputs that require one, in dense memory; zeros for an input that `out` does not depend on.

    Raises:
        RuntimeError: autograd recorded nothing; the result would silently be zeros.
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
    """Contiguous, with conjugation and negation carried out, as the operator's fake tensor promises."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
