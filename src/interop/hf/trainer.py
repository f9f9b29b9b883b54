"""The Trainer of transformers, with the learning rates and decays that state space parameters need."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer

from ...models.marks import no_weight_decay


class SSMTrainer(Trainer):
    """`transformers.Trainer` that respects the marks of parameters, for any model that contains our layers.

    The plain Trainer decides by name (bias, norm): it decays eigenvalues and steps, and trains them at the full
    learning rate. Here a parameter marked `_no_weight_decay` is not decayed, and a learning rate in its `_optim` is an
    upper limit (`fractal_ssm.mark_parameters` changes the marks).
    """

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Names of the decayed parameters: those of the plain Trainer except the marked ones."""
        undecayed = no_weight_decay(model)
        return [name for name in super().get_decay_parameter_names(model) if name not in undecayed]

    def create_optimizer(self, *args: Any, **options: Any) -> torch.optim.Optimizer:
        """The optimizer of `args.optim`, with separate groups for marked learning rates."""
        given = self.optimizer is not None
        optimizer = super().create_optimizer(*args, **options)
        if not given:
            for group in list(optimizer.param_groups):
                _split(optimizer, group)
        return optimizer


def _split(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Move parameters marked with a smaller learning rate into separate groups."""
    slow: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        rate = getattr(parameter, "_optim", {}).get("lr", group["lr"])
        if rate < group["lr"]:
            slow.setdefault(rate, []).append(parameter)
    moved = {id(parameter) for parameters in slow.values() for parameter in parameters}
    group["params"] = [parameter for parameter in group["params"] if id(parameter) not in moved]
    for rate, parameters in slow.items():
        optimizer.add_param_group({**group, "params": parameters, "lr": rate})
