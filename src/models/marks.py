"""Marks on parameters that tell other training codes which parameters need their own learning rate and weight decay.

Eigenvalues, input matrix and steps (roles A, B and dt) are trained slowly and without weight decay, as published. Other
trainers read this from the parameters: state-spaces/s4 from `parameter._optim`, a dict with lr and weight_decay;
several language-model code bases from `parameter._no_weight_decay`; timm from the model's `no_weight_decay()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import UsageError, unknown
from .options import check_numbers

ROLES = ("A", "B", "C", "D", "dt")


@dataclass(frozen=True)
class Marks:
    """Contents of the marks: learning rate (None for the trainer's own) and weight decay, and the marked roles."""

    lr: float | None = 0.001
    weight_decay: float = 0.0
    roles: tuple[str, ...] = ("A", "B", "dt")

    def put_on(self, parameter: nn.Parameter) -> None:
        """Set both marks."""
        optim = {"weight_decay": self.weight_decay}
        parameter._optim = optim if self.lr is None else {"lr": self.lr, **optim}
        if self.weight_decay == 0:
            parameter._no_weight_decay = True


class MarkedModule(nn.Module):
    """A module that marks its parameters by their roles, and keeps them marked.

    Marks are attributes of a parameter, set when the parameter is registered. Copying, loading and moving the module
    may make new parameters and set the marks again. An existing mark is not changed.
    """

    roles: ClassVar[dict[str, str]] = {}
    _marks: Marks = Marks()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As torch's method, plus the marks; torch calls it also for assignment and for loading with assign=True."""
        super().register_parameter(name, param)
        if param is not None and self._role(name) in self._marks.roles:
            self._mark(param)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters to train without weight decay, in the form that timm expects."""
        return no_weight_decay(self)

    def _role(self, name: str) -> str | None:
        # The `roles` of a plug-in are checked only when a model is built, later than this.
        return self.roles.get(name) if isinstance(self.roles, Mapping) else None

    def _mark(self, parameter: nn.Parameter) -> None:
        if not hasattr(parameter, "_optim"):
            self._marks.put_on(parameter)

    def _mark_all(self) -> None:
        for name, parameter in named_originals(self):
            if self._role(name) in self._marks.roles:
                self._mark(parameter)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        super()._apply(fn, recurse)
        self._mark_all()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mark_all()


def named_originals(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters in and below `module`, and the originals behind its parametrisations, under the name of the result."""
    yield from module.named_parameters()
    if is_parametrized(module):
        for name, parametrization in module.parametrizations.items():
            yield from ((name, parameter) for parameter in parametrization.parameters())


def no_weight_decay(module: nn.Module) -> set[str]:
    """Names of the parameters in any module that are marked to be trained without weight decay.

    A model with our layers passes them to timm by a method:  def no_weight_decay(self): return no_weight_decay(self)
    """
    _check_module("no_weight_decay", module)
    for part in module.modules():
        if isinstance(part, MarkedModule):
            # Parametrisations replace parameters without a call of register_parameter.
            part._mark_all()
    return {name for name, parameter in module.named_parameters() if getattr(parameter, "_no_weight_decay", False)}


def mark_parameters(
    module: nn.Module, lr: float | None = 0.001, weight_decay: float = 0.0, roles: Collection[str] = ("A", "B", "dt")
) -> nn.Module:
    """Mark the parameters of our layers in any module, replacing existing marks.

    Args:
        module: a model that holds layers of ours.
        lr: learning rate in `_optim`, >= 0; None leaves the trainer's own.
        weight_decay: weight decay in `_optim`, >= 0; with 0 the parameter also gets `_no_weight_decay`.
        roles: roles to mark, of A (everything that determines the eigenvalues), B, C, D and dt.
    Returns:
        The same module.
    Raises:
        UsageError: not a module, a negative or infinite number, an unknown role, or a module without a layer of ours.
    """
    _check_module("mark_parameters", module)
    for name, value in {"lr": lr, "weight_decay": weight_decay}.items():
        if value is not None:
            check_numbers(**{name: value})
            if not 0 <= value < math.inf:
                raise UsageError(f"{name} is a number of at least 0, got {value}. Usual are lr=0.001, weight_decay=0.")
    for role in roles:
        if role not in ROLES:
            raise unknown("role", role, ROLES)
    layers = [part for part in module.modules() if isinstance(part, MarkedModule)]
    if not layers:
        raise UsageError(
            f"mark_parameters marks the parameters of sequence layers, and {type(module).__name__} holds none. "
            f"Pass the model that holds them."
        )
    for layer in layers:
        layer._marks = Marks(lr, weight_decay, tuple(roles))
        for name, parameter in named_originals(layer):
            if layer._role(name) is not None:
                for mark in ("_optim", "_no_weight_decay"):
                    parameter.__dict__.pop(mark, None)
        layer._mark_all()
    return module


def _check_module(function: str, module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise UsageError(f"{function} takes a torch module, got {type(module).__name__}. Pass the model itself.")
