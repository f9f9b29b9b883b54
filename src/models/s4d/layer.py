"""The S4D layer: the SSM and its feedthrough; activation, dropout and mixing belong to the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...registry import register_layer
from ..options import check_copies, check_flags, check_length, check_parameter, check_sizes
from ..siso import DiagonalSISO, initial_steps
from .init import initial_modes


@register_layer("s4d")
class S4D(DiagonalSISO):
    """S4D, a diagonal state space layer run by convolution; the equations are in `DiagonalSISO`.

    Args:
        d_model: H, features in and out.
        d_state: N, order of the real system; N/2 complex modes are stored if the init gives conjugate pairs.
        init: "lin", "inv", "inv2", "quad", "legs", "real", "rand" as published, or a registered measure by name or as
            {"name": ..., options}; see `initial_modes`.
        method: "normal" or "direct": how a measure is diagonalised; None is "normal". The published names of init take
            None only. LegS as a measure is init={"name": "legs"}.
        n_ssm: independent copies of (Lambda, B), a divisor of H; feature h uses copy h mod n_ssm. None: H copies.
        bidirectional: add a kernel over future inputs, with a C of its own.
        backward_lag: smallest lag of that kernel: 1, as published, or 0, which includes the present input.
        discretization: "zoh", "bilinear" or "dss".
        dt_transform: "exp" (the papers) or "softplus" (the published code since version 4).
        dt_min, dt_max: range of the initial steps, log-uniform, in units of one sample.
        l_max: only for "dss": the number of positions that its softmax runs over.
        backend: of `ops.vandermonde`: "auto", "torch", "triton" or "keops".
        channels: c, kernels per feature, each with its own C and D: the output is (B, L, c H), channel by channel, and
            the linear map of the mixer combines the channels.
    Parameters: inv_dt (H,), A_real and A_imag (n_ssm, P), B (n_ssm, P, 2), C (directions c, H, P, 2), D (H,),
        or (c, H) for c > 1.
    Raises:
        UsageError: sizes that do not divide, unknown names, an invalid step range.
    Source: arXiv 2206.11893; parametrisation and initial distributions as in the published code.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        init: str | Mapping[str, Any] = "lin",
        method: Literal["normal", "direct"] | None = None,
        n_ssm: int | None = None,
        bidirectional: bool = False,
        discretization: str = "zoh",
        dt_transform: str = "exp",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        l_max: int | None = None,
        backend: str = "auto",
        channels: int = 1,
        backward_lag: int = 1,
    ):
        check_sizes("S4D", d_model=d_model, d_state=d_state, channels=channels)
        check_parameter("S4D", d_model=d_model, d_state=d_state, channels=channels)
        check_flags("S4D", bidirectional=bidirectional)
        if l_max is not None:
            check_length("S4D", l_max=l_max)
        n_ssm = check_copies("S4D", d_model, n_ssm)
        modes = initial_modes(init, d_state, method)
        super().__init__(
            d_model,
            modes.Lambda.repeat(n_ssm, 1),
            modes.B.repeat(n_ssm, 1),
            bidirectional=bidirectional,
            discretization=discretization,
            inv_dt=initial_steps(d_model, dt_min, dt_max, dt_transform),
            dt_transform=dt_transform,
            l_max=l_max,
            backend=backend,
            channels=channels,
            backward_lag=backward_lag,
        )
