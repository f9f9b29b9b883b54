"""Details from the best checkpoint of a run that its record lacks: rows of docs/results/powerlaw-details.csv."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch.utils.data import DataLoader

from fractal_ssm.data.base import IGNORED
from fractal_ssm.data.powerlaw.warp import SPEEDS
from fractal_ssm.errors import UsageError
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.models.build import load_model
from fractal_ssm.registry import datasets

from .. import records
from .rows import NAME, row_of

# kind: "alpha" (where: block.index), "damping" (where: block.quantile), "delay" (where: steps), "speed" (where: speed,
# scaled or not). value: alpha; - log |Lambda_bar| per step; accuracy; squared error divided by the optimum.
COLUMNS = ("experiment", "data", "settings", "seed", "started", "kind", "where", "value")
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def gather(runs: Iterable[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Add the details of runs to docs/results/powerlaw-details.csv; runs that it already has are not evaluated again.

    A later run with the same experiment, settings and seed replaces the details of an earlier one.
    """
    target = records.RESULTS / f"{NAME}-details.csv"
    rows = records.read(target) if target.exists() else []
    held: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        held.setdefault(_run(row), []).append(row)
    for folder, record in runs:
        head = {key: str(value) for key, value in row_of(record).items() if key in COLUMNS}
        known = held.get(_run(head))
        if not known or known[0]["started"] < head["started"]:
            held[_run(head)] = [head | detail for detail in details(folder, record)]
    ordered = [row for key in sorted(held) for row in held[key]]
    records.write(target, COLUMNS, ordered)
    return ordered


def _run(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[key]) for key in ("experiment", "data", "settings", "seed"))


def details(folder: Path, record: dict[str, Any]) -> list[dict[str, str]]:
    """Rows of one run: kind, where, value; none for a task of which no figure shows more than the score."""
    reading = _READINGS.get(record["dataset"])
    if reading is None:
        return []
    model = load_model(folder / "checkpoints" / "best.ckpt").eval()
    found = reading(model, yaml.safe_load((folder / "config.yaml").read_text())["dataset"])
    return [{"kind": kind, "where": where, "value": f"{value:.8g}"} for kind, where, value in found]


def modes(model: SequenceModel, node: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Trained alphas, and quantiles over modes of the damping per step, for layers with a single set of modes."""
    found = []
    for number, block in enumerate(model.blocks):
        layer = block.layer
        if getattr(layer, "learn_alpha", getattr(layer, "_family", None)):
            found += [("alpha", f"{number}.{index}", float(alpha)) for index, alpha in enumerate(layer.alphas)]
        if (damping := dampings(layer)) is not None:
            found += [("damping", f"{number}.{share:g}", float(np.quantile(damping, share))) for share in _QUANTILES]
    return found


def dampings(layer: torch.nn.Module) -> np.ndarray | None:
    """(P,) damping per step, - log |Lambda_bar|; None for a layer without a single set of modes."""
    with torch.no_grad():
        if hasattr(layer, "Lambda_bar"):
            return -layer.Lambda_bar.abs().log().numpy()
        if hasattr(layer, "Lambda") and getattr(layer, "log_dt", None) is not None:
            if layer.Lambda.shape == layer.log_dt.shape:
                return (-layer.Lambda.real * layer.log_dt.exp()).numpy()
    return None


def by_delay(model: SequenceModel, node: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Accuracy of recall on the test split for each delay."""
    data, batches = _test(json.dumps(node))
    right, asked = np.zeros(data.scales), np.zeros(data.scales)
    for batch in batches:
        with torch.no_grad():
            said = model(batch.inputs, batch.lengths).argmax(-1).numpy()
        targets = batch.targets.numpy()
        scored = targets != IGNORED
        scale = np.log2(data.delays(batch.inputs.numpy())[scored]).astype(int)
        asked += np.bincount(scale, minlength=data.scales)
        right += np.bincount(scale, (said == targets)[scored], minlength=data.scales)
    return [("delay", str(2**k), r / n) for k, (r, n) in enumerate(zip(right, asked, strict=True)) if n]


def by_speed(model: SequenceModel, node: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Squared error divided by that of the Wiener filter at each speed, with and without the speed as dt_scale.

    A discrete layer (an LRU) refuses a dt_scale, and so has the second only.
    """
    found = []
    for speed in SPEEDS:
        told = json.dumps({**node, "speed": speed})
        (_, batches), optimum = _test(told), _optimum(told)
        for scaled in (True, False):
            try:
                error = _squared_error(model, batches, speed if scaled else 1.0)
            except UsageError:
                continue
            found.append(("speed", f"{speed:g} {'scaled' if scaled else 'as trained'}", error / optimum))
    return found


@torch.no_grad()
def _squared_error(model: SequenceModel, batches: Iterable[Any], dt_scale: float) -> float:
    total = count = 0.0
    for batch in batches:
        output = model(batch.inputs, batch.lengths, dt_scale)
        total += float((output - batch.targets).double().square().sum())
        count += output.numel()
    return total / count


# Dataset -> what is read from its runs.
_READINGS = {"powerlaw-predict": modes, "powerlaw-recall": by_delay, "powerlaw-warp": by_speed}


@functools.cache
def _test(node: str) -> tuple[Any, list[Any]]:
    """The dataset of a configuration (JSON) and the batches of its test split, which all of its runs share."""
    data = datasets.build(json.loads(node), data_dir=Path("data"))
    return data, list(DataLoader(data.split("test"), batch_size=50, collate_fn=data.collate))


@functools.cache
def _optimum(node: str) -> float:
    return _test(node)[0].reference()["optimal"]
