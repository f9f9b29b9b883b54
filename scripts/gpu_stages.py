"""The stages of `gpu_check`: what is checked and timed, as data, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fractal_ssm import scan
from fractal_ssm.ops.ssm import ssm

from scripts.bench.timing import Table, Timing, rotation, time_gpu

LENGTHS = (1, 2, 3, 5, 7, 31, 33, 63, 65, 127, 129, 255, 257, 1000, 1023, 1025, 4095, 4097, 16384, 65537)
MODES = ("constant", "per_sample", "shared", "full")
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

    def to(self, device: str, dtype: torch.dtype) -> Inputs:
        return Inputs(*(t.detach().to(device, dtype) for t in (self.a, self.b, self.x0, self.g)))

    def run(self, backend: str, reverse: bool) -> list[torch.Tensor]:
        """[x, da, db, dx0]."""
        tensors = [t.requires_grad_() for t in (self.a, self.b, self.x0)]
        x = scan(*tensors, reverse, backend=backend)
        return [x.detach(), *torch.autograd.grad(x, tensors, self.g)]


def inputs(mode: str, dtype: torch.dtype, batch: int, length: int, modes: int, device: str = "cpu") -> Inputs:
    """|a| between 0.9 and 0.999."""
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


def deviation(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Largest deviation over all tensors, each relative to its own largest entry; NaN counts as infinite."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        error = (one.cpu().to(other.dtype) - other.cpu()).abs().max() / other.abs().max().cpu().clamp_min(1e-30)
        worst = max(worst, float("inf") if error.isnan() else error.item())
    return worst


def check_scan(context: Context) -> None:
    """Every mode, direction and length, float32 kernels against a complex128 (float64) loop on the CPU."""
    torch.manual_seed(0)
    lengths = (1, 2, 17) if context.dry_run else LENGTHS
    for dtype in (torch.complex64, torch.float32):
        wide = torch.complex128 if dtype.is_complex else torch.float64
        for mode in MODES:
            worst, where = 0.0, ""
            for length in lengths:
                for reverse in (False, True):
                    torch.full((3, length, 5), float("nan"), dtype=dtype, device=context.device)
                    case = inputs(mode, dtype, 2 if context.dry_run else 3, length, 5)
                    found = case.to(context.device, dtype).run("triton", reverse)
                    error = deviation(found, case.to("cpu", wide).run("native", reverse))
                    if error >= worst:
                        worst, where = error, f"L={length} reverse={reverse}"
            _verdict(context, "scan", f"{dtype} {mode}".replace("torch.", ""), worst, 2e-4, where)


def check_shapes(context: Context) -> None:
    """Grids past 65535, modes either side of a block, many short samples; forward and gradients."""
    torch.manual_seed(0)
    shapes = [(3, 9, 1), (2, 9, 3)] if context.dry_run else [
        (70000, 8, 1), (1, 8, 70001), (5, 300, 63), (5, 300, 65), (2, 1000, 129), (1, 131073, 1), (1, 65535, 2),
        (1, 65536, 2), (300, 1000, 7), (4, 2048, 256),
    ]  # fmt: skip
    for shape in shapes:
        for mode in ("constant", "full"):
            case = inputs(mode, torch.complex64, *shape)
            found = case.to(context.device, torch.complex64).run("triton", False)
            expected = case.to("cpu", torch.complex128).run("native", False)
            _verdict(context, "shapes", f"{shape} {mode}", deviation(found, expected), 2e-4)


def check_big(context: Context) -> None:
    """More than 2**31 elements: the last channels against a float64 loop over them alone."""
    if context.dry_run:
        return
    batch, length, modes = 2049, 16384, 65
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        context.table.add(stage="big", case=f"({batch}, {length}, {modes})", note="left out: under 40 GB of memory")
        return
    b = torch.randn(batch, length, modes, device=context.device)
    a = torch.full((modes,), 0.99, device=context.device)
    for reverse in (False, True):
        x = scan(a, b, reverse=reverse, backend="triton")
        tail = scan(a[-1:].double().cpu(), b[-1:, :, -1:].double().cpu(), reverse=reverse, backend="native")
        error = deviation([x[-1:, :, -1:]], [tail])
        _verdict(context, "big", f"{b.numel() / 2**31:.2f} * 2^31 elements, reverse={reverse}", error, 2e-4)
        del x


def check_repeatable(context: Context) -> None:
    """The same inputs give the same bits."""
    shape = (2, 20, 3) if context.dry_run else (8, 5000, 64)
    for mode in MODES:
        case = inputs(mode, torch.complex64, *shape).to(context.device, torch.complex64)
        pairs = zip(case.run("triton", False), case.run("triton", False), strict=True)
        same = all(torch.equal(one, other) for one, other in pairs)
        context.table.add(stage="repeatable", case=mode, what="same bits twice", ok=same)


def check_layer(context: Context) -> None:
    """The fused SSM, float32 against float64, with and without recomputation; tf32 is off."""
    torch.manual_seed(0)
    batch, length, features, modes = (2, 9, 3, 2) if context.dry_run else (4, 3001, 96, 48)
    for mode in MODES:
        case = inputs(mode, torch.complex64, batch, length, modes)
        parts = [torch.randn(batch, length, features), case.a]
        parts += [torch.randn(s, dtype=torch.complex64) / modes for s in ((modes, features), (features, modes))]
        parts.append(case.x0)
        seed = torch.randn(batch, length, features)
        for checkpoint in (False, True):
            found = _layer_gradients(parts, seed, context.device, torch.float32, "triton", checkpoint)
            expected = _layer_gradients(parts, seed, "cpu", torch.float64, "native", False)
            what = "checkpoint" if checkpoint else ""
            _verdict(context, "layer", f"ssm {mode}", deviation(found, expected), 2e-4, what)


def _layer_gradients(
    parts: Sequence[torch.Tensor], seed: torch.Tensor, device: str, real: torch.dtype, backend: str, checkpoint: bool
) -> list[torch.Tensor]:
    full = torch.complex128 if real == torch.float64 else torch.complex64
    tensors = [t.detach().to(device, full if t.is_complex() else real).requires_grad_() for t in parts]
    y, last = ssm(*tensors, backend=backend, checkpoint=checkpoint)
    gradients = torch.autograd.grad([y, last.real], tensors, [seed.to(device, real), torch.ones_like(last.real)])
    return [y.detach(), last.detach(), *gradients]


def _verdict(context: Context, stage: str, case: str, error: float, limit: float, note: str = "") -> None:
    context.table.add(stage=stage, case=case, what="against double precision", ok=error <= limit, error=error,
                      limit=limit, note=note)  # fmt: skip


# --- timing ---------------------------------------------------------------------------------------------------------


def time_scan(context: Context) -> None:
    """Forward and forward + backward, as a share of a device copy of b made in the same way."""
    shapes = ((2, 16, 2),) if context.dry_run else SCAN_SHAPES
    for dtype in (torch.complex64, torch.float32):
        for mode in ("constant", "shared", "full"):
            for shape in shapes:
                _time_scan_case(context, shape, dtype, mode)


def _time_scan_case(context: Context, shape: tuple[int, int, int], dtype: torch.dtype, mode: str) -> None:
    from fractal_ssm.ops.scan import custom_op

    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    a_size = inputs(mode, dtype, 1, 1, shape[2]).a.numel() * dtype.itemsize if mode == "constant" else (
        size if mode == "full" else size // shape[0]
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
    # Least bytes: forward reads b (and a), writes x; the adjoint reads g, x (and a), writes G (and da).
    for what, calls, least in (("forward", forward, 2 * size + a_size), ("adjoint", adjoint, 3 * size + 2 * a_size)):
        timing, eager = time_gpu(calls, graph=True), time_gpu(calls, graph=False)
        share = (least / timing.median) / (2 * size / copy.median)
        _timed(context, "time-scan", name, what, timing, eager, copy_ms=copy.median, of_copy=share,
               gb_per_s=least / timing.median / 1e6)  # fmt: skip


def time_layer(context: Context) -> None:
    """The SSM part of S5 / FRACTAL: ours, with recomputation, and the same map through plain torch."""
    if context.dry_run:
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
                _timed(context, "time-layer", f"{name} {(batch, length, features, modes)}", f"{kind}: {what}",
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


def check_fused(context: Context) -> None:
    from scripts.gpu_fused import check_fused as run

    run(context.device, context.dry_run, context.table)


def time_fused(context: Context) -> None:
    from scripts.gpu_fused import time_fused as run

    run(context.device, context.dry_run, context.table)


def time_models(context: Context) -> None:
    from scripts.gpu_models import time_models as run

    run(context.device, context.dry_run, context.table)


def check_sums(context: Context) -> None:
    """The Vandermonde and Cauchy kernels of the convolution layers."""
    from scripts.gpu_sums import check_sums as run

    def verdict(name: str, case: str, found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        # Next to a pole single precision keeps three digits of S4's sums, in the plain form too.
        _verdict(context, "sums", f"{name} {case}", deviation(found, expected), 1e-3 if name == "poles" else 2e-5)

    run(context.device, context.dry_run, verdict)


def time_sums(context: Context) -> None:
    from scripts.gpu_sums import time_sums as run

    run(context.device, context.dry_run, context.table)


STAGES: dict[str, Callable[[Context], None]] = {
    "scan": check_scan,
    "layer": check_layer,
    "fused": check_fused,
    "shapes": check_shapes,
    "sums": check_sums,
    "repeatable": check_repeatable,
    "time-scan": time_scan,
    "time-layer": time_layer,
    "time-fused": time_fused,
    "time-sums": time_sums,
    "time-models": time_models,
    "big": check_big,
}
