"""Hydra's and OmegaConf's complaints about a configuration in our words: what was given, the nearest name, what to do."""

from __future__ import annotations

import traceback
from importlib import resources

from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from .errors import UsageError, did_you_mean

_GROUPS = ("model", "dataset", "optimizer", "scheduler", "trainer", "experiment", "budget")
# Lines that OmegaConf appends for programs rather than people.
_TAIL = ("full_key:", "object_type=", "reference_type=")


def explain(error: BaseException) -> str:
    """One message for an error of composing, with the nearest valid name where a name was wrong."""
    # Hydra does not always name the cause; what it was handling when it complained is as good for finding a name.
    for link in _chain(error, contexts=True):
        if isinstance(link, UsageError):
            return str(link)
        if isinstance(link, MissingConfigException) and link.missing_cfg_file:
            return _missing_option(link)
        if isinstance(link, (ConfigKeyError, ConfigAttributeError)) and link.full_key and link.parent_node is not None:
            return _unknown_key(link, str(error))
    return "\n".join(dict.fromkeys(_without_tail(link) for link in _chain(error)))


def explain_position(error: ValueError) -> str | None:
    """One message where a list was given a name for a position (optimizer.betas.x=3); None for any other error.

    OmegaConf lets Python's own complaint about int("x") through, so where it was raised tells it apart.
    """
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    if frame.f_globals["__name__"] != "omegaconf.omegaconf" or "key" not in frame.f_locals:
        return None
    parent, _, position = str(frame.f_locals["key"]).rpartition(".")
    return (
        f"'{parent}' is a list, and '{position}' is no position in it. Set the whole list, {parent}=[...], or one "
        f"entry by its number, {parent}.0=..."
    )


def _chain(error: BaseException, contexts: bool = False) -> list[BaseException]:
    chain = [error]
    while (before := chain[-1].__cause__ or (chain[-1].__context__ if contexts else None)) is not None:
        chain.append(before)
    return chain


def _unknown_key(key_error: ConfigKeyError | ConfigAttributeError, context: str) -> str:
    full_key = str(key_error.full_key)
    parent, _, key = full_key.rpartition(".")
    known = {str(name) for name in key_error.parent_node} - {"hydra"} | set(() if parent else _GROUPS)
    # Hydra begins with the file when the key stands in one: In 'experiment/x': ...
    where = f"{context.split(':')[0]}: unknown" if context.startswith("In '") else "Unknown"
    place = f"'{parent}'" if parent else "the configuration"
    return f"{where} key '{full_key}'. Keys of {place}: {', '.join(sorted(known))}.{did_you_mean(key, known)}"


def _missing_option(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).partition("/")
    known = {str(name) for name in error.options or ()} | set(packaged_options(group))
    if not known:
        return f"Unknown group '{group}'. Groups: {', '.join(_GROUPS)}.{did_you_mean(group, _GROUPS)}"
    return (
        f"Unknown {group} '{option}'. Known: {', '.join(sorted(known))}.{did_you_mean(option, known)} "
        f"Files of your own are found with --config-dir FOLDER, as FOLDER/{group}/{option}.yaml."
    )


def packaged_options(group: str) -> list[str]:
    """Options of a group that this package brings, folders included: "lra/fractal-listops"."""

    def walk(folder, prefix: str) -> list[str]:
        found = []
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                found += walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                found.append(prefix + entry.name.removesuffix(".yaml"))
        return found

    folder = resources.files("fractal_ssm.configs") / group
    return walk(folder, "") if folder.is_dir() else []


def _without_tail(error: BaseException) -> str:
    # A mistake found while a run folder is named arrives as the failure of an interpolation.
    lines = str(error).removeprefix("UsageError raised while resolving interpolation: ").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.strip().startswith(_TAIL))
