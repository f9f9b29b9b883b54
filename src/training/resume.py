"""Checkpoints as something to go on from: read safely, compared with the run that wants to continue."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..config import Config
from ..errors import UsageError

# What must be as it was for the continued run to be the same run, as paths into the configuration.
_FIXED = (
    "seed",
    "model",
    "dataset",
    "optimizer",
    "scheduler",
    "training.batch_size",
    "training.bucket_by_length",
    "training.limit_train_batches",
    "trainer.accumulate_grad_batches",
    "trainer.precision",
)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint of `python -m train`, read without executing anything in it (weights_only).

    Raises:
        UsageError: no such file, or not such a checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"There is no checkpoint {path}. A run keeps its own in <run folder>/checkpoints/last.ckpt.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UsageError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(checkpoint, dict) or "run" not in checkpoint:
        raise UsageError(f"{path} is not a checkpoint of this program (it has no entry 'run').")
    return checkpoint


def check_same_run(checkpoint: Mapping[str, Any], config: Config, world: int) -> None:
    """Refuse to continue under other settings, which would silently be a different experiment.

    Raises:
        UsageError: lists what differs, as it was and as it is now.
    """
    then, now = checkpoint["run"]["config"], asdict(config)
    differences = [
        f"  {key}: {before!r} in the checkpoint, {after!r} now"
        for path in _FIXED
        for key, before, after in _differences(path, _at(then, path), _at(now, path))
    ]
    if checkpoint["run"]["world"] != world:
        differences.append(f"  processes: {checkpoint['run']['world']} in the checkpoint, {world} now")
    if differences:
        raise UsageError(
            "The checkpoint belongs to a run with other settings:\n"
            + "\n".join(differences)
            + "\nRepeat the command of that run with resume=... added, or start a new run without it."
        )


def _at(tree: Mapping[str, Any], path: str) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return tree


def _differences(path: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = sorted({*before, *after})
        return [
            found for key in keys for found in _differences(f"{path}.{key}", before.get(key), after.get(key))
        ]
    return [] if before == after else [(path, before, after)]
