"""One step of a discretised system without gradients on a CPU: one native call in place of several tensor operators.

    step = MIMOStep(...) or SISOStep(...)
    if available() and unobserved(u, x): y, x = step(u, x)

A step is prepared once. Every call reads its tensors in place, so later writes to them take effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..runtime.autograd import may_bypass_dispatcher
from ..runtime.presence import numba_obstacle
from ..scan.custom_op import plain

__all__ = ["AT_TIME_BATCH", "MIMO_BATCH", "MIMOStep", "NativeStep", "SISOStep", "available", "unobserved"]

# Largest batch for which a MIMOStep (one thread, row by row) is faster than matrix products over the batch: with given
# gates, and with gates to be computed at every step. Measured on 2 cores with H 128.
MIMO_BATCH, AT_TIME_BATCH = 8, 64

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def available() -> bool:
    """Whether numba can compile here. The kernels are imported when the first step is constructed."""
    return not numba_obstacle()


def unobserved(*tensors: Tensor) -> bool:
    """Whether a step may bypass the dispatcher: nothing intercepts torch's operators, and no gradient is recorded."""
    if not may_bypass_dispatcher(*tensors):
        return False
    return not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors)


class NativeStep:
    """The tensors that a kernel reads at every step, and its call.

    Attributes:
        tensors: those that the kernel reads in place, referenced here so that their memory stays valid.
    Raises:
        TypeError: tensors that are not all on a CPU and in one precision, float32 or float64.
    """

    def __init__(self, sizes: Sequence[int], tensors: Sequence[Tensor], conj_factor: float):
        self.tensors = [plain(tensor.detach()) for tensor in tensors]
        precisions = {tensor.dtype.to_real() for tensor in tensors}
        if len(precisions) > 1 or not precisions <= set(_NUMPY) or not all(tensor.is_cpu for tensor in tensors):
            kinds = {(tensor.device.type, str(tensor.dtype)) for tensor in tensors}
            raise TypeError(f"A native step needs tensors on a CPU of one precision, float32 or float64, got {kinds}.")
        from . import native

        self._kernels = native
        # One array is cheaper to pass than the numbers in it.
        self._fixed = np.array([*sizes, *(tensor.data_ptr() for tensor in self.tensors)], dtype=np.int64)
        self._real = _NUMPY[precisions.pop()]
        self._conj_factor = self._real(conj_factor)

    def reads(self, tensor: Tensor) -> bool:
        """Whether the kernel reads the memory of `tensor`, so that writes to it need no new step."""
        return any(tensor.data_ptr() == read.data_ptr() for read in self.tensors)


class MIMOStep(NativeStep):
    """x = Lambda x + gamma (B u), y = conj_factor Re(C x) + D u: every mode reads and feeds every feature.

    Args:
        Lambda: (P,) complex, of the discrete system; of the continuous one if gates are computed at every step.
        gamma: (P,) real or complex; None if gates are computed at every step.
        B: (P, H) complex.
        C: (H, P) complex, or (H, P, 2).
        D: (H,) real.
        conj_factor: 2 if each mode stands for a conjugate pair, else 1.
        rule: how gates are computed: "zoh" or "bilinear" as in `discretize`, "scaled time" for the 1 / t system.
        dt: (P,) real, the step that `scaled` multiplies; not for "scaled time".
    """

    RULES = ("zoh", "bilinear", "scaled time")

    def __init__(
        self,
        Lambda: Tensor,
        gamma: Tensor | None,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        conj_factor: float,
        rule: str = "zoh",
        dt: Tensor | None = None,
    ):
        gamma = Lambda if gamma is None else gamma.to(Lambda.dtype)
        tensors = (Lambda, gamma, B, C, D, D if dt is None else dt)
        super().__init__((*B.shape, self.RULES.index(rule)), tensors, conj_factor)

    def __call__(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """y (B, H) and the next state, from u (B, H) and the state (B, P)."""
        u, x = plain(u), plain(x)
        return self._run(u, x, 0, 0, 0, 0)

    def scaled(self, u: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """As `__call__`, with the step scale * dt, scale (B,) or (1,). The gates are computed in float64."""
        u, x, scale = plain(u), plain(x), plain(scale.double())
        return self._run(u, x, len(scale), scale.data_ptr(), 0, 0)

    def at_time(self, u: Tensor, x: Tensor, elapsed: Tensor, lasting: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A step of the 1 / t system over an input that starts at time `elapsed` and lasts `lasting` samples.

        Both are float64, (B,) or (1,).
        Returns y, the next state, and elapsed + lasting, which is (1,) if both are the same for all samples (`elapsed`
        may be an expanded tensor). The gates are computed in float64, once if the samples share them.
        """
        u, x = plain(u), plain(x)
        if len(lasting) == 1 and (len(elapsed) == 1 or (len(elapsed) and elapsed.stride(0) == 0)):
            until = elapsed.new_empty(1)
        else:
            elapsed, lasting = plain(elapsed.expand(u.shape[0])), plain(lasting.expand(u.shape[0]))
            until = torch.empty_like(elapsed)
        pointers = lasting.data_ptr(), elapsed.data_ptr(), until.data_ptr()
        return *self._run(u, x, len(until), *pointers), until

    def _run(self, u: Tensor, x: Tensor, times: int, scale: int, elapsed: int, until: int) -> tuple[Tensor, Tensor]:
        y, after = torch.empty_like(u), torch.empty_like(x)
        addresses = u.data_ptr(), x.data_ptr(), y.data_ptr(), after.data_ptr()
        scratch = np.empty(2 * (u.numel() + x.numel()) + 4 * times * x.shape[1], dtype=self._real)
        gates = times, scale, elapsed, until
        self._kernels.mimo(1, self._fixed, u.shape[0], *addresses, self._conj_factor, *gates, scratch)
        return y, after


class SISOStep(NativeStep):
    """x = Lambda x - sum_r P_r Re(Q_r x) + B u, y = 2 Re(C x) + D u, one system per feature.

    Args:
        Lambda, B: (H, P) complex.
        C: (c, H, P) complex.
        D: (H,) real, or (c, H).
        P, Q: (rank, H, P) complex; None without a low-rank part.
    """

    def __init__(
        self, Lambda: Tensor, B: Tensor, C: Tensor, D: Tensor, P: Tensor | None = None, Q: Tensor | None = None
    ):
        channels, features, modes = C.shape
        P, Q = (C[:0] if value is None else value for value in (P, Q))
        super().__init__((modes, features, len(P), channels), (Lambda, B, P, Q, C, D), 2.0)
        self._outputs = channels * features

    def __call__(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """y (B, c H) and the next state, from u (B, H) and the state (B, H, P)."""
        u, x = plain(u), plain(x)
        y, after = u.new_empty(u.shape[0], self._outputs), torch.empty_like(x)
        addresses = u.data_ptr(), x.data_ptr(), y.data_ptr(), after.data_ptr()
        self._kernels.siso(self._kernels.threads_for(x), self._fixed, u.shape[0], *addresses, self._conj_factor)
        return y, after
