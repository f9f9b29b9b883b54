"""Rewrites errors of Hydra and OmegaConf about a configuration: what was given, the nearest name, what to do."""

from __future__ import annotations

import difflib
import io
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields, is_dataclass
from importlib import resources

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigIndexError,
    ConfigKeyError,
    ConfigTypeError,
    ValidationError,
)

from .arguments import option_value
from .config import RENAMED, Config
from .errors import UsageError, did_you_mean

_GROUPS = ("model", "dataset", "optimizer", "scheduler", "trainer", "experiment", "budget")
# Groups with more options than this are not listed in full.
_FEW = 15
# Lines that OmegaConf appends for programs rather than people.
_TAIL = ("full_key:", "object_type=", "reference_type=")
# Types of keys in words, for the class names of OmegaConf.
_KINDS = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false", "String": "a string"}


def brief(message: str) -> str:
    """The message with long values cut in the middle, at most 20 lines of 1,000 characters."""
    lines = [_cut(re.sub(r"\S{201,}", lambda word: _cut(word[0], 160), line), 1000) for line in message.splitlines()]
    return "\n".join(lines if len(lines) <= 20 else [*lines[:19], f"... ({len(lines) - 19} more lines)"])


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]}... ({len(text):,} characters)"


@contextmanager
def package_found(arguments: Sequence[str]) -> Iterator[None]:
    """Raise UsageError if Hydra is asked to show a --package that the configuration does not have.

    Hydra itself prints one line and exits with status 1.
    """
    package = option_value(arguments, "--package", "-p")
    if package is None:
        yield
        return
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except SystemExit as end:
        if end.code != 1:
            raise
        known = [entry.name for entry in fields(Config)]
        raise UsageError(
            f"--package takes a key of the configuration, got {package!r}. Keys: {', '.join(known)}, and those inside "
            f"them: --package model.layer.{did_you_mean(package, _dotted_keys())}"
        ) from None


def explain(error: BaseException) -> str:
    """One message for an error of composing, with the nearest valid name if a name was wrong."""
    return brief(_explain(error))


def _explain(error: BaseException) -> str:
    # Hydra does not always set the cause; the exception it was handling (the context) then serves as well.
    for link in _chain(error, contexts=True):
        if isinstance(link, UsageError):
            return str(link)
        if told := _plain(str(link)):
            return told
        if isinstance(link, MissingConfigException) and link.missing_cfg_file:
            return _missing_option(link)
        if isinstance(link, OverrideParseException):
            return _unreadable(str(link.override))
        if isinstance(link, ConfigIndexError) and link.full_key:
            return _no_position(link, str(error))
        if isinstance(link, ValidationError) and link.full_key and (told := _misfit(link)):
            return _place(str(error)) + told
        if isinstance(link, (ConfigKeyError, ConfigAttributeError)) and link.full_key and link.parent_node is not None:
            return _unknown_key(link, str(error))
        if isinstance(link, ConfigTypeError) and link.full_key and (told := _wrong_type(link, str(error))):
            return _place(str(error)) + told
        if twice := re.match(r"Multiple values for (\S+)\. To override a value use 'override \S+ (\S+)'", str(link)):
            group, option = twice.groups()
            return f"'{group}' is among the defaults already. Leave out the '+': {group}={option}"
    return "\n".join(dict.fromkeys(_without_tail(link) for link in _chain(error)))


# Patterns of sentences of Hydra and OmegaConf, and their replacements; {0}, {1} are the groups of the pattern.
_SENTENCES = (
    (
        r"Ambiguous value for argument '(([^=]+)=(.*))'",
        "{1} takes one value, got {2}. A list is {1}=[{2}]; to run once for each value add -m.",
    ),
    (
        "Recursive interpolation detected",
        "A value refers to itself through ${{...}}. Give one of the keys of that loop a plain value, key=value.",
    ),
    (
        r"Interpolation key '([^']+)' not found",
        "A value refers to ${{{0}}}, and the configuration has no key '{0}'. Keys are shown by --cfg job.{near}",
    ),
    (
        r"Environment variable '([^']+)' not found",
        (
            "A value refers to the environment variable {0}, which is not set. Set it, or give a default: "
            "${{oc.env:{0},DEFAULT}}"
        ),
    ),
    (
        r"Unsupported interpolation type (\S+)",
        (
            "A value holds ${{{0}:...}}: there is no function '{0}'. A key is written with dots, ${{optimizer.lr}}. "
            "Functions: now, hydra, oc.env, oc.select, oc.create."
        ),
    ),
    (
        r"Cannot find primary config '([^']+)'",
        (
            "There is no configuration '{0}' for --config-name. The one of this program is 'config': leave the option "
            "out. One of your own is FOLDER/{0}.yaml with --config-dir FOLDER."
        ),
    ),
    (
        r"Primary config module '([^']+)' not found",
        (
            "--config-path takes a package with configurations, and there is no '{0}'. Leave it out; files of your own "
            "are found with --config-dir FOLDER."
        ),
    ),
    (
        r"Additional config directory '([^']+)' not found",
        (
            "--config-dir takes a folder, and there is none at {0}. Make it, with your files in "
            "experiment/ or model/, or correct the path."
        ),
    ),
)


