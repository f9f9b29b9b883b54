"""Gradients of several batches as the gradient of one large batch: the mean over all their samples."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SampleMean:
    """Weights that make the gradient of a group of batches the mean over its samples, whatever the batches hold.

    A group is the batches of one optimizer step, on all processes. Batch b has n_b counted samples and the gradient g_b
    of its mean loss. DDP averages over `world` processes, blind to n_b. With the loss weighted by n_b / reference what
    arrives is

        (1 / world) sum_b n_b g_b / reference,      and times world reference / sum_b n_b it is the mean.

    Args:
        reference: samples of an ordinary batch. It cancels; with it both weights are exactly 1 for a step of one full
            batch, and sums in low precision stay of the size of a mean.
    """

    def __init__(self, reference: int):
        self._reference = reference
        self._samples, self._last = 0, 0

    def begin_group(self) -> None:
        """Forget the samples of the step before."""
        self._samples = 0

    def add(self, samples: int) -> None:
        """Count a batch; `samples` are those of this process whose target is not ignored."""
        self._last = samples
        self._samples += samples

    @property
    def batch_weight(self) -> float:
        """Factor on the mean loss of the batch added last."""
        return self._last / self._reference

    def finish(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        """Turn the accumulated gradients into the mean over the group (a collective call: every process makes it)."""
        samples, world = self._samples, 1
        if dist.is_available() and dist.is_initialized():
            world = dist.get_world_size()
            total = torch.tensor(samples, device=device)
            dist.all_reduce(total)
            samples = int(total)
        # A group without a counted sample has gradients of zero.
        factor = world * self._reference / max(samples, 1)
        gradients: list[Tensor] = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)
