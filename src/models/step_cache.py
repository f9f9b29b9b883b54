"""What a layer keeps between steps, as long as the tensors and options that it came from are still the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn


class StepCache:
    """The precomputed parts of each kind of step, rebuilt when a parameter of the layer changes.

    Reassigned parameters are detected by identity, replaced storage by its address, and changes in place, which leave
    no trace when made through `.data` or numpy, by comparison with a copy.
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
        """The parts kept for this way of stepping, or newly built ones where something has changed.

        New parts are not kept where they are part of a graph or may become part of one.

        Args:
            scale: the dt_scale that the parts are for, None for 1. Beside those for 1 the last others are kept.
            build: gives the parts, and those tensors of the layer that they read where they lie: these may be written
                to, but not moved.
        """
        if scale is not None:
            way += " at another step"
        kept = self._kept.get(way)
        if kept is not None and kept.scale == scale and kept.belongs_to(layer):
            return kept.parts
        trained = torch.is_grad_enabled()
        keep = not any((trained and tensor.requires_grad) or tensor.is_inference() for tensor in tensors_of(layer))
        # Before it is read: what another thread writes meanwhile then counts as a change.
        seen = _Kept(layer, scale) if keep else None
        parts, read_in_place = build()
        if seen is not None:
            seen.finish(parts, read_in_place)
            self._kept[way] = seen
        return parts


class _Kept:
    """Parts, and the layer as it was when they were built."""

    parts: Any

    def __init__(self, layer: nn.Module, scale: float | None):
        self.scale = scale
        # What was computed in inference mode can never be part of a graph.
        self._inference = torch.is_inference_mode_enabled()
        # An identity is unique among objects that live.
        self._names, self._values = list(layer.__dict__), list(layer.__dict__.values())
        self._parameters = list(layer._parameters.values())
        self._watched = [_Watched(tensor) for tensor in tensors_of(layer)]
        self._in_place: list[_Watched] = []

    def finish(self, parts: Any, read_in_place: Sequence[Tensor]) -> None:
        """Take the parts, and compare no values that they read where they lie."""
        self.parts = parts
        # By identity: another tensor that begins at the same address is not what the parts read.
        found: dict[bool, list[_Watched]] = {True: [], False: []}
        for watched in self._watched:
            found[any(watched.tensor is tensor for tensor in read_in_place)].append(watched)
        self._in_place, self._watched = found[True], found[False]

    def belongs_to(self, layer: nn.Module) -> bool:
        """Whether the layer is as it was, and the parts may be used here."""
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
        # Keeps the memory, so that no other tensor comes to lie there.
        self._view = tensor.detach()
        # What is not contiguous counts as moved, always. Bytes compare ten times faster than torch.equal does.
        self._contiguous = tensor.is_contiguous()
        self._on_cpu = tensor.device.type == "cpu" and self._contiguous
        if self._on_cpu:
            array = self._view.view(-1).view(torch.uint8).numpy()
            self._bytes, self._copy = memoryview(array), bytearray(array.tobytes())
        else:
            self._values = self._view.clone()

    def moved(self) -> bool:
        """Whether the tensor lies elsewhere, or in another order."""
        if not self._contiguous or not self.tensor.is_contiguous():
            return True
        return self.tensor.data_ptr() != self._address

    def changed(self) -> bool:
        """Whether its values are others."""
        return self._copy != self._bytes if self._on_cpu else not torch.equal(self._values, self._view)


def tensors_of(layer: nn.Module) -> list[Tensor]:
    """The parameters, and what pruning or weight normalisation put in a parameter's place."""
    plain = [value for value in layer.__dict__.values() if isinstance(value, Tensor)]
    return [value for value in layer._parameters.values() if value is not None] + plain
