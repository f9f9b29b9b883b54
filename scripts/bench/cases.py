"""The benchmark's cases, as data. Inputs are complex64 (or float32) with |a| between 0.95 and 0.9999."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_LAYERS = ("s4d", "s4")


@dataclass(frozen=True)
class Case:
    """One case. Shapes by kind: "scan" (B, L, P); "layer" (B, L, H, P stored modes); "kernel" (H, L, P stored modes);
    "s4d" and "s4", whole layers, (B, L, H, N); "training", a training step of S5's ListOps model, (B, L, H, blocks);
    "stepping", one position of every layer that has a state, (B, H, positions seen before)."""

    kind: str
    shape: tuple[int, ...]
    mode: str = "constant"
    # Contenders to leave out because they take minutes or gigabytes and show nothing new.
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        fixed = {"kernel": "kernel", "training": "training step", "stepping": "one position"}
        words = fixed.get(self.kind, f"{self.kind}{' layer' * (self.kind in WHOLE_LAYERS)} {self.mode}")
        return f"{words} {self.shape}"


CASES = (
    Case("scan", (8, 1024, 64)),
    Case("scan", (8, 4096, 64)),
    Case("scan", (2, 16384, 64)),
    Case("scan", (8, 4096, 64), "shared"),
    Case("scan", (8, 4096, 64), "full"),
    Case("layer", (8, 4096, 128, 32)),
    Case("kernel", (128, 4096, 32)),
    *(Case(kind, (8, 4096, 128, 64), mode) for kind in WHOLE_LAYERS for mode in ("causal", "bidirectional")),
    Case("training", (4, 2048, 128, 8)),
    *(Case("stepping", shape) for shape in ((1, 128, 0), (1, 128, 100_000), (16, 128, 0))),
)
QUICK = (
    Case("scan", (2, 64, 4)),
    Case("scan", (2, 64, 4), "full"),
    Case("layer", (2, 64, 8, 4)),
    Case("kernel", (4, 64, 4)),
    *(Case(kind, (2, 32, 4, 8), mode) for kind in WHOLE_LAYERS for mode in ("causal", "bidirectional")),
    Case("training", (2, 32, 8, 2)),
    Case("stepping", (2, 8, 64)),
)

# Curves: our backends and torch's copy over L at (2, L, 64) and over P at (4, 4096, P).
CURVES = {
    "L": [Case("scan", (2, length, 64)) for length in (1024, 2048, 4096, 8192, 16384, 32768, 65536)],
    "P": [Case("scan", (4, 4096, modes)) for modes in (1, 4, 16, 64, 256)],
}
QUICK_CURVES = {"L": [Case("scan", (2, length, 4)) for length in (16, 64)]}
