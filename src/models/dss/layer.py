"""The DSS layer in its softmax form; activation, dropout and mixing belong to the block."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ... import hippo
from ...ops.runtime.backends import check
from ...registry import register_layer
from ..options import check_flags, check_parameter, check_sizes
from ..siso import SISOLayer, initial_steps, keep_length, step_size
from ..stateful import real_parameter
from .system import SoftmaxSystem


@register_layer("dss")
class DSS(SISOLayer):
    """DSS (softmax): y = K * u + D u with K_l = Re sum_n C_n / Lambda_n softmax_l(dt Lambda_n l), l = 0 .. S - 1.

    The softmax keeps the kernel bounded for eigenvalues of any sign, so Lambda is unconstrained; all features share
    it. No conjugate pairs are implied, so the real part is taken once.

    The softmax runs over S = l_max positions. Without l_max it runs over the positions of the input, as in the paper;
    then the same parameters give different functions at different lengths, and the layer can neither carry a state nor
    be stepped. A sequence longer than l_max keeps the normalisation of l_max. A growing mode (Re Lambda > 0, possible
    in training) has no usable state: a call that needs one raises.

    Args:
        d_model: H, features in and out.
        d_state: N, complex modes; the initial eigenvalues are those with positive imaginary part of the normal part of
            LegS of order 2 N (real part -1/2).
        bidirectional: add a kernel over future inputs, with a C of its own.
        backward_lag: smallest lag of that kernel: 1, as published, or 0, which includes the present input.
        dt_min, dt_max: range of the initial steps, log-uniform, in units of one sample.
        l_max: S. It is saved in the state dict as `softmax_length` (0 for None), and loading weights sets it.
        backend: of `ops.vandermonde`.
    Parameters: Lambda_re, Lambda_im (N,), log_dt (H,), C (directions, H, N, 2), last axis (re, im), each part from
        N(0, 1), D (H,). Buffer: softmax_length ().
    Raises:
        UsageError: invalid sizes or step range, unknown backend.
    As published, 1 / x with x = Lambda (exp(z S) - 1) is computed as conj(x) / (|x|^2 + 1e-7). If |x| is not far above
    3e-4 (a slow mode at a short S dt), the kernel of the mode is smaller than the softmax above.
    Source: arXiv 2203.14343, proposition 1 (b), sections 3.2 and 4.
    """

    l_max: int | None
    roles: ClassVar[dict[str, str]] = {
        **SISOLayer.roles,
        "Lambda_re": "A",
        "Lambda_im": "A",
        "log_dt": "dt",
        "C": "C",
    }
    read_in_place: ClassVar[tuple[str, ...]] = ("D",)
    options: ClassVar[tuple[str, ...]] = (*SISOLayer.options, "l_max", "backend")

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        bidirectional: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        l_max: int | None = None,
        backend: str = "auto",
        backward_lag: int = 1,
    ):
        check_sizes("DSS", d_model=d_model, d_state=d_state)
        check_parameter("DSS", d_model=d_model, d_state=d_state)
        check_flags("DSS", bidirectional=bidirectional)
        check("vandermonde", backend)
        super().__init__(d_model, bidirectional, state_shape=(d_model, d_state), backward_lag=backward_lag)
        keep_length(self, "l_max", l_max, "softmax_length")
        self.backend = backend
        imag = torch.from_numpy(hippo.imaginary_parts("legs", d_state))
        self.Lambda_re: nn.Parameter = real_parameter(torch.full_like(imag, -0.5))
        self.Lambda_im: nn.Parameter = real_parameter(imag)
        self.log_dt: nn.Parameter = real_parameter(initial_steps(d_model, dt_min, dt_max, "exp"))
        directions = 2 if bidirectional else 1
        self.C: nn.Parameter = real_parameter(
            torch.randn(directions, d_model, d_state, 2, dtype=torch.float64, device="cpu")
        )

    @property
    def causal(self) -> bool:
        """Whether the layer can carry a state: it needs a fixed l_max and a single direction."""
        return not self.bidirectional and self.l_max is not None

    def _why_not_causal(self) -> str:
        if not self.bidirectional and self.l_max is None:
            return (
                "Its softmax runs over the sequence at hand, so an output depends on the length: build it with l_max, "
                "the longest sequence of the data."
            )
        return super()._why_not_causal()

    def system(self, dt_scale: float | Tensor = 1.0) -> SoftmaxSystem:
        """The discrete diagonal system; see `SISOLayer.system`."""
        Lambda = torch.complex(self.Lambda_re.double(), self.Lambda_im.double())
        z = Lambda * (step_size(self.log_dt, "exp") * dt_scale)[..., None]
        return SoftmaxSystem(z, Lambda, 0.5 * torch.view_as_complex(self.C), self.l_max, self.backend)

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        return (
            f"d_model={self.d_model}, n_modes={self.C.shape[2]}, l_max={self.l_max}, bidirectional={self.bidirectional}"
        )
