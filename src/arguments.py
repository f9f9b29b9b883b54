"""Checks the command line of `python -m train` before Hydra reads it, and allows options and settings in any order.

Hydra's parser requires all settings (key=value) in one place: `experiment=x --cfg job seed=1` fails with
"unrecognized arguments: seed=1".
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .errors import UsageError, did_you_mean

_FLAGS = (
    *("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m"),
    *("--shell-completion", "-sc"),
)
_CHOICES = {
    "--cfg": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
_CHOICES |= {"-c": _CHOICES["--cfg"], "-i": _CHOICES["--info"]}
_WITH_VALUE = (
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
)
# This option of Hydra unpickles the file, which lets its author run code here.
_REFUSED = "--experimental-rerun"
# "all" if none of the choices follows; Hydra would take the setting that follows for a choice.
_WITH_OPTIONAL_VALUE = ("--info", "-i")

# At most one of these; the others only change what --cfg prints.
_COMMANDS = (
    ("--run", "-r"),
    ("--multirun", "-m"),
    ("--cfg", "-c"),
    ("--info", "-i"),
    ("--shell-completion", "-sc"),
)
_WITH_CFG = (("--resolve",), ("--package", "-p"))

# Hydra's parser takes seconds for a megabyte and exceeds the recursion limit at a few hundred brackets.
_LONGEST_SETTING, _LONGEST_NUMBER, _DEEPEST = 10_000, 400, 50


def in_order(arguments: Sequence[str]) -> list[str]:
    """The arguments reordered: options with their values first, then settings, each in the order given.

    Raises:
        UsageError: an option that does not exist or lacks its value, options that exclude each other, or a setting that
            is too long or nested too deep.
    """
    options: list[str] = []
    settings: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            _check_setting(argument)
            settings.append(argument)
            continue
        options.append(argument)
        name, equals, value = argument.partition("=")
        if name in _WITH_VALUE and not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
            options.append(value)
        elif name in _WITH_OPTIONAL_VALUE and not equals:
            options.append(rest.pop(0) if rest and rest[0] in _CHOICES[name] else "all")
        _check(name, value)
    _check_together(options, settings)
    return options + settings


def option_value(arguments: Sequence[str], *names: str) -> str | None:
    """The value of an option given as `--name value` or `--name=value`; None if it is not given."""
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else arguments[at + 1]
    return None


def _check_together(options: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse options that do nothing without another one, and options that ask for different things."""
    given = [next((pair for pair in _COMMANDS if name.partition("=")[0] in pair), None) for name in options]
    commands = [pair[0] for pair in dict.fromkeys(given) if pair is not None]
    helping = any(name in ("--help", "-h", "--hydra-help", "--version") for name in options)
    if len(commands) > 1 and not helping:
        raise UsageError(
            f"{' and '.join(commands)} ask for different things. Give one of {', '.join(p[0] for p in _COMMANDS)}."
        )
    if "--shell-completion" in commands and not any(map(_completion, settings)):
        raise UsageError("--shell-completion takes install=SHELL or uninstall=SHELL, SHELL one of bash, fish, zsh.")
    if "--resolve" in options and option_value(options, "--cfg", "-c") == "hydra":
        raise UsageError(
            "--cfg hydra cannot be resolved: its values refer to those of the job. Use --cfg all --resolve."
        )
    for name in options:
        pair = next((pair for pair in _WITH_CFG if name.partition("=")[0] in pair), None)
        if pair is None or "--cfg" in commands or (pair[0] == "--resolve" and helping):
            continue
        raise UsageError(f"{pair[0]} changes what --cfg prints and does nothing alone. Add --cfg job.")


def _check_setting(setting: str) -> None:
    """Refuse a setting without a key, and one so long or deeply nested that Hydra's parser would fail."""
    key, _, value = setting.partition("=")
    if not key.strip("+~ "):
        raise UsageError(f"{setting[:60]!r} names no key. A setting is key=value, seed=1; ~key removes one.")
    if "@" in key and len(setting) <= _LONGEST_SETTING:
        group = key.partition("@")[0].lstrip("+~")
        raise UsageError(
            f"'{key}' puts a group under another key, and the configuration has no such key. Choose it in its own "
            f"place: {group or 'model'}={value or 'NAME'}"
        )
    short = f"{setting[:60]}..."
    if len(setting) > _LONGEST_SETTING:
        raise UsageError(
            f"The setting '{short}' has {len(setting):,} characters; at most {_LONGEST_SETTING:,} are read. Put a long "
            f"value into a YAML file and add --config-dir FOLDER."
        )
    depth = deepest = 0
    for character in setting:
        depth += (character in "[({") - (character in "])}")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        raise UsageError(
            f"The setting '{short}' is nested {deepest} brackets deep; at most {_DEEPEST} are read. Close each bracket "
            f"that is opened: key=[1,2]."
        )
    if digits := re.search(rf"\d{{{_LONGEST_NUMBER + 1},}}", setting):
        raise UsageError(
            f"The setting '{short}' holds a number of {len(digits[0]):,} digits; at most {_LONGEST_NUMBER} are read. "
            f"Write large numbers as 1e9."
        )


def _check(name: str, value: str) -> None:
    """Refuse an unknown option, or a value that the option does not take."""
    if name == _REFUSED:
        raise UsageError(
            f"{_REFUSED} is refused: it unpickles the file, and a pickle can run any code. Run a configuration again "
            f"with the settings of its record.json, or go on from its checkpoint: resume=RUN/checkpoints/last.ckpt"
        )
    known = (*_FLAGS, *_WITH_VALUE, *_WITH_OPTIONAL_VALUE)
    if name not in known:
        key = name.lstrip("-")
        raise UsageError(
            f"Unknown option '{name}'. Options: {', '.join(option for option in known if option.startswith('--'))}."
            f"{did_you_mean(name, known)} A setting is key=value, without dashes: {key}=..."
        )
    choices = _CHOICES.get(name, ())
    if name in _WITH_VALUE and (not value or (choices and value not in choices)):
        wanted = f"one of {', '.join(choices)}" if choices else "a value"
        raise UsageError(f"The option {name} takes {wanted}, {name} {'|'.join(choices) or '...'}, got {value!r}.")


def _completion(setting: str) -> bool:
    """Whether the setting is an action of --shell-completion; the shell itself sends `query`, with COMP_LINE set."""
    action, _, shell = setting.partition("=")
    if action == "query":
        return "COMP_LINE" in os.environ
    return action in ("install", "uninstall") and shell in ("bash", "fish", "zsh")
