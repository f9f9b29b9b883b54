"""Hydra's and OmegaConf's complaints about a configuration in our words: what was given, the nearest name, what to do."""

from __future__ import annotations

from pathlib import PurePosixPath

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigKeyError

from .errors import did_you_mean

_GROUPS = ("model", "dataset", "optimizer", "scheduler", "trainer", "experiment", "budget")


def explain(error: Exception) -> str:
    """One message for an error of composing, with the nearest valid name where a name was wrong."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_option(error)
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        if isinstance(link, ConfigKeyError) and link.parent_node is not None and link.full_key:
            return _unknown_key(link, error)
    return "\n".join(dict.fromkeys(_first_lines(link) for link in chain))


def _unknown_key(key_error: ConfigKeyError, error: Exception) -> str:
    full_key = str(key_error.full_key)
    known = [str(key) for key in key_error.parent_node]
    parent, _, key = full_key.rpartition(".")
    if not parent:
        known += _GROUPS
    place = f"'{parent}'" if parent else "the configuration"
    where = str(error).splitlines()[0] if str(error).startswith("In '") else f"Unknown key '{full_key}'"
    where = where.split(":")[0] + f": unknown key '{full_key}'" if where.startswith("In '") else where
    return f"{where}. Keys of {place}: {', '.join(sorted(set(known)))}.{did_you_mean(key, known)}"


def _missing_option(error: MissingConfigException) -> str:
    path = PurePosixPath(str(error.missing_cfg_file))
    group, option = _split_group(path)
    if not GlobalHydra.instance().is_initialized():
        return _first_lines(error)
    loader = GlobalHydra.instance().config_loader()
    options = _all_options(loader, group)
    if not options:
        return f"Unknown group '{group}'. Groups: {', '.join(_GROUPS)}.{did_you_mean(group, _GROUPS)}"
    return f"Unknown {group} '{option}'. Known: {', '.join(options)}.{did_you_mean(option, options)}"


def _split_group(path: PurePosixPath) -> tuple[str, str]:
    first, *rest = path.parts
    return first, "/".join(rest)


def _all_options(loader, group: str, prefix: str = "") -> list[str]:
    """Options of a group and of its folders, `lra/fractal-listops` included."""
    from hydra.core.object_type import ObjectType

    options = [prefix + name for name in loader.get_group_options(group, results_filter=ObjectType.CONFIG)]
    for folder in loader.get_group_options(group, results_filter=ObjectType.GROUP):
        options += _all_options(loader, f"{group}/{folder}", f"{prefix}{folder}/")
    return sorted(set(options))


def _first_lines(error: BaseException) -> str:
    """The message without hydra's machine-readable tail."""
    lines = str(error).splitlines()
    keep = [line for line in lines if line.strip() and not line.strip().startswith(("full_key:", "object_type=", "reference_type="))]
    return "\n".join(keep)
