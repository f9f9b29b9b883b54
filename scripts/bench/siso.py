"""Whole S4D and S4 layers compared with the published methods, implemented here from the equations of the papers.

The published methods form the powers of every mode at every position, (H, N/2, L) complex (S4D, arXiv 2206.11893), or
the sums over poles at every point of the circle, (4, H, N/2, L/2 + 1) complex or as a KeOps reduction (S4, arXiv
2111.00396), and convolve by transforms of 2 L points. S4 trains its folded C, as published. All contenders take u and
the parameters of our layer.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fractal_ssm import S4, S4D
from fractal_ssm.ops.runtime.keops import lazy_tensor

from .contenders import Contenders


def layer_of(kind: str, shape: tuple[int, ...], mode: str) -> nn.Module:
    """Our layer for a case (B, L, H, N), "causal" or "bidirectional", identical on every call."""
    _, length, d_model, d_state = shape
    options = {"bidirectional": mode == "bidirectional"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "s4d":
            return S4D(d_model, d_state, **options)
        return S4(d_model, d_state, fold_length=length, **options)


def tensors(kind: str, shape: tuple[int, ...], mode: str) -> list[Tensor]:
    """u (B, L, H) and the parameters."""
    u = torch.randn(shape[:3], generator=torch.Generator().manual_seed(0))
    return [u, *(parameter.detach().clone() for parameter in layer_of(kind, shape, mode).parameters())]


def for_layer(kind: str, shape: tuple[int, ...], mode: str) -> Contenders:
    """Functions of (u, *parameters) that return y (B, L, H)."""
    layer = layer_of(kind, shape, mode)
    names = [name for name, _ in layer.named_parameters()]

    def ours(u: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (u,))[0]

    def published(kernel, u: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return _convolved(u, kernel(given, u.shape[1]), given["D"])

    found = Contenders({"ours": ours})
    if kind == "s4d":
        found.run["published, naive"] = partial(published, _s4d_kernel)
        found.peer("published, KeOps", "pykeops", partial(published, partial(_s4d_kernel, keops=True)))
    else:
        found.run["published, naive"] = partial(published, _s4_kernel)
        found.peer("published, KeOps", "pykeops", partial(published, partial(_s4_kernel, keops=True)))
    return found


KINDS = {kind: partial(for_layer, kind) for kind in ("s4d", "s4")}


def _complex(given: dict[str, Tensor], name: str) -> Tensor:
    return torch.view_as_complex(given[name])


def _Lambda(given: dict[str, Tensor]) -> Tensor:
    return -torch.exp(given["A_real"]) - 1j * given["A_imag"]


def _s4d_kernel(given: dict[str, Tensor], length: int, keops: bool = False) -> Tensor:
    """2 Re sum_n C B (exp(z) - 1) / Lambda exp(z l), z = dt Lambda: (directions, H, L)."""
    Lambda = _Lambda(given)
    z = torch.exp(given["inv_dt"])[:, None] * Lambda
    coefficient = _complex(given, "C") * _complex(given, "B") * (torch.exp(z) - 1) / Lambda
    if keops:
        return 2 * _keops_powers(coefficient, z, length)
    return 2 * torch.einsum("chn,hnl->chl", coefficient, torch.exp(z[..., None] * torch.arange(length))).real


def _keops_powers(coefficient: Tensor, z: Tensor, length: int) -> Tensor:
    position = torch.arange(length, dtype=z.real.dtype).to(z.dtype).view(1, length, 1, 1)
    weight, exponent = (lazy_tensor(t.expand_as(coefficient).reshape(-1, 1, z.shape[1], 1)) for t in (coefficient, z))
    total = ((exponent * lazy_tensor(position)).exp() * weight).sum(dim=2)
    return total.view(*coefficient.shape[:2], length).real


def _s4_kernel(given: dict[str, Tensor], length: int, keops: bool = False) -> Tensor:
    """Woodbury over the sums at the roots of unity, from the folded C: (directions, H, L)."""
    dt = torch.exp(given["inv_dt"])[:, None]
    B, P, C = _complex(given, "B"), _complex(given, "P")[0], _complex(given, "C")
    angle = torch.arange(length // 2 + 1, dtype=torch.float64) * (-2 * math.pi / length)
    # The published form is infinite at 1 + omega = 0; rounding the last angle keeps omega away from -1.
    omega = torch.polar(torch.ones_like(given["inv_dt"][0]).expand(len(angle)), angle.to(given["inv_dt"].dtype))
    left, right = torch.cat((C, P.conj()[None])), torch.stack((B, P))
    sums = _pole_sums_keops if keops else _pole_sums
    r = sums(left[:, None] * right * dt, dt * _Lambda(given), 2 * (1 - omega) / (1 + omega))
    response = r[:-1, 0] - r[:-1, 1] * (r[-1, 0] / (1 + r[-1, 1]))
    return torch.fft.irfft(2 / (1 + omega) * response, n=length)


def _pole_sums(v: Tensor, poles: Tensor, z: Tensor) -> Tensor:
    """sum_n v / (z - pole) over both halves of every pair: (lefts, rights, H, points)."""
    v, poles = torch.cat((v, v.conj()), dim=-1), torch.cat((poles, poles.conj()), dim=-1)
    return (v[..., None] / (z - poles[..., None])).sum(-2)


def _pole_sums_keops(v: Tensor, poles: Tensor, z: Tensor) -> Tensor:
    """`_pole_sums` as one reduction; for z = i y a pair is (2 i y Re(v) - 2 Re(v conj(pole))) / ((i y)^2 - ...).

    In real arithmetic, (re, im) side by side, because KeOps cannot differentiate a quotient of complex numbers.
    """
    shape, (p, q) = v.shape[:-1], (2 * v.real, 2 * (v * poles.conj()).real)
    columns = [t.expand(v.shape).reshape(-1, 1, v.shape[-1], 1) for t in (p, q, poles.real, poles.abs().square())]
    p, q, a, m, y = map(lazy_tensor, (*columns, z.imag.reshape(1, -1, 1, 1)))
    re, im = m - y * y, -2 * (y * a)
    norm = re * re + im * im
    real, imag = (p * y * im - q * re) / norm, (p * y * re + q * im) / norm
    return torch.view_as_complex(real.concat(imag).sum(dim=2)).view(*shape, -1)


def _convolved(u: Tensor, kernels: Tensor, D: Tensor) -> Tensor:
    """K * u + D u; the backward kernel, from lag -1 on, is at the far end of the circular kernel."""
    length = u.shape[1]
    kernel = F.pad(kernels[0], (0, length))
    if len(kernels) == 2:
        kernel = kernel + F.pad(kernels[1].flip(-1), (length, 0))
    spectrum = torch.fft.rfft(u.transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2) + D * u
