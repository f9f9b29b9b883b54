"""Initial modes of a diagonal SISO layer: the published S4D choices, or any registered measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import hippo
from ...errors import UsageError
from ..options import check_choice
from ..s4.init import FLOOR, measure_node, published_legs
from ..ssm_init import unit_rms

PUBLISHED = ("lin", "inv", "inv2", "quad", "legs", "real", "rand")

_ON_CPU: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}


class Modes(NamedTuple):
    """Lambda (P,) with Re < 0 and Im <= 0, and B (P,), complex128; outputs are twice the real part of their sum."""

    Lambda: Tensor
    B: Tensor


def initial_modes(init: str | Mapping[str, Any], d_state: int, method: str | None = None) -> Modes:
    """The initial modes of a diagonal layer of real order N = d_state.

    With n = 0 .. N/2 - 1, and B = 1 unless stated otherwise:

        lin   -1/2 - i pi n                                inv   -1/2 - i (N / pi) (N / (2 n + 1) - 1)
        quad  -1/2 - i (2 n + 1)^2 / pi                    inv2  -1/2 - i (N / pi) (N / (n + 1) - 1)
        real  -(n + 1)                                     rand  -1/2 - i exp(standard normal)
        legs  normal part of HiPPO-LegS, -1/2 - i omega_n, with B = V^H B_LegS, imaginary part clipped to [-2, 2]

    Any other name, and every mapping {"name": measure, **options}, is a registered measure diagonalised by
    `hippo.diagonalize(..., method)`: one mode of each conjugate pair, and every real mode with half its B. `normal`
    gives N/2 modes for even N; `direct` one for each pair and each real eigenvalue of A, at most N. The B of `direct`
    is divided by its root mean square, which can be extremely large; C absorbs the factor.

    Args:
        init: a name or a mapping.
        d_state: N, the order of the real system; even for the published names.
        method: "normal" or "direct"; only for measures, where None is "normal".
    Raises:
        UsageError: unknown name or method, a method for a published name, odd N where pairs are needed, a measure that
            cannot be diagonalised that way.
    Source: arXiv 2206.11893 and the published S4D code; floors of 1e-4 included.
    """
    if not isinstance(init, str) or init not in PUBLISHED:
        return _from_measure(measure_node("a diagonal layer", init, PUBLISHED), d_state, method)
    if method is not None:
        raise UsageError(
            f"init='{init}' is a published start and is not diagonalised, so method={method!r} would change nothing. "
            f"Leave method out, or start from a measure: init={{'name': 'legs'}}."
        )
    if d_state < 2 or d_state % 2:
        raise UsageError(f"init='{init}' makes conjugate pairs, so d_state must be even and >= 2, got {d_state}.")
    n = d_state // 2
    real, B = torch.full((n,), 0.5, **_ON_CPU), torch.ones(n, dtype=torch.complex128, device="cpu")
    if init == "real":
        real, imag = torch.arange(1, n + 1, **_ON_CPU), torch.zeros(n, **_ON_CPU)
    elif init == "rand":
        imag = torch.randn(n, **_ON_CPU).exp()
    elif init == "legs":
        Lambda, B = published_legs(d_state)
        real, imag = -Lambda.real, -Lambda.imag
    else:
        imag = torch.from_numpy(hippo.imaginary_parts(init, n))
    # As published, values are at least the floor, so the lowest frequency of `lin` is 1e-4 and not 0.
    return Modes(torch.complex(-real.clamp(min=FLOOR), -imag.clamp(min=FLOOR)), B)


def _from_measure(node: dict[str, Any], d_state: int, method: str | None) -> Modes:
    method = "normal" if method is None else method
    check_choice("method", method, ("normal", "direct"))
    diagonal = hippo.diagonalize(hippo.operator(N=d_state, **node), method=method)
    Lambda, _, B, weight = hippo.conjugate_half(diagonal)
    if method == "direct":
        B = unit_rms(B)
    return Modes(torch.from_numpy(Lambda), torch.from_numpy(weight * B))
