"""Type checks of the arguments of public operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError


def require_tensors(what: str, **given: Any) -> None:
    """Refuse anything but dense tensors; None passes, for arguments that may be left out.

    Raises:
        UsageError: names the operation, the argument and its type.
    """
    for name, value in given.items():
        if value is not None and (not isinstance(value, Tensor) or value.layout != torch.strided):
            kind = value.layout if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(
                f"{what} takes dense tensors, got {name} of {kind}. Convert it: torch.as_tensor({name}), or "
                f"{name}.to_dense()."
            )


def require_given(what: str, **given: Any) -> None:
    """As `require_tensors`, for arguments that cannot be left out."""
    for name, value in given.items():
        if value is None:
            raise UsageError(f"{what} takes dense tensors, got {name}=None. Pass a tensor.")
    require_tensors(what, **given)


def require_switches(what: str, **given: Any) -> None:
    """Refuse switches that are not True or False."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise UsageError(f"{what} takes {name} as True or False, got a {type(value).__name__}. Write {name}=True.")
