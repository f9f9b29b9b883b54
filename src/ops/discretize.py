"""One step of a diagonal system: x' = Lambda x + B_tilde u becomes x_k = Lambda_bar x_{k-1} + gamma B_tilde u_k.

Complex exponentials are built from real exp, cos and sin: torch's own complex exp is scalar code on a CPU, several
times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, unknown
from .tensors import require_given

# Below this modulus (exp(z) - 1) / z is summed as a series. At the border the quotient's derivative has lost one digit;
# the eleven terms leave a relative remainder below 1e-19.
_SERIES_RADIUS = 0.1
_SERIES_TERMS = 11


def discretize(Lambda: Tensor, dt: Tensor, method: str = "zoh") -> tuple[Tensor, Tensor]:
    """Discretise diagonal modes with step dt; the input matrix follows as B_bar = gamma * B_tilde.

    With z = Lambda dt:
        zoh       Lambda_bar = exp(z),                  gamma = dt (exp(z) - 1) / z    (u held over the step)
        bilinear  Lambda_bar = (1 + z/2) / (1 - z/2),   gamma = dt / (1 - z/2)         (trapezoidal rule)

    Accurate, with accurate gradients, as z -> 0, where gamma -> dt; an eigenvalue of exactly 0 is an integrator.
    zoh is bounded for every Re Lambda <= 0, however large dt; it overflows only when Re z > 88 in float32 (709 in
    float64). bilinear has its pole at z = 2, in the right half plane.

    Args:
        Lambda: complex tensor, one eigenvalue per mode, unit 1/time; Re Lambda < 0 for a stable system.
        dt: real tensor > 0, unit time, broadcast against Lambda: (P,) for one step per mode, (B, L, 1) or (B, L, P) for
            steps that vary.
        method: "zoh" or "bilinear".
    Returns:
        Lambda_bar and gamma, complex, of the broadcast shape.
    Raises:
        UsageError: unknown method.
    Source: S5 (arXiv 2208.04933), section 3 and appendix; S4 (arXiv 2111.00396) for the bilinear rule.
    >>> Lambda = torch.tensor([-0.5 + 2j], dtype=torch.complex128)
    >>> Lambda_bar, gamma = discretize(Lambda, torch.tensor([0.05], dtype=torch.float64), "zoh")
    >>> print(f"{Lambda_bar.item():.6f} {gamma.item():.7f}")
    0.970437+0.097369j 0.0492984+0.0024567j
    """
    check_method(method)
    require_given("discretize", Lambda=Lambda, dt=dt)
    if not Lambda.is_complex() or not dt.is_floating_point() or Lambda.device != dt.device:
        raise UsageError(
            f"discretize takes complex Lambda and real dt on one device, got {Lambda.dtype} on {Lambda.device} and "
            f"{dt.dtype} on {dt.device}. Convert them: Lambda.to(torch.complex64), dt.to(torch.float32)."
        )
    if torch.compiler.is_compiling():
        return _METHODS[method](Lambda, dt)
    try:
        return _METHODS[method](Lambda, dt)
    except RuntimeError:
        # Check only after a failure: torch's broadcast_shapes imports sympy, which takes a second at the first call.
        _check_shapes(Lambda, dt)
        raise


def _check_shapes(Lambda: Tensor, dt: Tensor) -> None:
    try:
        torch.broadcast_shapes(Lambda.shape, dt.shape)
    except RuntimeError as error:
        raise UsageError(
            f"discretize broadcasts dt against Lambda, and {tuple(dt.shape)} does not go with {tuple(Lambda.shape)}. "
            f"Give dt as (P,), (B, L, 1) or (B, L, P)."
        ) from error


def check_method(method: str) -> None:
    """Refuse an unknown discretisation when a layer is built rather than at its first batch.

    Raises:
        UsageError: unknown method.
    """
    if not isinstance(method, str) or method not in _METHODS:
        raise unknown("discretization", method, _METHODS)


def complex_exp(z: Tensor) -> Tensor:
    """exp(z) of a complex tensor through real functions."""
    modulus = torch.exp(z.real)
    return torch.complex(modulus * torch.cos(z.imag), modulus * torch.sin(z.imag))


def complex_expm1(z: Tensor) -> Tensor:
    """exp(z) - 1 without cancellation: expm1(x) cos y - 2 sin(y/2)^2 + i exp(x) sin y for z = x + i y."""
    real, imag = z.real, z.imag
    half_sine = torch.sin(0.5 * imag)
    return torch.complex(
        torch.expm1(real) * torch.cos(imag) - 2 * half_sine * half_sine, torch.exp(real) * torch.sin(imag)
    )


def phi1(z: Tensor) -> Tensor:
    """(exp(z) - 1) / z for complex z, equal to 1 at z = 0, with an accurate gradient everywhere.

    The backward saves only z, so that steps of shape (B, L, P) stay affordable.
    """
    if torch.jit.is_tracing():
        # A saved trace may contain only torch's own operators.
        return _phi1(z)
    # torch.compile cannot trace a function that has a forward-mode derivative.
    return (_Phi1 if torch.compiler.is_compiling() else _Phi1Forward).apply(z)


class _Phi1(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return _phi1(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * _phi1_slope(*ctx.saved_tensors).conj()


class _Phi1Forward(_Phi1):
    """`_Phi1` with a forward-mode derivative."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * _phi1_slope(*ctx.saved_tensors)


def _phi1(z: Tensor) -> Tensor:
    return _by_radius(z, [1.0 / (n + 1) for n in range(1, _SERIES_TERMS)], lambda w: complex_expm1(w) / w)


def _phi1_slope(z: Tensor) -> Tensor:
    """phi1'(z) = (exp(z) - phi1(z)) / z = 1/2 (1 + z 2/3 (1 + z 3/8 (1 + ...))), ratio of terms (n+1) / (n (n+2))."""
    ratios = [(n + 1) / (n * (n + 2)) for n in range(1, _SERIES_TERMS)]
    return 0.5 * _by_radius(z, ratios, lambda w: 2 * (complex_exp(w) - complex_expm1(w) / w) / w)


def _by_radius(z: Tensor, ratios: list[float], closed: Callable[[Tensor], Tensor]) -> Tensor:
    """Near 0 the series 1 + r_1 z (1 + r_2 z (1 + ...)), elsewhere the closed form."""
    small = z.abs() < _SERIES_RADIUS
    # The branch not taken must stay finite, or its gradient would turn the sum of both gradients into nan.
    near = torch.where(small, z, torch.zeros_like(z))
    one = torch.ones_like(z)
    series = one
    for ratio in reversed(ratios):
        series = torch.addcmul(one, near, series, value=ratio)
    return torch.where(small, series, closed(torch.where(small, one, z)))


def _zoh(Lambda: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    z = Lambda * dt
    return complex_exp(z), dt * phi1(z)


def _bilinear(Lambda: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    half = 0.5 * Lambda * dt
    return (1 + half) / (1 - half), dt / (1 - half)


_METHODS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {"zoh": _zoh, "bilinear": _bilinear}
