"""Checks of the options of layers, each with a clear message before anything is built."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from ..errors import UsageError, unknown

C_INITS = ("lecun_normal", "trunc_standard_normal", "complex_normal")

# Positions: a kernel of this length is 8 GiB of float32 per feature.
LARGEST_LENGTH = 2**31
# Features and modes: a row of 2^24 float32 is 64 MiB.
LARGEST_SIZE = 2**24
# Numbers in the largest parameter of a layer: 4 GiB of float32.
LARGEST_PARAMETER = 2**30
# Blocks of a filter bank; each may need a diagonalisation of its own.
LARGEST_BANK = 4096
# exp and log of a step must stay inside float32.
_SMALLEST_STEP, _LARGEST_STEP = 1e-30, 1e30


def check_choice(option: str, given: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is not among the allowed ones.

    Raises:
        UsageError: the message lists the allowed names and the nearest one.
    """
    if not isinstance(given, str) or given not in allowed:
        raise unknown(option, given, allowed)


def check_C_init(C_init: str) -> None:
    """Refuse an unknown initialisation of C."""
    check_choice("C_init", C_init, C_INITS)


def check_sizes(layer: str, **sizes: int) -> None:
    """Refuse sizes that are not integers in 1 .. 2^24.

    Raises:
        UsageError: the message names the first invalid one.
    """
    _check_integers(layer, LARGEST_SIZE, sizes)


def check_length(layer: str, **lengths: int) -> None:
    """Refuse numbers of positions that are not integers in 1 .. 2^31."""
    _check_integers(layer, LARGEST_LENGTH, lengths)


def check_parameter(layer: str, **sizes: int) -> None:
    """Refuse sizes whose product, the number of entries of a parameter, exceeds 2^30."""
    count = math.prod(sizes.values())
    if count > LARGEST_PARAMETER:
        raise UsageError(
            f"{layer} of {', '.join(f'{name}={size}' for name, size in sizes.items())} would have a parameter of "
            f"{count:.2g} numbers, {count * 4 / 2**30:.2g} GiB; at most {LARGEST_PARAMETER} are allowed. Choose "
            f"smaller sizes."
        )


def check_copies(layer: str, d_model: int, n_ssm: int | None) -> int:
    """Return the number of copies of the modes: n_ssm, or H for None.

    Raises:
        UsageError: n_ssm does not divide d_model.
    """
    if n_ssm is None:
        return d_model
    check_sizes(layer, n_ssm=n_ssm)
    if d_model % n_ssm:
        raise UsageError(
            f"{layer} repeats its n_ssm copies over the features: {n_ssm} does not divide {d_model}. Use a divisor of "
            f"d_model, or None for one copy a feature."
        )
    return n_ssm


def check_bank(layer: str, n_alphas: int) -> None:
    """Refuse numbers of alphas that are not integers in 1 .. 4096."""
    _check_integers(layer, LARGEST_BANK, {"n_alphas": n_alphas})


def check_numbers(**values: float) -> None:
    """Refuse values that are not finite numbers, such as 1e-3, which YAML reads as a string.

    Raises:
        UsageError: the message names the first invalid one.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UsageError(
                f"{name} must be a number, got {value!r}, a {type(value).__name__}. In YAML write 0.001 or 1.0e-3."
            )
        if not math.isfinite(value):
            raise UsageError(f"{name} must be a finite number, got {value}. Leave it out for the default.")


def check_steps(dt_min: float, dt_max: float) -> None:
    """Refuse a range of steps that is not 1e-30 <= dt_min <= dt_max <= 1e30."""
    check_numbers(dt_min=dt_min, dt_max=dt_max)
    if not _SMALLEST_STEP <= dt_min <= dt_max <= _LARGEST_STEP:
        raise UsageError(
            f"The steps need 0 < dt_min <= dt_max, both from {_SMALLEST_STEP:g} to {_LARGEST_STEP:g}, got "
            f"dt_min={dt_min}, dt_max={dt_max}. Usual are 0.001 and 0.1."
        )


def check_probability(name: str, value: float) -> None:
    """Refuse a value that is not a number in [0, 1)."""
    check_numbers(**{name: value})
    if not 0.0 <= value < 1.0:
        raise UsageError(f"{name} is a probability in [0, 1), got {value}. 0 turns it off.")


def check_flags(layer: str, **flags: bool) -> None:
    """Refuse switches that are not True or False.

    Raises:
        UsageError: the message names the first invalid one.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise UsageError(f"{layer} needs {name} to be True or False, got {flag!r}. In YAML write true or false.")


def _check_integers(layer: str, largest: int, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"{layer} needs {name} to be an integer >= 1, got {size!r}. Write a whole number.")
        if size > largest:
            raise UsageError(f"{layer} needs {name} to be at most {largest}, got {size}. Choose a smaller one.")
