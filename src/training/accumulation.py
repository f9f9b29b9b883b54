"""Gradients of several batches, combined as for one large batch: the mean over all their scored targets."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SampleMean:
    """Weights that make the gradient of a group of batches the mean over its targets, for batches of any size.

    A group is the batches of one optimizer step, on all processes. Batch b has n_b scored targets (samples, positions
    or values, without the missing ones) and the gradient g_b of its mean loss. DDP averages over `world` processes and
    ignores n_b. With the loss weighted by n_b / reference, the accumulated gradient is

        (1 / world) sum_b n_b g_b / reference,      which times world reference / sum_b n_b is the mean.

    Args:
        reference: targets of an ordinary batch, the same in all processes. It cancels, but with it both weights are
            exactly 1 for a step of one full batch, and sums in low precision stay of the size of a mean.
    """

    def __init__(self, reference: int):
        self._reference = reference
        self._targets, self._last = 0, 0

    def begin_group(self) -> None:
        """Forget the targets of the step before."""
        self._targets = 0

    def add(self, targets: int) -> None:
        """Count a batch by the scored targets of this process."""
        self._last = targets
        self._targets += targets

    @property
    def batch_weight(self) -> float:
        """Factor on the mean loss of the batch added last."""
        return self._last / self._reference

    def finish(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        """Turn the accumulated gradients into the mean over the group (collective: every process must call it)."""
        targets, world = self._targets, 1
        if dist.is_available() and dist.is_initialized():
            world = dist.get_world_size()
            total = torch.tensor(targets, device=device)
            dist.all_reduce(total)
            targets = int(total)
        # A group without a scored target has gradients of zero.
        factor = world * self._reference / max(targets, 1)
        gradients: list[Tensor] = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)
