"""Parameter groups from the roles that layers declare, as the published codes of S4 and S5 form them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ..config import ROLES, OptimizerConfig
from ..errors import UsageError, unknown
from ..ranges import check_numbers

_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
)
# Norms of other packages have no base in common, but a name: LlamaRMSNorm, BatchNorm2d.
_NORM_NAME = re.compile(r"[Nn]orm(\dd)?$")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Role of every parameter that a layer of `model` declares, full parameter name -> "A", "B", "C", "D" or "dt".

    A layer declares roles of its own parameters in `roles`; names it lists but does not have (a parameter that an
    option leaves out) are passed over. A parametrised parameter hands its role to the tensors it is made of.

    Raises:
        UsageError: a role that does not exist.
    """
    roles = {}
    for module in model.modules():
        declared = getattr(module, "roles", None)
        if not isinstance(declared, Mapping):
            continue
        own = list(_named_originals(module))
        for name, role in declared.items():
            if role not in ROLES:
                raise unknown(f"role of {type(module).__name__}.{name}", role, ROLES)
            roles.update({id(parameter): role for key, parameter in own if key == name})
    return {name: roles[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in roles}


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups for the optimiser; every trainable parameter is in exactly one.

    A parameter with a role has lr `ssm_lr` if the role is in `ssm_roles`, else `lr`, and no decay if the role is in
    `undecayed_roles`. One without a role has `lr`, and no decay if it belongs to a norm or is a bias, unless
    `decay_norm_and_bias` is set in the configuration or, as an attribute, on a module that holds it (encoder and head
    set it).

    Modules decide, not names, so that a wrapper (`torch.compile`, DDP, `nn.Sequential`, a LightningModule) changes
    nothing. A parameter shared by several modules counts once, and is exempt only if no module decays it.

    For Muon the matrices without a role between encoder and head are groups of their own.

    Returns:
        dicts with name, params, lr, weight_decay and param_names, and for Muon the key muon; groups with equal lr and
        decay are one.
    Raises:
        UsageError: arguments of another type, a number that cannot be meant (NaN, infinite, negative), an unknown role.
    """
    if not isinstance(model, nn.Module) or not isinstance(config, OptimizerConfig):
        raise UsageError(
            f"parameter_groups takes a torch module and an OptimizerConfig, got a {type(model).__name__} and a "
            f"{type(config).__name__}."
        )
    check_numbers(config, "optimizer.")
    roles = parameter_roles(model)
    exempt = set() if config.decay_norm_and_bias else _norms_and_biases(model)
    ssm_lr = config.lr if config.ssm_lr is None else config.ssm_lr
    muon = config.name == "muon"
    matrices = _inner_matrices(model) if muon else set()
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        role = roles.get(name)
        slow = role in config.ssm_roles
        decayed = role not in config.undecayed_roles if role else id(parameter) not in exempt
        label = "ssm" if slow else "model"
        marked = not role and id(parameter) in matrices
        if marked:
            label = "matrices"
        group = groups.setdefault(
            (label, decayed),
            {
                "name": label if decayed else f"{label}, no decay",
                "params": [],
                "lr": ssm_lr if slow else config.lr,
                "weight_decay": config.weight_decay if decayed else 0.0,
                "param_names": [],
                **({"muon": marked} if muon else {}),
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


def _named_originals(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters in and below `module`; those that a parametrisation of it works on under the name of its result."""
    yield from module.named_parameters()
    if is_parametrized(module):
        for name, parametrization in module.parametrizations.items():
            yield from ((name, parameter) for parameter in parametrization.parameters())


def _norms_and_biases(model: nn.Module) -> set[int]:
    """Identities of the parameters of norms and of the biases, without those of modules that decay theirs."""
    exempt, decayed = set(), set()
    for module in model.modules():
        if getattr(module, "decay_norm_and_bias", False) is True:
            decayed.update(map(id, module.parameters()))
        is_norm = isinstance(module, _NORMS) or bool(_NORM_NAME.search(type(module).__name__))
        for name, parameter in _named_originals(module):
            # A name with a dot is that of a submodule, which has its own turn.
            if "." not in name and (is_norm or "bias" in name.split("_")):
                exempt.add(id(parameter))
    return exempt - decayed


def _inner_matrices(model: nn.Module) -> set[int]:
    """Identities of the matrices that Muon is for: not of encoder and head, which say so, nor of any embedding."""
    outer = [module for module in model.modules() if getattr(module, "decay_norm_and_bias", False) is True]
    outer += [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    excluded = {id(parameter) for module in outer for parameter in module.parameters()}
    return {id(parameter) for parameter in model.parameters() if parameter.dim() == 2} - excluded
