"""The arguments of `ssm` as one record. Every pass takes the record; only the custom operators take its fields.

A new option is a field here and an argument of `ssm`; the operators' signatures are derived from the fields.
"""

from __future__ import annotations

from typing import NamedTuple, get_type_hints

from torch import Tensor

from ..scan.custom_op import plain


class Arguments(NamedTuple):
    """Arguments of one `ssm`: a and input_gain with three axes, (1 or B, 1 or L, P), all in the computation's dtype.

    Tensors come first, then options.
    """

    u: Tensor
    a: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    input_gain: Tensor | None = None
    x0: Tensor | None = None
    lengths: Tensor | None = None
    reverse: bool = False
    conj_factor: float = 2.0
    backend: str = "torch"
    checkpoint: bool = False

    def in_memory(self) -> Arguments:
        """A copy with every parameter contiguous, since compiled graphs misread lazily conjugated tensors."""
        parameters = {name: plain(t) for name in PARAMETERS if (t := getattr(self, name)) is not None}
        return self._replace(**parameters)


_KINDS = {Tensor: "Tensor", Tensor | None: "Tensor?", bool: "bool", float: "float", str: "str"}
_TYPES = get_type_hints(Arguments)

SCHEMA = ", ".join(f"{_KINDS[kind]} {name}" for name, kind in _TYPES.items())
TENSORS = tuple(name for name, kind in _TYPES.items() if "Tensor" in _KINDS[kind])
assert Arguments._fields[: len(TENSORS)] == TENSORS
DIFFERENTIABLE = tuple(name for name in TENSORS if name != "lengths")
PARAMETERS = tuple(name for name in DIFFERENTIABLE if name != "u")
