"""Parameter groups from the roles that layers declare, as the published code of S4 and S5 forms them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..config import ROLES, OptimizerConfig
from ..errors import UsageError, unknown
from ..models.marks import named_originals
from ..ranges import check_numbers

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)
# Norms of other packages share no base class, but are recognised by name: LlamaRMSNorm, BatchNorm2d.
_NORM_NAME = re.compile(r"[Nn]orm(\dd)?$")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Role of every parameter that a layer of `model` declares, full parameter name -> "A", "B", "C", "D" or "dt".

    A layer declares the roles of its own parameters in `roles`; names without a parameter (one that an option leaves
    out) are ignored. The tensors behind a parametrised parameter have its role.

    Raises:
        UsageError: an unknown role.
    """
    roles = {}
    for module in model.modules():
        declared = getattr(module, "roles", None)
        if not isinstance(declared, Mapping):
            continue
        own = list(named_originals(module))
        for name, role in declared.items():
            if role not in ROLES:
                raise unknown(f"role of {type(module).__name__}.{name}", role, ROLES)
            roles.update({id(parameter): role for key, parameter in own if key == name})
    return {name: roles[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in roles}


def parameter_groups(
    model: nn.Module,
    config: OptimizerConfig | None = None,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    ssm_lr: float | None = None,
) -> list[dict[str, Any]]:
    """Groups for the optimiser of any model that holds our layers; every trainable parameter is in exactly one.

    A parameter with a role has lr `ssm_lr` if the role is in `ssm_roles`, else `lr`, and no decay if the role is in
    `undecayed_roles`. A parameter without a role has `lr`, and no decay if it belongs to a norm or is a bias, unless
    `decay_norm_and_bias` is set in the configuration or, as an attribute, on a module that holds it (encoder and head
    set it). A parameter of another package's layer may carry marks for other trainers (`_no_weight_decay`; `_optim`, a
    dict with lr and weight_decay), which then apply.

    Parameters are classified by their modules, not by their names, so a wrapper (`torch.compile`, DDP, `nn.Sequential`,
    a LightningModule) changes nothing. A parameter shared by several modules counts once, and is exempt only if no
    module decays it.

    Args:
        model: any torch module.
        config: an `OptimizerConfig`; None is its defaults.
        lr, weight_decay: in place of those of `config`.
        ssm_lr: likewise; if only lr is given, ssm_lr is the smaller of lr and the configuration's ssm_lr.
    Returns:
        dicts with name, params, lr, weight_decay, param_names and rule, which describes the group's parameters; groups
        with equal name, lr and decay are merged. `explain_groups` prints them. For Muon the matrices without a role
        between encoder and head form separate groups, and every group has the key muon.
    Raises:
        UsageError: arguments of another type, an invalid number (NaN, infinite, negative), an unknown role.
    >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-4))  # doctest: +SKIP
    """
    config = OptimizerConfig() if config is None else config
    if not isinstance(model, nn.Module) or not isinstance(config, OptimizerConfig):
        raise UsageError(
            f"parameter_groups takes a torch module and an OptimizerConfig, got a {type(model).__name__} and a "
            f"{type(config).__name__}."
        )
    config = _changed(config, lr, weight_decay, ssm_lr)
    roles = parameter_roles(model)
    exempt = set() if config.decay_norm_and_bias else _norms_and_biases(model)
    muon = config.name == "muon"
    matrices = _inner_matrices(model) if muon else set()
    groups: dict[tuple[str, float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        role = roles.get(name)
        label, rate, decay = _treatment(parameter, role, id(parameter) in exempt, config)
        of_muon = role is None and label != "marked" and id(parameter) in matrices
        if of_muon:
            label = label.replace("model", "matrices")
        rule = _RULES.get(label, _RULES["ssm"])
        group = groups.setdefault(
            (label, rate, decay),
            {
                "name": label,
                "params": [],
                "lr": rate,
                "weight_decay": decay,
                "param_names": [],
                "rule": rule,
                **({"muon": of_muon} if muon else {}),
            },
        )
        group["params"].append(parameter)
        group["param_names"].append(name)
    return [groups[key] for key in sorted(groups)]


def _changed(
    config: OptimizerConfig, lr: float | None, weight_decay: float | None, ssm_lr: float | None
) -> OptimizerConfig:
    """The configuration with the given numbers in place of its own, checked."""
    changes = {"lr": lr, "weight_decay": weight_decay, "ssm_lr": ssm_lr}
    changes = {key: value for key, value in changes.items() if value is not None}
    check_numbers(changed := replace(config, **changes), "optimizer.")
    if lr is not None and ssm_lr is None and changed.ssm_lr is not None:
        changed.ssm_lr = min(changed.ssm_lr, lr)
    return changed


def _treatment(
    parameter: nn.Parameter, role: str | None, exempt: bool, config: OptimizerConfig
) -> tuple[str, float, float]:
    """Group name, learning rate and weight decay of a parameter."""
    slow = role in config.ssm_roles
    decayed = role not in config.undecayed_roles
    if role is None:
        asked = getattr(parameter, "_optim", None)
        if isinstance(asked, Mapping) and {"lr", "weight_decay"} & asked.keys():
            return "marked", float(asked.get("lr", config.lr)), float(asked.get("weight_decay", config.weight_decay))
        decayed = not exempt and getattr(parameter, "_no_weight_decay", False) is not True
    rate = config.ssm_lr if slow and config.ssm_lr is not None else config.lr
    name = ("ssm" if slow else "model") + ("" if decayed else ", no decay")
    return name, rate, config.weight_decay if decayed else 0.0


_RULES = {
    "ssm": "roles of sequence layers that are trained at ssm_lr",
    "model": "the rest",
    "model, no decay": "of the rest: norms, biases, what is marked _no_weight_decay, and roles that are not decayed",
    "matrices": "matrices of the blocks, which Muon trains",
    "matrices, no decay": "matrices of the blocks, which Muon trains, without decay",
    "marked": "parameters of other layers, as their _optim asks",
}


def explain_groups(groups: list[dict[str, Any]]) -> str:
    """Text that lists the parameters, learning rate and weight decay of each group, one paragraph per group.

    Raises:
        UsageError: the argument is not a list that `parameter_groups` returned.
    """
    needed = {"name", "params", "lr", "weight_decay", "param_names", "rule"}
    if not isinstance(groups, list) or not all(isinstance(each, Mapping) and needed <= each.keys() for each in groups):
        raise UsageError(
            f"explain_groups takes the list that parameter_groups(model) returned, got a {type(groups).__name__}."
        )
    lines = []
    for group in groups:
        count = sum(parameter.numel() for parameter in group["params"])
        lines.append(
            f"{group['name']}: lr {group['lr']:g}, weight decay {group['weight_decay']:g}, {count:,} parameters in "
            f"{len(group['params'])} tensors ({group['rule']})"
        )
        lines.extend(textwrap.wrap(", ".join(group["param_names"]), 110, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(lines)


def describe_groups(groups: list[dict[str, Any]], roles: dict[str, str]) -> list[dict[str, Any]]:
    """Facts of each group for the record and the start of a run: name, lr, decay, roles, tensors, parameters, names."""
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


def _norms_and_biases(model: nn.Module) -> set[int]:
    """Identities of norms' parameters and of biases, except in modules that set `decay_norm_and_bias`."""
    exempt, decayed = set(), set()
    for module in model.modules():
        if getattr(module, "decay_norm_and_bias", False) is True:
            decayed.update(map(id, module.parameters()))
        is_norm = isinstance(module, _NORMS) or bool(_NORM_NAME.search(type(module).__name__))
        for name, parameter in named_originals(module):
            # A name with a dot belongs to a submodule, which is visited itself.
            if "." not in name and (is_norm or "bias" in name.split("_")):
                exempt.add(id(parameter))
    return exempt - decayed


def _inner_matrices(model: nn.Module) -> set[int]:
    """Identities of the matrices that Muon trains: none of encoder, head (`decay_norm_and_bias`) or embeddings."""
    outer = [module for module in model.modules() if getattr(module, "decay_norm_and_bias", False) is True]
    outer += [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    excluded = {id(parameter) for module in outer for parameter in module.parameters()}
    return {id(parameter) for parameter in model.parameters() if parameter.dim() == 2} - excluded
