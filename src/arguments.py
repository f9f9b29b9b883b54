"""The command line of `python -m train` before Hydra reads it: options and settings in any order, unknown options told.

Hydra's parser takes the settings (key=value) from one place only: `experiment=x --cfg job seed=1` ends in
"unrecognized arguments: seed=1".
"""

from __future__ import annotations

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
    "--experimental-rerun",
)
# "all" where none of the choices follows; Hydra would take the setting that does for one.
_WITH_OPTIONAL_VALUE = ("--info", "-i")


def in_order(arguments: Sequence[str]) -> list[str]:
    """The same arguments, first the options with their values, then the settings, each in the order given.

    Raises:
        UsageError: an option that does not exist, or one without the value that it needs.
    """
    options: list[str] = []
    settings: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
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
    return options + settings


def _check(name: str, value: str) -> None:
    """Refuse an option that Hydra does not have, or a value that it cannot take."""
    known = (*_FLAGS, *_WITH_VALUE, *_WITH_OPTIONAL_VALUE)
    if name not in known:
        key = name.lstrip("-")
        raise UsageError(
            f"Unknown option '{name}'. Options: {', '.join(option for option in known if option.startswith('--'))}."
            f"{did_you_mean(name, known)} A setting is key=value, without dashes: {key}=..."
        )
    choices = _CHOICES.get(name, ())
    if name in _WITH_VALUE and (not value or choices and value not in choices):
        wanted = f"one of {', '.join(choices)}" if choices else "a value"
        raise UsageError(f"The option {name} takes {wanted}, {name} {'|'.join(choices) or '...'}, got {value!r}.")
