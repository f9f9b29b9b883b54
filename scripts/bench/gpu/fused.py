"""The fused SSM kernels on a GPU compared with the unfused path.

They are off by default (`fractal_ssm.ops.ssm.triton.FUSED`) until tests/gpu passes and they are faster here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fractal_ssm.ops.ssm import ssm

from ..timing import Table, time_gpu

# (B, L, H, P): sizes of S5 and FRACTAL on LRA for which `plan` allows them. All use the same blocks: one compilation.
SHAPES = {
    "pathx": (16, 16384, 128, 128),
    "aan": (16, 4000, 256, 128),
    "listops, P 64": (32, 2048, 128, 64),
}


@contextmanager
def variant(name: str) -> Iterator[None]:
    """ "unfused", or the precision of the products inside the fused kernels."""
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


def time_fused(device: str, dry_run: bool, table: Table) -> None:
    """Forward, and forward + backward, with peak memory; unfused and fused in turn on the same inputs."""
    if dry_run:
        # The tests run them in the interpreter, on smaller inputs.
        table.add(stage="fused", note="dry run: left out")
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
                    table.add(stage="fused", case=f"{name} {(batch, length, features, modes)}",
                              what=f"{kind}: {what}", ms=timing.median, p20=timing.p20, p80=timing.p80,
                              peak_mb=peak)  # fmt: skip
