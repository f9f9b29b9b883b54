"""The backward of y = D u on a CPU: one pass over u and gy where torch's operators take three."""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..runtime.kernel import Kernel, threads_for

# Rows of a task, and rows summed in the precision of u before their sum is added in double precision.
_TASK, _TILE = 1024, 64


def feedthrough_gradients(u: Tensor, gy: Tensor, D: Tensor, gu: Tensor) -> Tensor:
    """Write gu = D gy; return the sum of gy u over rows, (H,). u, gy, gu: (rows, H). All are contiguous, of one dtype.

    Moves three numbers per element. The first call compiles for about 2 s; the result is cached on disk.
    """
    sums = torch.zeros(-(-len(u) // _TASK), u.shape[1], dtype=torch.float64)
    _gradients(threads_for(u), *(t.detach().numpy() for t in (u, gy, D, gu, sums)))
    return sums.sum(0).to(u.dtype)


@Kernel
def _gradients(u, gy, D, gu, sums):
    count, features = u.shape
    for task in prange(len(sums)):
        total = np.zeros(features, u.dtype)
        stop = min(count, (task + 1) * _TASK)
        for start in range(task * _TASK, stop, _TILE):
            total[:] = 0
            for k in range(start, min(stop, start + _TILE)):
                for h in range(features):
                    total[h] += gy[k, h] * u[k, h]
                    gu[k, h] = gy[k, h] * D[h]
            for h in range(features):
                sums[task, h] += total[h]
