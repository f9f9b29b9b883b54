"""The optimizers of torch by name, over the parameter groups of `optim.parameter_groups`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..config import OPTIMIZERS, OptimizerConfig
from ..errors import UsageError, unknown

# Not options of the user: set elsewhere in the configuration, chosen by `build_optimizer`, or useless in training.
_NOT_OPTIONS = ("params", "lr", "weight_decay", "betas", "eps", "foreach", "fused")
_NOT_OPTIONS += ("maximize", "capturable", "differentiable")
_CLASSES = {name.lower(): getattr(torch.optim, name) for name in torch.optim.__all__ if name.lower() in OPTIMIZERS}


class MuonWithAdamW(torch.optim.Optimizer):
    """torch's Muon for the groups marked "muon" and its AdamW for all others, as one optimizer.

    Muon orthogonalises the update of a matrix. It does not suit vectors, the parameters of state space models,
    embeddings and heads, which AdamW updates (see `optim.parameter_groups`).

    Args:
        groups: parameter groups with the key "muon", a bool; the groups marked true hold matrices only.
        lr: learning rate of groups without their own.
        betas, eps, fused: of AdamW.
        options: of Muon.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
        **options: Any,
    ):
        marked = [group for group in groups if group["muon"]]
        others = [group for group in groups if not group["muon"]]
        self._parts: dict[bool, torch.optim.Optimizer] = {}
        if marked:
            self._parts[True] = torch.optim.Muon(marked, lr=lr, **options)
        if others:
            self._parts[False] = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=fused)
        filled = {id(group["params"][0]): group for part in self._parts.values() for group in part.param_groups}
        # Groups keep the given order; each has the defaults of its part.
        super().__init__([filled[id(group["params"][0])] for group in groups], {})
        # The gradient scaler of 16-bit training reads this attribute.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for marked, part in self._parts.items():
            # Groups and state are shared, so that the parts use rates set on this optimizer and states loaded into it.
            part.param_groups = [group for group in self.param_groups if group["muon"] == marked]
            part.state = self.state
            part.step()
        return loss


def check_optimizer_config(config: OptimizerConfig) -> None:
    """Refuse options that the chosen optimizer does not have, and values that it does not take.

    Raises:
        UsageError: an unknown name or option; betas, eps or a weight decay for an optimizer without them; a value that
            torch itself refuses.
    """
    if config.name not in _CLASSES:
        raise unknown("optimizer.name", config.name, OPTIMIZERS)
    arguments = inspect.signature(_CLASSES[config.name]).parameters
    known = [key for key in arguments if key not in _NOT_OPTIONS]
    for key, value in config.options.items():
        if key not in known:
            raise unknown(f"option of the optimizer '{config.name}', optimizer.options", key, known)
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise UsageError(f"optimizer.options.{key} must be finite, got {value}.")
    for key in ("betas", "eps"):
        if not _takes(config.name, key) and getattr(config, key) != getattr(OptimizerConfig(), key):
            raise UsageError(
                f"The optimizer '{config.name}' has no {key} to set, got {getattr(config, key)}. Leave optimizer.{key} "
                f"out; its own options: {', '.join(known) or 'none'} (optimizer.options.KEY=...)."
            )
    if config.weight_decay and "weight_decay" not in arguments:
        raise UsageError(
            f"The optimizer '{config.name}' has no weight decay, got optimizer.weight_decay={config.weight_decay}. "
            f"Set optimizer.weight_decay=0."
        )
    try:
        _try_out(config)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise UsageError(f"torch's optimizer '{config.name}' refuses optimizer.options: {error}") from error


def build_optimizer(
    groups: list[dict[str, Any]], config: OptimizerConfig, fused: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of a configuration over the groups. Parameters must be real, for second moments and Muon.

    With `fused`, optimizers that have a fused kernel (Adam, AdamW, SGD, Adagrad) run it once per group instead of a
    dozen operations per parameter: results are equal up to rounding, in a quarter of the time on a CPU. Lightning does
    not clip gradients with it under mixed precision.
    """
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in config.options.items()}
    # With None torch chooses among its other implementations.
    kernel = True if fused else None
    betas = (config.betas[0], config.betas[1])
    if config.name == "muon":
        return MuonWithAdamW(groups, config.lr, betas, config.eps, kernel, **options)
    chosen = _CLASSES[config.name]
    if _takes(config.name, "betas"):
        options["betas"] = betas
    if _takes(config.name, "eps"):
        options["eps"] = config.eps
    if "fused" in inspect.signature(chosen).parameters:
        options["fused"] = kernel
    return chosen(groups, lr=config.lr, **options)


def fits(state: Mapping[str, Any], like: Mapping[str, Any]) -> bool:
    """Whether the state of a parameter has the tensors of `like`, in their shapes; see `fresh_state`."""
    return all(
        isinstance(state.get(key), Tensor) and state[key].shape == value.shape
        for key, value in like.items()
        if isinstance(value, Tensor)
    )


def fresh_state(parameter: nn.Parameter, group: Mapping[str, Any], config: OptimizerConfig) -> Mapping[str, Any]:
    """The optimizer's state for a parameter after one step, whose keys and shapes serve for comparison."""
    other = nn.Parameter(torch.zeros_like(parameter, device="cpu"))
    other.grad = torch.zeros_like(other)
    optimizer = build_optimizer([{**group, "params": [other], "param_names": ["x"]}], config)
    optimizer.step()
    return optimizer.state[other]


def _takes(name: str, key: str) -> bool:
    """Whether the optimizer has the option `key`: `betas`, or an `eps` that is one number; for Muon, AdamW has both."""
    if name == "muon":
        return True
    found = inspect.signature(_CLASSES[name]).parameters.get(key)
    return found is not None and (key == "betas" or isinstance(found.default, float))


def _try_out(config: OptimizerConfig) -> None:
    """Make one step on one matrix, so that torch raises its errors here."""
    parameter = nn.Parameter(torch.zeros(2, 2))
    group = {"params": [parameter], "lr": config.lr, "weight_decay": config.weight_decay, "muon": True}
    if "weight_decay" not in inspect.signature(_CLASSES[config.name]).parameters:
        del group["weight_decay"]
    fresh_state(parameter, group, config)
