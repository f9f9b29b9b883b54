"""Parameter groups from the roles that layers declare, as the published codes of S4 and S5 form them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..config import ROLES, OptimizerConfig
from ..errors import unknown

# Norms and biases of these parts are decayed in any case, as in the published S4 (its exemption covers the backbone).
_ALWAYS_DECAYED = ("encoder", "head")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Role of every parameter that a layer of `model` declares, full parameter name -> "A", "B", "C", "D" or "dt".

    A layer declares roles of its own parameters in `roles`; names it lists but does not have (a parameter that an
    option leaves out) are passed over.

    Raises:
        UsageError: a role that does not exist.
    """
    roles = {}
    for prefix, module in model.named_modules():
        declared = getattr(module, "roles", {})
        own = dict(module.named_parameters()) if declared else {}
        for name, role in declared.items():
            if role not in ROLES:
                raise unknown(f"role of {type(module).__name__}.{name}", role, ROLES)
            if name in own:
                roles[f"{prefix}.{name}" if prefix else name] = role
    return roles


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups for the optimiser; every trainable parameter is in exactly one.

    A parameter with a role has lr `ssm_lr` if the role is in `ssm_roles`, else `lr`, and no decay if the role is in
    `undecayed_roles`. One without a role has `lr`, and no decay if it belongs to a norm or is a bias (outside encoder
    and head) unless `decay_norm_and_bias`.

    Returns:
        dicts with name, params, lr, weight_decay and param_names; groups with equal lr and decay are one.
    """
    roles = parameter_roles(model)
    exempt = set() if config.decay_norm_and_bias else set(_norms_and_biases(model))
    ssm_lr = config.lr if config.ssm_lr is None else config.ssm_lr
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        role = roles.get(name)
        slow = role in config.ssm_roles
        decayed = role not in config.undecayed_roles if role else name not in exempt
        label = "ssm" if slow else "model"
        group = groups.setdefault(
            (label, decayed),
            {
                "name": label if decayed else f"{label}, no decay",
                "params": [],
                "lr": ssm_lr if slow else config.lr,
                "weight_decay": config.weight_decay if decayed else 0.0,
                "param_names": [],
            },
        )
        group["params"].append(parameter)
        group["param_names"].append(name)
    return [groups[key] for key in sorted(groups)]


def describe_groups(groups: list[dict[str, Any]], roles: dict[str, str]) -> list[dict[str, Any]]:
    """What the record and the start of a run say of the groups: name, lr, weight_decay, roles, tensors, parameters."""
    return [
        {
            "name": group["name"],
            "lr": group["lr"],
            "weight_decay": group["weight_decay"],
            "roles": sorted({roles[name] for name in group["param_names"] if name in roles}),
            "tensors": len(group["params"]),
            "parameters": sum(parameter.numel() for parameter in group["params"]),
            "names": group["param_names"],
        }
        for group in groups
    ]


def build_optimizer(groups: list[dict[str, Any]], config: OptimizerConfig, fused: bool = False) -> torch.optim.AdamW:
    """AdamW over the groups. Parameters are real, so that its second moments are those of real numbers.

    `fused` runs torch's one kernel a group instead of a dozen operations a parameter, equal up to rounding: on a CPU a
    quarter of the time. Lightning does not clip gradients with it under mixed precision.
    """
    betas = (config.betas[0], config.betas[1])
    # None is torch's own choice among the others.
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True if fused else None)


def _norms_and_biases(model: nn.Module) -> Iterator[str]:
    for prefix, module in model.named_modules():
        if prefix.split(".")[0] in _ALWAYS_DECAYED:
            continue
        is_norm = "norm" in type(module).__name__.lower()
        for name, _ in module.named_parameters(recurse=False):
            if is_norm or name == "bias" or name.endswith("_bias"):
                yield f"{prefix}.{name}" if prefix else name
