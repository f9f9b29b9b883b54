"""The contenders: our backends and every installed peer, with one signature per kind of case.

A contender maps the case's tensors to an output that autograd can differentiate. Inputs that users of a peer would keep
in another layout are converted outside the measured time. A peer that is missing is listed with the reason.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fractal_ssm import scan
from fractal_ssm.ops.ssm import ssm
from fractal_ssm.ops.vandermonde import vandermonde

from . import jax_peers, one_pass

Function = Callable[..., Tensor]


@dataclass
class Contenders:
    run: dict[str, Function] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def peer(self, name: str, module: str, function: Function, obstacle: str = "") -> None:
        if importlib.util.find_spec(module) is None:
            self.missing[name] = f"{module} is not installed"
        elif obstacle:
            self.missing[name] = obstacle
        else:
            self.run[name] = function


def for_scan(shape: tuple[int, ...], mode: str) -> Contenders:
    """Functions of (a, b) with b (B, L, P) and a as `scan` takes it."""
    found = Contenders({f"ours: {backend}": partial(scan, backend=backend) for backend in ("native", "torch")})
    found.peer("one pass in C", "ctypes", one_pass.scan, one_pass.obstacle(mode))
    found.peer("torch associative_scan", "torch", _torch_associative_scan)
    found.peer("s5-pytorch", "s5", _s5_scan, "" if mode == "constant" else "its scan shares a constant gate")
    power = shape[1] & (shape[1] - 1) == 0
    found.peer("accelerated-scan (ref)", "accelerated_scan", _accelerated_scan, "" if power else "needs L a power of 2")
    found.peer("mambapy", "mambapy", _mambapy_scan)
    found.peer("jax associative_scan", "jax", jax_peers.scan)
    return found


def for_layer(shape: tuple[int, ...], mode: str) -> Contenders:
    """Functions of (u, Lambda_bar, B_bar, C), the SSM part of S5: y = 2 Re(C x)."""
    found = Contenders({"ours": lambda *parts: ssm(*parts)[0]})
    found.run["ours, checkpoint"] = lambda *parts: ssm(*parts, checkpoint=True)[0]
    found.run["ours: torch"] = lambda *parts: ssm(*parts, backend="torch")[0]
    found.run["fft per mode"] = _fft_layer
    found.peer("s5-pytorch", "s5", _s5_layer)
    found.peer("jax S5-style", "jax", jax_peers.layer)
    return found


def for_kernel(shape: tuple[int, ...], mode: str) -> Contenders:
    """Functions of (coefficient, w), the S4D kernel K[h, l] = 2 Re sum_n coefficient[h, n] w[h, n]**l."""
    length = shape[1]
    found = Contenders({"ours: split index": partial(vandermonde, length=length, backend="torch")})
    found.run["naive (one exp per entry)"] = partial(_naive_kernel, length=length)
    found.peer("keops", "pykeops", partial(vandermonde, length=length, backend="keops"))
    return found


KINDS = {"scan": for_scan, "layer": for_layer, "kernel": for_kernel}


def _torch_associative_scan(a: Tensor, b: Tensor) -> Tensor:
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left, right):
        return right[0] * left[0], right[0] * left[1] + right[1]

    return associative_scan(combine, (a.expand_as(b).clone(), b), dim=1, combine_mode="generic")[1]


def _s5_scan(a: Tensor, b: Tensor) -> Tensor:
    import s5

    gates = a.expand(b.shape[1], -1)
    return torch.vmap(lambda sample: s5.associative_scan(s5.binary_operator, (gates, sample))[1])(b)


def _accelerated_scan(a: Tensor, b: Tensor) -> Tensor:
    from accelerated_scan.ref import scan as reference

    tokens = b.transpose(1, 2).contiguous()
    return reference(a.expand_as(b).transpose(1, 2).contiguous(), tokens).transpose(1, 2)


def _mambapy_scan(a: Tensor, b: Tensor) -> Tensor:
    from mambapy.pscan import pscan

    return pscan(a.expand_as(b).clone()[..., None], b.clone()[..., None])[..., 0]


def _s5_layer(u: Tensor, Lambda_bar: Tensor, B_bar: Tensor, C: Tensor) -> Tensor:
    """s5's own scan and order of operations on discretised parameters: complex u, vmap over samples."""
    import s5

    gates = Lambda_bar.expand(u.shape[1], -1)

    def sample(one: Tensor) -> Tensor:
        inputs = torch.vmap(lambda row: B_bar @ row)(one.to(B_bar.dtype))
        states = s5.associative_scan(s5.binary_operator, (gates, inputs))[1]
        return torch.vmap(lambda state: 2 * (C @ state).real)(states)

    return torch.vmap(sample)(u)


def _fft_layer(u: Tensor, Lambda_bar: Tensor, B_bar: Tensor, C: Tensor) -> Tensor:
    length = u.shape[1]
    kernel = torch.exp(torch.arange(length)[:, None] * torch.log(Lambda_bar))
    spectrum = torch.fft.fft(u.to(B_bar.dtype) @ B_bar.T, 2 * length, dim=1) * torch.fft.fft(kernel, 2 * length, dim=0)
    return 2 * (torch.fft.ifft(spectrum, dim=1)[:, :length] @ C.T).real


def _naive_kernel(coefficient: Tensor, w: Tensor, length: int) -> Tensor:
    powers = torch.exp(torch.log(w)[..., None] * torch.arange(length))
    return 2 * torch.einsum("hn,hnl->hl", coefficient, powers).real
