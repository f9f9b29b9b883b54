"""Stop a run at the first number that is not finite, and report its origin."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RunFailed


class NotFinite(RunFailed):
    """A loss, gradient or parameter became NaN or infinite; the message names the first such tensor and a remedy."""


_REMEDY = (
    "Lower optimizer.lr or optimizer.ssm_lr, warm up longer (scheduler.warmup_steps), or clip the gradients "
    "(trainer.gradient_clip_val=1.0)."
)

_REMEDY_AT_START = "No step was made yet, so no rate is to blame: look at that module, its options and the data."


def check_loss(loss: float, model: nn.Module, batch: Any, step: int) -> None:
    """Stop if the loss is not finite.

    Raises:
        NotFinite: names the first parameter that is not finite or, if all are finite, the first module whose output is
            not.
    """
    if math.isfinite(loss):
        return
    bad = first_bad_parameter(model)
    where = f"The first parameter that is not finite is {bad}." if bad else _first_bad_output(model, batch)
    raise NotFinite(f"The loss is {loss} at step {step}. {where} {_REMEDY if step else _REMEDY_AT_START}")


def check_gradients(model: nn.Module, step: int) -> None:
    """Stop if a gradient is not finite, before the optimiser writes it into the parameters.

    Raises:
        NotFinite: names the first such parameter.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    # Test one number instead of one per tensor: each read of a GPU tensor waits for the device.
    norms = torch.stack(torch._foreach_norm(gradients))
    if bool(torch.isfinite(norms.sum())):
        return
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise NotFinite(
                f"The gradient of {name} is not finite at step {step}; "
                f"the parameters still are those before it. {_REMEDY}"
            )
    raise NotFinite(f"The gradients overflow when their squares are summed at step {step}. {_REMEDY}")


def check_scale(scale: float, step: int) -> None:
    """Stop when the loss scale of 16-bit training is so low that float16's range cannot be the cause of overflows.

    Raises:
        NotFinite: the scale is below 2**-10; it begins at 2**16 and is halved at each overflow.
    """
    if scale < 2.0**-10:
        raise NotFinite(
            f"The gradients overflow at step {step}, although the loss is scaled by {scale:.1g}: they are not finite. "
            f"{_REMEDY} Or take trainer.precision=bf16-mixed, whose numbers have the range of float32."
        )


def first_bad_parameter(model: nn.Module) -> str | None:
    """Name of the first parameter or buffer that holds a NaN or an infinity."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def _first_bad_output(model: nn.Module, batch: Any) -> str:
    """Run the batch again and name the first module, in the order in which they finish, whose output is not finite."""
    bad: list[str] = []

    def watch(name: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(output)):
                bad.append(f"{name} ({type(module).__name__})")

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            model(batch.inputs, batch.lengths)
    finally:
        for handle in handles:
            handle.remove()
    if bad:
        return f"All parameters are finite; the first output that is not is that of {bad[0]}."
    return "All parameters and all outputs of modules are finite; it arises in the loss."


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, (tuple, list)):
        return [tensor for item in output for tensor in _tensors(item)]
    return []
