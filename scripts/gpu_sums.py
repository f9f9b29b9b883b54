"""Stages of `gpu_check` for the kernels of the convolution layers: Vandermonde sums and the sums over poles of S4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fractal_ssm.ops.cauchy import dplr_response
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum

from scripts.bench.timing import Table, time_gpu

LENGTHS = (1, 2, 15, 16, 17, 63, 65, 255, 1023, 1024, 1025, 4095, 4097, 16384, 65537)
# The largest case that double precision on a CPU is given: one second.
_MOST = 1 << 25
SIZES = ((3, 1), (5, 16), (2, 17), (256, 32), (3, 100))  # (H, N)
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


def gradients(
    function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], device: str, low: bool, weight: torch.Tensor
) -> list[torch.Tensor]:
    """The output and the gradients of every tensor, which `low` rounds to single precision first."""
    inputs = [t.detach().to(device, _lower(t) if low else t.dtype).requires_grad_() for t in tensors]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, weight.to(out))]


def _lower(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex64 if tensor.is_complex() else torch.float32


def check_sums(device: str, dry_run: bool, verdict: Callable[[str, str, list, list], None]) -> None:
    """Every length and size: single precision on the device against double precision on the CPU."""
    torch.manual_seed(0)
    lengths, sizes = ((2, 17), ((2, 3),)) if dry_run else (LENGTHS, SIZES)
    for length in lengths:
        for H, N in sizes:
            if H * N * length > _MOST:
                continue
            C, w = modes(H, N)
            u, case = torch.randn(2, H, length, dtype=torch.float64), f"H={H} N={N} L={length}"
            for name, tensors, function in (
                ("vandermonde", [C], lambda b, d: lambda c: vandermonde(c, w.to(d), length, b)),
                ("sum", [u], lambda b, d: lambda s: vandermonde_sum(s, w.to(d), True, b)),
                ("w", [w], lambda b, d: lambda x: vandermonde(C.to(d, torch.complex64), x, length, b)),
                ("poles", poles(H, N), lambda b, d: lambda *p: torch.fft.irfft(dplr_response(*p, length, b), length)),
            ):
                if name == "poles" and length == 1:
                    # The step cancels out of the response there, and its gradient is rounding alone.
                    continue
                wide = function("torch", "cpu")(*tensors)
                weight = torch.randn(wide.shape, dtype=torch.float64)
                # w stays in double precision: its powers are what single precision would lose.
                found = gradients(function("triton", device), tensors, device, name != "w", weight)
                verdict(name, case, found, gradients(function("torch", "cpu"), tensors, "cpu", False, weight))


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
            table.add(stage="time-sums", case=case, what=f"{backend}: {what}", note="dry run")
            continue
        timing = time_gpu([call] * 4, graph=False, repeats=9)
        table.add(stage="time-sums", case=case, what=f"{backend}: {what}", ms=timing.median, p20=timing.p20,
                  p80=timing.p80)  # fmt: skip