def _plain(text: str) -> str | None:
    """The replacement of a sentence of Hydra or OmegaConf; None for a text that no pattern matches."""
    for pattern, sentence in _SENTENCES:
        if (found := re.search(pattern, text)) is None:
            continue
        if found[0].startswith("Interpolation key") and found[1] in _GROUPS:
            return _chosen_by_name(found[1])
        known = _dotted_keys() if found.groups() else ()
        return sentence.format(*found.groups(), near=did_you_mean(found[1], known) if known else "")
    return None


def _dotted_keys() -> list[str]:
    """seed, training.batch_size, ...: the keys of the typed root."""
    parts = {entry.name: entry.default_factory for entry in fields(Config)}
    inner = {name: fields(part) for name, part in parts.items() if is_dataclass(part)}
    return [*parts, *(f"{name}.{entry.name}" for name, entries in inner.items() for entry in entries)]


def explain_value_error(error: ValueError) -> str | None:
    """One message for a bare ValueError from OmegaConf or Hydra; None for one that is not about a setting.

    OmegaConf passes on the ValueError of int("x") (optimizer.betas.x=3), and Hydra raises one for a group that is given
    a number (model=5). They are recognised by the function that raised them.
    """
    frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    module, names = frame.f_globals["__name__"], frame.f_locals
    if module == "omegaconf.omegaconf" and "key" in names:
        parent, _, position = str(names["key"]).rpartition(".")
        return f"'{parent}' is a list, and '{position}' is no position in it. {_set_list(parent)}"
    if module == "hydra._internal.defaults_list" and "override" in names:
        override = names["override"]
        group = str(override.key_or_group)
        if not group:
            return _unreadable(str(override.input_line))
        return _chosen_by_name(group, f", got {override.get_value_string()!r}")
    return None


def _chain(error: BaseException, contexts: bool = False) -> list[BaseException]:
    chain = [error]
    while (before := chain[-1].__cause__ or (chain[-1].__context__ if contexts else None)) is not None:
        chain.append(before)
    return chain


def _unknown_key(key_error: ConfigKeyError | ConfigAttributeError, context: str) -> str:
    full_key = str(key_error.full_key)
    parent, _, key = full_key.rpartition(".")
    if full_key in RENAMED:
        return f"{_place(context)}there is no key '{full_key}' any more. {RENAMED[full_key]}"
    if full_key in _GROUPS:
        return _chosen_by_name(full_key)
    known = {str(name) for name in key_error.parent_node} - {"hydra"} | set(() if parent else _GROUPS)
    where = f"{_place(context)}unknown" if _place(context) else "Unknown"
    place = f"'{parent}'" if parent else "the configuration"
    return f"{where} key '{full_key}'. Keys of {place}: {', '.join(sorted(known))}.{did_you_mean(key, known)}"


def _place(context: str) -> str:
    """The file that Hydra names at the start of a message, "In 'experiment/x': ...", as a prefix; else ""."""
    return f"{context.split(':')[0]}: " if context.startswith("In '") else ""


def _no_position(error: ConfigIndexError, context: str) -> str:
    parent, _, position = str(error.full_key).rpartition("[")
    there = len(error.parent_node or ())
    holds = f"holds {there} value{'' if there == 1 else 's'}, counted from 0," if there else "is empty"
    return f"{_place(context)}'{parent}' {holds} and has no position {position.rstrip(']')}. {_set_list(parent)}"


def _wrong_type(error: ConfigTypeError, context: str) -> str | None:
    """The message for a mapping given to a list, or for a typed key to be removed; None for other errors."""
    key, text = str(error.full_key), str(error)
    if "Cannot merge DictConfig with ListConfig" in text:
        given = re.match(r"Error merging override [^=]+=(.*)", context)
        return f"{key} takes a list, {key}=[...]{f', got {given[1]}' if given else ''}."
    if "does not support deletion" in text:
        return f"'{key}' cannot be removed, only set: {key}=..."
    return None


