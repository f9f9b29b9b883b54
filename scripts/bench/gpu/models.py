"""Whole models on a GPU: a training step at the shapes of ListOps and Path-X."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..timing import Table, time_gpu


@dataclass(frozen=True)
class Shape:
    batch: int
    length: int
    d_model: int
    n_layers: int
    n_tokens: int | None
    n_classes: int


SHAPES = {
    "listops": Shape(32, 2048, 128, 6, 18, 10),
    "pathx": Shape(8, 16384, 128, 6, None, 2),
}
TINY = {"tiny": Shape(2, 8, 4, 1, 5, 3)}
# Published layers at their published sizes besides ours; only options that a layer has may be named.
LAYERS: dict[str, dict[str, Any]] = {
    "fractal": {},
    "s5": {"d_state": 64, "bidirectional": False},
    "s4d": {"d_state": 64},
    "s4": {"d_state": 64},
}


def time_models(device: str, dry_run: bool, table: Table) -> None:
    """Forward, backward and AdamW step, eager and as a CUDA graph, with peak memory over idle."""
    for name, shape in (TINY if dry_run else SHAPES).items():
        for layer, options in LAYERS.items():
            case = f"{name} {layer} (B {shape.batch}, L {shape.length}, H {shape.d_model}, {shape.n_layers} blocks)"
            try:
                _time_model(case, {"name": layer, **options}, shape, device, dry_run, table)
            except Exception as error:
                # A layer that fails counts as failed, but must not prevent the rows of the others.
                table.add(stage="models", case=case, ok=False, note=f"{type(error).__name__}: {error}"[:300])


def _time_model(case: str, layer: dict[str, Any], shape: Shape, device: str, dry_run: bool, table: Table) -> None:
    from fractal_ssm.models.backbone import SequenceModel

    if dry_run:
        layer = {key: 16 if key == "d_state" else value for key, value in layer.items()}
    entry = {"n_tokens": shape.n_tokens} if shape.n_tokens else {"d_input": 1}
    sizes = {"l_max": shape.length, "d_model": shape.d_model, "n_layers": shape.n_layers, "n_classes": shape.n_classes}
    model = SequenceModel(layer, **entry, **sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=device == "cuda")
    inputs = (
        torch.randint(1, shape.n_tokens, (shape.batch, shape.length), device=device)
        if shape.n_tokens
        else torch.randn(shape.batch, shape.length, 1, device=device)
    )
    target = torch.randint(shape.n_classes, (shape.batch,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()
        return loss

    loss = step().item()
    if dry_run:
        table.add(stage="models", case=case, ok=loss == loss, note="dry run")
        return
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    peak = (torch.cuda.max_memory_allocated() - before) / 1e6
    eager = time_gpu([step], graph=False, repeats=9)
    graph, note = _graph_time(step)
    table.add(stage="models", case=case, what="training step", ok=loss == loss, ms=graph, eager_ms=eager.median,
              p20=eager.p20, p80=eager.p80, peak_mb=peak, note=note)  # fmt: skip


def _graph_time(step: Callable[[], object]) -> tuple[float | str, str]:
    try:
        return time_gpu([step], graph=True, repeats=9).median, "ms is the CUDA graph; p20, p80 are eager"
    except RuntimeError as error:
        # A model that synchronises with the host cannot be captured; report that as a result, not as a failure.
        torch.cuda.synchronize()
        return "", f"not capturable: {error}".splitlines()[0][:200]
