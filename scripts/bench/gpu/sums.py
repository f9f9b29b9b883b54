"""The kernels of the convolution layers on a GPU: Vandermonde sums and the sums over poles of S4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fractal_ssm.ops.cauchy import dplr_response
from fractal_ssm.ops.vandermonde import vandermonde

from ..timing import Table, time_gpu

SHAPES = ((128, 32, 2048), (256, 32, 4096), (512, 32, 1024), (256, 32, 16384))  # (H, N, L)


def modes(H: int, N: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Coefficients (1, H, N) and w (H, N) in double precision, 1 - |w| between 1e-5 and 0.1."""
    radius = 1 - 10 ** (-5 + 4 * torch.rand(H, N, dtype=torch.float64))
    w = torch.polar(radius, 6.3 * torch.rand(H, N, dtype=torch.float64))
    return torch.randn(1, H, N, dtype=torch.complex128), w


def poles(H: int, N: int) -> list[torch.Tensor]:
    """Lambda, P, Q, B, C, dt of a DPLR system in double precision, P = Q, rank 1."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.complex128)

    Lambda = torch.complex(-0.1 - torch.rand(H, N).double(), 30 * torch.randn(H, N).double())
    P = normal(1, H, N)
    return [Lambda, P, P, normal(H, N), normal(1, H, N), 0.01 + 0.1 * torch.rand(H).double()]


def _lower(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex64 if tensor.is_complex() else torch.float32


def time_sums(device: str, dry_run: bool, table: Table) -> None:
    """Forward and forward + backward of the Triton kernels and of the plain torch forms, in one run."""
    for H, N, length in ((2, 3, 20),) if dry_run else SHAPES:
        C, w = (t.to(device) for t in modes(H, N))
        C = C.to(torch.complex64).requires_grad_()
        w.requires_grad_()
        system = [t.to(device, _lower(t)).requires_grad_() for t in poles(H, N)]
        for backend in ("triton", "torch"):
            for name, tensors, function in (
                ("vandermonde", [C, w], lambda c, x, b=backend: vandermonde(c, x, length, b)),
                ("poles", system, lambda *p, b=backend: dplr_response(*p, length, b).abs()),
            ):
                _time(table, dry_run, f"{name} {(H, N, length)}", backend, function, tensors)


def _time(
    table: Table, dry_run: bool, case: str, backend: str, function: Callable[..., torch.Tensor], tensors: list[Any]
) -> None:
    seed = torch.ones_like(function(*tensors))
    calls = {
        "forward": lambda: function(*tensors),
        "forward+backward": lambda: torch.autograd.grad(function(*tensors), tensors, seed),
    }
    for what, call in calls.items():
        if dry_run:
            call()
            table.add(stage="sums", case=case, what=f"{backend}: {what}", note="dry run")
            continue
        timing = time_gpu([call] * 4, graph=False, repeats=9)
        table.add(stage="sums", case=case, what=f"{backend}: {what}", ms=timing.median, p20=timing.p20,
                  p80=timing.p80)  # fmt: skip
