"""Initial systems of S4: the published normal-plus-low-rank forms, or the exact form of any registered measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import hippo
from ...errors import UsageError, unknown
from ...registry import measures

# Published name -> measure and options. The published windows have length 2.
_PUBLISHED: dict[str, dict[str, Any]] = {
    "legs": {"name": "legs"},
    "legt": {"name": "legt", "theta": 2.0},
    "fourier": {"name": "fourier", "theta": 2.0},
    "fout": {"name": "fourier", "theta": 2.0},
}

# Bounds of the published code: the smallest -Re Lambda and -Im Lambda, and the largest |Im(V^H B)|.
FLOOR = 1e-4
_INPUT_CLIP = 2.0

# A measure with all damping in its low-rank term has Re Lambda = 0, whose logarithm is not finite.
_MEASURE_FLOOR = 1e-8


class LowRankModes(NamedTuple):
    """One of each conjugate pair of -A = V (diag(Lambda) - P Q^H) V^-1, complex128.

    Lambda (P,), B (P,) = V^-1 B, P and Q (rank, P); Q is None where it equals P.
    """

    Lambda: Tensor
    B: Tensor
    P: Tensor
    Q: Tensor | None


def initial_low_rank(init: str | Mapping[str, Any], d_state: int) -> LowRankModes:
    """The DPLR system of order N = d_state that S4 starts from.

    "legs", "legt", "fourier" (also "fout") are the published initialisations: Re and Im of Lambda at least 1e-4 from
    zero, and B = V^H B with its imaginary part clipped to [-2, 2], which depends on the phases that LAPACK gives V.
    Any other name, and every mapping {"name": measure, **options}, is a registered measure in its exact DPLR form.

    Args:
        init: a name or a mapping.
        d_state: N, even.
    Raises:
        UsageError: unknown name, odd N, or a measure without a DPLR form.
    Source: arXiv 2111.00396, 2206.12037 and the published code; measures: docs of `hippo.dplr`.
    """
    if d_state < 2 or d_state % 2:
        raise UsageError(f"S4 keeps one mode of each conjugate pair, so d_state must be even and >= 2, got {d_state}.")
    if isinstance(init, str) and init in _PUBLISHED:
        return _published(init, d_state)
    node = measure_node("S4", init, _PUBLISHED)
    half = hippo.dplr(hippo.operator(N=d_state, **node)).half()
    Lambda = torch.from_numpy(half.Lambda)
    Lambda = torch.complex(Lambda.real.clamp(max=-_MEASURE_FLOOR), Lambda.imag)
    P, Q = torch.from_numpy(half.P.T.copy()), torch.from_numpy(half.Q.T.copy())
    return LowRankModes(Lambda, torch.from_numpy(half.B), P, None if torch.equal(P, Q) else Q)


def measure_node(layer: str, init: str | Mapping[str, Any], published: Iterable[str]) -> dict[str, Any]:
    """The node {"name": measure, **options} of an `init` that is not a published name.

    Raises:
        UsageError: an unknown name; a mapping without a name, or with an option that the measure does not have (N is
            not one: the order is the layer's d_state).
    """
    if isinstance(init, str):
        if init not in measures.names():
            raise unknown(f"init of {layer}", init, {*published, *measures.names()})
        return {"name": init}
    if not isinstance(init, Mapping):
        raise UsageError(
            f"init of {layer} is a name or a mapping {{'name': ..., options}}, got {init!r}. "
            f"Known names: {', '.join(sorted({*published, *measures.names()}))}."
        )
    measures.check(init, runtime=("N",))
    return dict(init)


def published_legs(d_state: int) -> tuple[Tensor, Tensor]:
    """Lambda (N/2,) and the clipped B (N/2,) of the published LegS, also the initialisation of S4D-LegS."""
    modes = _published("legs", d_state)
    return modes.Lambda, modes.B


def _published(name: str, d_state: int) -> LowRankModes:
    operator = hippo.operator(N=d_state, **_PUBLISHED[name])
    exact = hippo.dplr(operator)
    # The symmetric part of A comes from the shift and the low-rank term; the rest is skew.
    skew = 0.5 * (operator.A - operator.A.T)
    omega, V = torch.linalg.eigh(torch.from_numpy(1j * skew))
    n = d_state // 2
    omega, V = omega[:n], V[:, :n]
    if operator.name == "fourier":
        # The pair at frequency zero has no phase of its own: cosine and sine of frequency 0 are taken together.
        V[:, -1] = 0
        V[:2, -1] = torch.tensor([1, 1j], dtype=V.dtype, device=V.device) / 2**0.5
    P = V.mH @ torch.from_numpy(exact.V @ exact.P)
    B = V.mH @ torch.from_numpy(operator.B).to(V.dtype)
    real = torch.full_like(omega, -exact.Lambda[0].real).clamp(min=FLOOR)
    return LowRankModes(
        Lambda=torch.complex(-real, -(-omega).clamp(min=FLOOR)),
        B=torch.complex(B.real, B.imag.clamp(-_INPUT_CLIP, _INPUT_CLIP)),
        P=P.T.contiguous(),
        Q=None,
    )
