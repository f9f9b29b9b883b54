"""The part of `gpu_check` for the fused SSM kernels: float32 against float64, and their time beside the unfused path.

They are off by default (`fractal_ssm.ops.ssm.triton.FUSED`) until these stages have passed and won on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from fractal_ssm.ops.ssm import ssm

from scripts.bench.timing import Table, time_gpu

# (B, L, H, P): S5 and FRACTAL of LRA where the rule admits them. All take the same blocks: one set to compile.
SHAPES = {
    "pathx": (16, 16384, 128, 128),
    "aan": (16, 4000, 256, 128),
    "listops, P 64": (32, 2048, 128, 64),
}
# (B, L, H, H_out, P), reverse: short last chunks, sizes that are no powers of two, more modes than a block.
CHECKED = (((3, 257, 24, 24, 5), True), ((2, 4097, 96, 130, 48), False))
TINY = (((1, 257, 2, 3, 2), False),)


@contextmanager
def variant(name: str) -> Iterator[None]:
    """"unfused", or the precision of the products inside the fused kernels."""
    from fractal_ssm.ops.ssm import triton as triton_backend

    before = triton_backend.FUSED, triton_backend.PRECISION
    triton_backend.FUSED = name != "unfused"
    if triton_backend.FUSED:
        triton_backend.PRECISION = name
    try:
        yield
    finally:
        triton_backend.FUSED, triton_backend.PRECISION = before


def variants(device: str) -> tuple[str, ...]:
    return ("ieee",) if device == "cpu" or torch.version.hip else ("ieee", "tf32x3")


def parts_of(batch: int, length: int, features: int, out: int, modes: int, device: str) -> list[torch.Tensor]:
    a = torch.polar(0.9 + 0.09999 * torch.rand(modes, device=device), 6 * torch.rand(modes, device=device))
    matrices = [
        torch.randn(size, dtype=torch.complex64, device=device) / size[1] ** 0.5
        for size in ((modes, features), (out, modes), (batch, modes))
    ]
    return [torch.randn(batch, length, features, device=device), a, *matrices]


def check_fused(device: str, dry_run: bool, table: Table) -> None:
    torch.manual_seed(0)
    for sizes, reverse in TINY if dry_run else CHECKED:
        parts = parts_of(*sizes, "cpu")
        lengths = torch.randint(1, sizes[1] + 1, (sizes[0],))
        expected = _run(parts, "cpu", torch.float64, "native", reverse, lengths)
        for name in ("unfused", *variants(device)):
            with variant(name):
                found = _run(parts, device, torch.float32, "triton", reverse, lengths)
            error = _deviation(found, expected)
            table.add(stage="fused", case=f"{sizes} reverse={reverse}", what=name, ok=error <= 2e-4, error=error,
                      limit=2e-4)  # fmt: skip


def _run(
    parts: list[torch.Tensor], device: str, real: torch.dtype, backend: str, reverse: bool, lengths: torch.Tensor
) -> list[torch.Tensor]:
    full = torch.promote_types(real, torch.complex64)
    tensors = [t.detach().to(device, full if t.is_complex() else real).requires_grad_() for t in parts]
    lengths = None if reverse else lengths.to(device)
    y, last = ssm(*tensors, reverse=reverse, backend=backend, lengths=lengths)
    seeds = [_cosines(t) for t in (y, last)]
    return [y.detach(), last.detach(), *torch.autograd.grad([y, last], tensors, seeds)]


def _cosines(t: torch.Tensor) -> torch.Tensor:
    """The cosine of each entry's position in memory: the same weights on every device."""
    return torch.arange(t.numel(), device=t.device).to(torch.float64).cos().view(t.shape).to(t.dtype)


def _deviation(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    errors = [
        ((one.cpu().to(other.dtype) - other).abs().max() / other.abs().max().clamp_min(1e-30)).item()
        for one, other in zip(found, expected, strict=True)
    ]
    return float("inf") if any(error != error for error in errors) else max(errors)


def time_fused(device: str, dry_run: bool, table: Table) -> None:
    """Forward, and forward + backward, with peak memory; unfused and fused in turn on the same inputs."""
    if dry_run:
        return
    for name, (batch, length, features, modes) in SHAPES.items():
        parts = [t.requires_grad_() for t in parts_of(batch, length, features, features, modes, device)[:4]]
        seed = torch.randn_like(parts[0])

        def forward(parts: list[torch.Tensor] = parts) -> None:
            with torch.no_grad():
                ssm(*parts, backend="triton")

        def both(parts: list[torch.Tensor] = parts, seed: torch.Tensor = seed) -> None:
            torch.autograd.grad(ssm(*parts, backend="triton")[0], parts, seed)

        for kind in ("unfused", *variants(device)):
            with variant(kind):
                for what, call in (("forward", forward), ("forward+backward", both)):
                    timing = time_gpu([call] * 2, graph=True, repeats=7)
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                    call()
                    peak = (torch.cuda.max_memory_allocated() - before) / 1e6
                    table.add(stage="time-fused", case=f"{name} {(batch, length, features, modes)}",
                              what=f"{kind}: {what}", ms=timing.median, p20=timing.p20, p80=timing.p80,
                              peak_mb=peak)  # fmt: skip
