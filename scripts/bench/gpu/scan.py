"""The scan on a GPU relative to a copy, and the SSM part of a layer compared with other ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fractal_ssm import scan
from fractal_ssm.ops.ssm import ssm

from ..timing import Table, Timing, rotation, time_gpu

SCAN_SHAPES = ((8, 4096, 64), (2, 16384, 64), (32, 4096, 64), (64, 2048, 128), (16, 16384, 64), (8, 65536, 64))
LAYER_SHAPES = {  # (B, L, H, P)
    "listops": (32, 2048, 128, 64),
    "pathx": (16, 16384, 128, 128),
    "cpu-reference-shape": (8, 4096, 128, 32),
}


@dataclass
class Context:
    device: str
    dry_run: bool
    table: Table


@dataclass
class Inputs:
    a: torch.Tensor
    b: torch.Tensor
    x0: torch.Tensor
    g: torch.Tensor


def inputs(mode: str, dtype: torch.dtype, batch: int, length: int, modes: int, device: str = "cpu") -> Inputs:
    """Random inputs with |a| between 0.9 and 0.999."""
    shape = {
        "constant": (modes,),
        "per_sample": (batch, 1, modes),
        "shared": (length, modes),
        "full": (batch, length, modes),
    }[mode]
    a = 0.9 + 0.099 * torch.rand(shape, device=device)
    if dtype.is_complex:
        a = torch.polar(a, 6 * torch.rand(shape, device=device))
    b, g = (torch.randn(batch, length, modes, dtype=dtype, device=device) for _ in range(2))
    return Inputs(a.to(dtype), b, torch.randn(batch, modes, dtype=dtype, device=device), g)


def time_scan(context: Context) -> None:
    """Forward and adjoint, with bandwidth as a share of that of a device copy of b timed in the same way."""
    shapes = ((2, 16, 2),) if context.dry_run else SCAN_SHAPES
    for dtype in (torch.complex64, torch.float32):
        for mode in ("constant", "shared", "full"):
            for shape in shapes:
                _time_scan_case(context, shape, dtype, mode)


def _time_scan_case(context: Context, shape: tuple[int, int, int], dtype: torch.dtype, mode: str) -> None:
    from fractal_ssm.ops.scan import custom_op

    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    a_size = (
        inputs(mode, dtype, 1, 1, shape[2]).a.numel() * dtype.itemsize
        if mode == "constant"
        else (size if mode == "full" else size // shape[0])
    )
    sets = [inputs(mode, dtype, *shape, device=context.device) for _ in range(1 if context.dry_run else rotation(size))]
    for one in sets:
        one.a = one.a.reshape((1,) * (3 - one.a.dim()) + tuple(one.a.shape))
    states = [scan(one.a, one.b, backend="triton") for one in sets]
    targets = [torch.empty_like(one.b) for one in sets]
    copies = [lambda s=s, t=t: t.copy_(s.b) for s, t in zip(sets, targets, strict=True)]
    forward = [lambda s=s: custom_op.scan_op(s.a, s.b, None, False, "triton") for s in sets]
    adjoint = [
        lambda s=s, x=x: custom_op.scan_backward_op(s.a, x, None, s.g, False, "triton", True)
        for s, x in zip(sets, states, strict=True)
    ]
    name = f"{shape} {dtype} {mode}".replace("torch.", "")
    if context.dry_run:
        for call in (copies[0], forward[0], adjoint[0]):
            call()
        context.table.add(stage="time-scan", case=name, note="dry run")
        return
    copy = time_gpu(copies, graph=True)
    # Least traffic: the forward reads b (and a) and writes x; the adjoint reads g, x (and a) and writes G (and da).
    for what, calls, least in (("forward", forward, 2 * size + a_size), ("adjoint", adjoint, 3 * size + 2 * a_size)):
        timing, eager = time_gpu(calls, graph=True), time_gpu(calls, graph=False)
        share = (least / timing.median) / (2 * size / copy.median)
        _timed(context, "time-scan", name, what, timing, eager, copy_ms=copy.median, of_copy=share,
               gb_per_s=least / timing.median / 1e6)  # fmt: skip


def time_layer(context: Context) -> None:
    """The SSM part of S5 / FRACTAL: our kernels, with and without recomputation, and the same map in plain torch."""
    if context.dry_run:
        context.table.add(stage="layer", note="dry run: left out")
        return
    for name, (batch, length, features, modes) in LAYER_SHAPES.items():
        case = inputs("constant", torch.complex64, batch, 1, modes, device=context.device)
        u = torch.randn(batch, length, features, device=context.device)
        B_bar, C = (
            torch.randn(s, dtype=torch.complex64, device=context.device) / modes
            for s in ((modes, features), (features, modes))
        )
        parts = [t.requires_grad_() for t in (u, case.a, B_bar, C)]
        seed = torch.randn_like(u)
        kinds: dict[str, Callable[..., Any]] = {
            "ours": lambda *p: ssm(*p, backend="triton")[0],
            "ours, checkpoint": lambda *p: ssm(*p, backend="triton", checkpoint=True)[0],
            "torch chunked": lambda *p: ssm(*p, backend="torch")[0],
            "fft convolution": _by_fft,
        }
        for kind, function in kinds.items():
            for what in ("forward", "forward+backward"):
                call = _call(function, parts, seed, what == "forward+backward")
                graph = kind.startswith("ours")
                timing = time_gpu([call] * 4, graph=graph, repeats=9)
                eager = time_gpu([call] * 4, graph=False, repeats=9)
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                call()
                peak = (torch.cuda.max_memory_allocated() - before) / 1e6
                _timed(context, "layer", f"{name} {(batch, length, features, modes)}", f"{kind}: {what}",
                       timing, eager, peak_mb=peak)  # fmt: skip


def _call(
    function: Callable[..., torch.Tensor], parts: list[torch.Tensor], seed: torch.Tensor, backward: bool
) -> Callable[[], object]:
    if backward:
        return lambda: torch.autograd.grad(function(*parts), parts, seed)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return function(*parts)

    return forward


def _by_fft(u: torch.Tensor, a: torch.Tensor, B_bar: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """The states as one causal convolution per mode, the usual way without a scan."""
    length = u.shape[1]
    steps = torch.arange(length, device=u.device)
    kernel = torch.exp(steps[:, None] * torch.log(a))
    v = u.to(a.dtype) @ B_bar.T
    x = torch.fft.ifft(torch.fft.fft(v, 2 * length, dim=1) * torch.fft.fft(kernel, 2 * length, dim=0), dim=1)
    return 2 * (x[:, :length] @ C.T).real


def _timed(context: Context, stage: str, case: str, what: str, timing: Timing, eager: Timing, **more: float) -> None:
    context.table.add(stage=stage, case=case, what=what, ms=timing.median, p20=timing.p20, p80=timing.p80,
                      eager_ms=eager.median, **more)  # fmt: skip
