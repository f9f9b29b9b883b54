"""The frequency response of S4's diagonal-plus-low-rank system, by sums over poles (the Cauchy kernel).

For A = diag(Lambda) - P Q^H over P conjugate pairs, x' = A x + B u, y = C x, discretised by the bilinear rule with
step dt, the generating function of the kernel K_l = C A_bar^l B_bar at omega = exp(-i theta) is, by Woodbury,

    K(omega) = exp(i theta / 2) [ rho_CB - cos(theta/2) rho_CP (1 + cos(theta/2) rho_QP)^-1 rho_QB ],
    rho_v = 2 dt sum_n ( 2 i s Re(v_n) - c Re(v_n conj(lambda_n)) ) / d_n,
    d_n = (c |lambda_n|)^2 - 4 s^2 - 4 i s c Re(lambda_n),      lambda = dt Lambda, c = cos(theta/2), s = sin(theta/2),

where v runs over the products C B, C P, conj(Q) P, conj(Q) B and each term stands for a pair of modes. This is the
usual form 2 / (1 + omega) r(z), z = 2 (1 - omega) / (1 + omega) = 2 i s / c, multiplied through by c. The usual form is
infinite at omega = -1; this one has no singularity on the circle, because Re Lambda < 0.

What remains are sums of 1 / d_n with real weights, so the complex reciprocal of a pole is formed once for all products,
and the sums are real matrix products.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from ...errors import UsageError
from ..runtime.autograd import refuse_transforms
from ..runtime.backends import choose
from ..runtime.keops import lazy_tensor
from ..runtime.proof import waves

__all__ = ["dplr_response"]

# Elements of one tile of pole reciprocals on a CPU: 4 MiB of float32 for each of the real and the imaginary part.
_CPU_TILE = 1 << 20


def dplr_response(
    Lambda: Tensor, P: Tensor, Q: Tensor, B: Tensor, C: Tensor, dt: Tensor, length: int, backend: str = "auto"
) -> Tensor:
    """Response of the DPLR system at the `length`-th roots of unity, by the formula in the module's docstring.

    Its inverse transform is the kernel wrapped around at `length`, sum_m K[l + m length]; with
    C (I - A_bar^length) instead of C it is the kernel itself.

    Args:
        Lambda: (H, P) complex, Re < 0, one of each conjugate pair.
        P, Q: (rank, H, P) complex.
        B: (H, P) complex.
        C: (directions, H, P) complex.
        dt: (H,) real, > 0.
        length: number of points on the circle, >= 1, odd or even.
        backend: "torch" (tiles that fit the cache), "native" (CPU and rank 1; compiled by numba at the first call and
            cached), "triton" (CUDA and ROCm), "keops" (compiled, no tiles), or "auto": "native" or "triton" if it can
            run, else "torch".
    Returns:
        (directions, H, length // 2 + 1) complex, at omega_k = exp(-2 pi i k / length); `irfft` inverts it. Once
        differentiable.
    Raises:
        UsageError: unknown backend, one that cannot run here, or length < 1.
    Source: arXiv 2111.00396, appendix C.3, with the pole at omega = -1 cleared.
    """
    limits = {} if len(P) == 1 else {"native": f"it is for a low-rank part of rank 1, and this one has rank {len(P)}"}
    backend = choose("cauchy", backend, dt, limits, prove)
    if length < 1:
        raise UsageError(f"A kernel needs a length >= 1, got {length}.")
    left = torch.cat((C, Q.conj()))
    right = torch.cat((B[None], P))
    products = (left[:, None] * right[None]).flatten(0, 1).transpose(0, 1)  # (H, rows, P)
    half = torch.arange(length // 2 + 1, dtype=torch.float64, device=dt.device) * (math.pi / length)
    pole = Lambda * dt[:, None]
    if backend == "native":
        shape, step = (len(dt), len(left), len(right), -1), dt[:, None, None, None]
        over_pole = (products * pole[:, None].conj()).real.view(shape)
        weights = -2 * step * over_pole, 4 * step * products.real.view(shape)
        return _NativeResponse.apply(*weights, pole.abs().square(), pole.real, half)
    weights = torch.cat((products.real, (products * pole[:, None].conj()).real), dim=1)
    cosine, sine = torch.cos(half).to(dt.dtype), torch.sin(half).to(dt.dtype)
    poles = (weights, pole.abs().square(), pole.real, cosine, sine)
    sums = _keops_sums(*poles) if backend == "keops" else _PoleSums.apply(*poles, backend)
    over_real, over_product = sums.chunk(2, dim=1)
    rho = 2 * dt[:, None, None] * (2j * sine * over_real - cosine * over_product)
    rho = rho.transpose(0, 1).unflatten(0, (len(left), len(right)))  # (directions + rank, 1 + rank, H, K)
    directions = len(C)
    response = rho[:directions, 0] - cosine * _feedback(
        rho[:directions, 1:], cosine * rho[directions:, 1:], rho[directions:, 0]
    )
    return torch.polar(torch.ones_like(half), half).to(response.dtype) * response


def prove(backend: str, device: torch.device) -> list[Tensor]:
    """The case that checks the Triton kernels on a device."""
    weights = waves(2, 8, 5, device=device).requires_grad_()
    m, a = (waves(2, 5, device=device).abs() + 0.5).requires_grad_(), (-waves(2, 5, device=device).abs() - 0.1)
    angle = torch.linspace(0, math.pi / 2, 70, device=device)
    poles = (weights, m, a.requires_grad_(), angle.cos(), angle.sin())
    sums = _PoleSums.apply(*poles, backend)
    weight = waves(*sums.shape, device=device, complex=True)
    return [sums.detach(), *torch.autograd.grad(sums, poles[:3], weight)]


def _feedback(rho_CP: Tensor, scaled_QP: Tensor, rho_QB: Tensor) -> Tensor:
    """rho_CP (1 + scaled_QP)^-1 rho_QB over the rank: (directions, r, H, K), (r, r, H, K), (r, H, K)."""
    if len(rho_QB) == 1:
        return rho_CP[:, 0] * (rho_QB[0] / (1 + scaled_QP[0, 0]))
    identity = torch.eye(len(rho_QB), dtype=scaled_QP.dtype, device=scaled_QP.device)
    matrix = scaled_QP.permute(2, 3, 0, 1) + identity
    solved = torch.linalg.solve(matrix, rho_QB.permute(1, 2, 0)[..., None])[..., 0]
    return (rho_CP * solved.permute(2, 0, 1)).sum(1)


class _NativeResponse(torch.autograd.Function):
    """The whole response; see `native` for the formulas."""

    @staticmethod
    def forward(ctx, q: Tensor, p: Tensor, m: Tensor, a: Tensor, half: Tensor) -> Tensor:
        ctx.save_for_backward(q, p, m, a, half)
        return _native().response(q, p, m, a, half)

    @staticmethod
    def backward(ctx, grad: Tensor):
        _refuse_second(grad)
        return *_native().gradients(grad, *ctx.saved_tensors), None


class _PoleSums(torch.autograd.Function):
    """S[h, r, k] = sum_n weights[h, r, n] / d[h, n, k],  d = c^2 m - 4 s^2 - 4 i s c a.

    weights (H, R, P), m = |lambda|^2 and a = Re lambda (H, P), c and s (K,), all real. With incoming g,
        grad weights = Re sum_k conj(g) / d,
        grad m = -sum_r weights Re sum_k conj(g) c^2 / d^2,     grad a = -4 sum_r weights Im sum_k conj(g) s c / d^2.
    """

    @staticmethod
    def forward(ctx, weights: Tensor, m: Tensor, a: Tensor, c: Tensor, s: Tensor, backend: str) -> Tensor:
        ctx.save_for_backward(weights, m, a, c, s)
        ctx.backend = backend
        if backend == "triton":
            return _triton().pole_sums(weights, m, a, c, s)
        parts = []
        for rows in _row_tiles(m, len(c)):
            inverse = _inverse_poles(m[rows], a[rows], c, s)
            parts.append(torch.complex(*(torch.bmm(weights[rows], part) for part in inverse)))
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad: Tensor):
        _refuse_second(grad)
        weights, m, a, c, s = ctx.saved_tensors
        if ctx.backend == "triton":
            return *_triton().pole_gradients(grad, weights, m, a, c, s), None, None, None
        parts = []
        for rows in _row_tiles(m, len(c)):
            re, im = _inverse_poles(m[rows], a[rows], c, s)
            g_re, g_im = grad[rows].real, grad[rows].imag
            grad_weights = torch.bmm(g_re, re.mT) + torch.bmm(g_im, im.mT)
            square_re, square_im = re * re - im * im, 2 * re * im
            cc, sc = c * c, s * c
            of_m = torch.bmm(g_re * cc, square_re.mT) + torch.bmm(g_im * cc, square_im.mT)
            of_a = torch.bmm(g_re * sc, square_im.mT) - torch.bmm(g_im * sc, square_re.mT)
            parts.append((grad_weights, -(weights[rows] * of_m).sum(1), -4 * (weights[rows] * of_a).sum(1)))
        grad_weights, grad_m, grad_a = (torch.cat(part) for part in zip(*parts, strict=True))
        return grad_weights, grad_m, grad_a, None, None, None


def _refuse_second(grad: Tensor) -> None:
    refuse_transforms("The gradient of the Cauchy kernel", grad)
    # torch's once_differentiable would not raise if the incoming gradient is a constant.
    if torch.is_grad_enabled():
        raise UsageError(
            "The Cauchy kernel has first derivatives only: take them without create_graph=True, or use "
            "S4(backend='powers'), which has all."
        )


def _inverse_poles(m: Tensor, a: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Re and Im of 1 / d, each (h, P, K)."""
    re = torch.addcmul(-4 * s * s, m[..., None], c * c)
    im = a[..., None] * (-4 * s * c)
    norm = torch.addcmul(re * re, im, im)
    return re.div_(norm), im.div_(norm).neg_()


def _row_tiles(m: Tensor, points: int) -> list[slice]:
    features, modes = m.shape
    size = features if m.device.type != "cpu" else max(1, _CPU_TILE // (modes * points))
    return [slice(start, start + size) for start in range(0, features, size)]


def _keops_sums(weights: Tensor, m: Tensor, a: Tensor, c: Tensor, s: Tensor) -> Tensor:
    H, R, _ = weights.shape
    numerator = lazy_tensor(weights.mT[:, None].contiguous())  # (H, 1, P, R)
    m_n, a_n = (lazy_tensor(value[:, None, :, None].contiguous()) for value in (m, a))
    c_k, s_k = (lazy_tensor(value[None, :, None, None].contiguous()) for value in (c, s))
    re, im = m_n * c_k * c_k - 4 * s_k * s_k, -4 * (a_n * s_k * c_k)
    norm = re * re + im * im
    real = (numerator * (re / norm)).sum(dim=2)
    imag = (numerator * (-im / norm)).sum(dim=2)
    return torch.complex(real, imag).view(H, len(c), R).mT


def _native() -> ModuleType:
    from . import native

    return native


def _triton() -> ModuleType:
    from . import triton

    return triton
