"""Cache of the parts that a layer precomputes for its steps, valid while its tensors and options are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn


class StepCache:
    """The precomputed parts of each kind of step, rebuilt when a parameter of the layer changes.

    Reassigned parameters are detected by identity and replaced storage by its address. Changes in place are detected by
    comparison with a copy, because those made through `.data` or numpy do not increase a version counter.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __reduce__(self) -> tuple[type[StepCache], tuple[()]]:
        # A copied or unpickled layer has new memory, so its cache starts empty. Not in the layer's __getstate__:
        # torch's parametrized classes bypass it when they copy a module's attributes.
        return StepCache, ()

    def get(
        self, way: str, layer: nn.Module, build: Callable[[], tuple[Any, Sequence[Tensor]]], scale: float | None = None
    ) -> Any:
        """The cached parts for this kind of step, or newly built ones if the layer has changed.

        Parts that are or may become part of an autograd graph are not cached.

        Args:
            way: kind of step, "torch" or "native".
            scale: the dt_scale that the parts are for, None for 1. The cache holds the parts for 1 and those for the
                most recent other value.
            build: returns the parts, and the tensors of the layer that they read in place: these may be changed in
                place, but not moved.
        """
        if scale is not None:
            way += " at another step"
        kept = self._kept.get(way)
        if kept is not None and kept.scale == scale and kept.belongs_to(layer):
            return kept.parts
        trained = torch.is_grad_enabled()
        keep = not any((trained and tensor.requires_grad) or tensor.is_inference() for tensor in tensors_of(layer))
        # Copied before `build` reads the tensors, so that a concurrent write counts as a change.
        seen = _Kept(layer, scale) if keep else None
        parts, read_in_place = build()
        if seen is not None:
            seen.finish(parts, read_in_place)
            self._kept[way] = seen
        return parts


class _Kept:
    """Parts, and a record of the layer at the time they were built."""

    parts: Any

    def __init__(self, layer: nn.Module, scale: float | None):
        self.scale = scale
        # Tensors computed in inference mode can never be part of a graph.
        self._inference = torch.is_inference_mode_enabled()
        # Keeps references, because an identity is unique only among live objects.
        self._names, self._values = list(layer.__dict__), list(layer.__dict__.values())
        self._parameters = list(layer._parameters.values())
        self._watched = [_Watched(tensor) for tensor in tensors_of(layer)]
        self._in_place: list[_Watched] = []

    def finish(self, parts: Any, read_in_place: Sequence[Tensor]) -> None:
        """Store the parts, and exclude the tensors that they read in place from the comparison of values."""
        self.parts = parts
        # By identity, because another tensor may begin at the same address.
        found: dict[bool, list[_Watched]] = {True: [], False: []}
        for watched in self._watched:
            found[any(watched.tensor is tensor for tensor in read_in_place)].append(watched)
        self._in_place, self._watched = found[True], found[False]

    def belongs_to(self, layer: nn.Module) -> bool:
        """Whether the layer is unchanged and the parts may be used in the current gradient mode."""
        own, parameters = layer.__dict__, layer._parameters
        if list(own) != self._names or len(parameters) != len(self._parameters):
            return False
        if any(map(is_not, own.values(), self._values)) or any(map(is_not, parameters.values(), self._parameters)):
            return False
        if self._inference and not torch.is_inference_mode_enabled():
            return False
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(layer)):
            return False
        for watched in self._in_place:
            if watched.moved():
                return False
        for watched in self._watched:
            if watched.moved() or watched.changed():
                return False
        return True


class _Watched:
    """A tensor, and a copy of its memory to compare it with."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self._address = tensor.data_ptr()
        # Keeps the memory alive, so that its address is not reused.
        self._view = tensor.detach()
        # A tensor that is not contiguous always counts as moved. Comparing bytes is ten times faster than torch.equal.
        self._contiguous = tensor.is_contiguous()
        self._on_cpu = tensor.device.type == "cpu" and self._contiguous
        if self._on_cpu:
            array = self._view.view(-1).view(torch.uint8).numpy()
            self._bytes, self._copy = memoryview(array), bytearray(array.tobytes())
        else:
            self._values = self._view.clone()

    def moved(self) -> bool:
        """Whether the tensor has another address, or is not contiguous."""
        if not self._contiguous or not self.tensor.is_contiguous():
            return True
        return self.tensor.data_ptr() != self._address

    def changed(self) -> bool:
        """Whether its values differ from the copy."""
        return self._copy != self._bytes if self._on_cpu else not torch.equal(self._values, self._view)


def tensors_of(layer: nn.Module) -> list[Tensor]:
    """The parameters, and the plain tensors that pruning or weight normalisation put in place of parameters."""
    plain = [value for value in layer.__dict__.values() if isinstance(value, Tensor)]
    return [value for value in layer._parameters.values() if value is not None] + plain