def _chosen_by_name(group: str, given: str = "") -> str:
    if group == "hydra" or not packaged_options(group):
        keys = "hydra.run.dir=..., hydra.sweep.dir=..., hydra/launcher=NAME"
        return f"'{group}' is a group of keys, no single value{given}. Set one of them: {keys}."
    known = packaged_options(group)
    few = f"Known: {', '.join(known)}." if len(known) <= _FEW else f"The {len(known)} names are listed by --help."
    return f"'{group}' is chosen by name, {group}=NAME{given}. {few}"


def _set_list(key: str) -> str:
    return f"Set the whole list, {key}=[...], or one value that it holds by its number, {key}.0=..."


def _misfit(error: ValidationError) -> str | None:
    """The message for a value of the wrong type; None if OmegaConf's own message has to do."""
    key, text = str(error.full_key), str(error).splitlines()[0]
    if wrong := re.match(r"Value '(.*)' of type '(\w+)' could not be converted to (\w+)", text):
        value, kind, wanted = wrong.groups()
        if kind == "dict":
            return f"'{key}' is a single value and holds no keys. Set {key}=..."
        return f"{key} takes {_KINDS[wanted]}, got '{value}'." if wanted in _KINDS else None
    if "is not a ListConfig" in text:
        return f"{key} takes a list, {key}=[...], got {error.value!r}."
    if wrong := re.match(r"Value '(.*)' (?:of type '\w+' is incompatible with type hint|is not a valid) (.*)", text):
        value, wanted = wrong.groups()
        kinds = {"'Union[int, str]'": "a whole number or a string", "bool (type str)": "true or false"}
        return f"{key} takes {kinds[wanted]}, got {value!r}." if wanted in kinds else None
    if wrong := re.match(r"Cannot convert '\w+' to string: '(.*)'", text):
        return f"{key} takes a string, got {wrong[1]}."
    if "NoneType is not a subclass of" in text:
        return f"{key} needs a value and cannot be null."
    if "is not Optional" in text:
        return f"{key} needs a value and cannot be null."
    if "is not a subclass of" in text and isinstance(error.parent_node, DictConfig):
        keys = ", ".join(str(name) for name in error.parent_node._get_node(error.key))
        return f"'{key}' is a group of keys, no single value. Set one of them, {key}.KEY=...: {keys}."
    return None


def _unreadable(override: str) -> str:
    if "=" not in override:
        return f"'{override}' has no '='. A setting is key=value: {override}=..."
    return (
        f"'{override}' cannot be read as key=value. The key is names joined by single dots; a value with spaces or any "
        f"of =,:'\"{{}}[]() goes into quotes, twice for the shell: 'key=\"value\"'."
    )


def _missing_option(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).partition("/")
    if group == "hydra" and "/" in option:
        inner, _, option = option.partition("/")
        known = sorted(str(name) for name in error.options or ())
        more = " joblib and submitit_slurm come with pip install 'fractal-ssm[sweep]'." if inner == "launcher" else ""
        return f"Unknown hydra/{inner} '{option}'. Known: {', '.join(known)}.{did_you_mean(option, known)}{more}"
    known = {str(name) for name in error.options or ()} | set(packaged_options(group))
    if known and not option:
        return _chosen_by_name(group, ", got nothing")
    if not known:
        return f"Unknown group '{group}'. Groups: {', '.join(_GROUPS)}.{did_you_mean(group, _GROUPS)}"
    return (
        f"Unknown {group} '{option}'. {_nearest(group, option, known)} "
        f"Files of your own are found with --config-dir FOLDER, as FOLDER/{group}/{option}.yaml."
        f"{_registered(group, option)}"
    )


def _nearest(group: str, option: str, known: set[str]) -> str:
    """All names of a short group; for a long one the nearest few, and where to find the rest."""
    if len(known) <= _FEW:
        return f"Known: {', '.join(sorted(known))}.{did_you_mean(option, known)}"
    inside = sorted(name for name in known if name.startswith(option.rstrip("/") + "/"))
    near = inside[:3] or difflib.get_close_matches(option, sorted(known), n=3, cutoff=0.4)
    told = f"Nearest: {', '.join(near)}. " if near else ""
    return told + f"All {len(known)} are listed by --help, group '{group}'."


def _registered(group: str, option: str) -> str:
    """A hint that a part registered by a plug-in needs no file; empty for groups without registered parts."""
    key = {"dataset": "dataset.name", "model": "model.layer.name"}.get(group)
    return f" What a module of imports=[...] registers needs none: {key}={option}." if key else ""


def packaged_options(group: str) -> list[str]:
    """The packaged options of a group, with their folders: "lra/fractal-listops"."""

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
    # A UsageError raised while Hydra names the run folder arrives wrapped as a failed interpolation.
    lines = str(error).removeprefix("UsageError raised while resolving interpolation: ").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.strip().startswith(_TAIL))
