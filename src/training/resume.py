"""Checkpoints as something to go on from: read safely, compared with the run that wants to continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoint import check_entries, read_checkpoint
from ..config import Config
from ..errors import UsageError

# Where things lie, where parts come from (the parts themselves are compared) and where it runs (the number of processes
# is compared by itself).
WHERE = (
    *("imports", "data_dir", "runs_dir", "resume"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "training.num_workers"),
)
# When it ends, and what is kept until then.
_WHEN = (
    *("training.max_epochs", "training.max_steps", "training.max_minutes", "training.target"),
    *("training.checkpoint_minutes", "training.requeue"),
)
# The name of training.target in checkpoints of version 0.1.
_FORMER = ("training.target_accuracy",)
# What it says.
SAYS = (
    *("trainer.log_every_n_steps", "trainer.progress_bar", "trainer.progress_seconds"),
    *("training.stuck_steps", "training.train_eval_samples"),
)
# What a continued run may have otherwise and still be the same run; every other key must be as it was.
_FREE = (*WHERE, *_WHEN, *_FORMER, *SAYS)

# What lightning and this program read of a checkpoint.
_ENTRIES = {
    "state_dict": Mapping,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "global_step": int,
    "run.config": dict,
    "run.data": dict,
    "run.world": int,
    "run.steps": int,
}


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint of `python -m train`, read without executing anything in it (weights_only).

    Raises:
        UsageError: no such file, damaged (every byte is checked), or not such a checkpoint; names other checkpoints of
            the folder that can be read.
    """
    try:
        return _read(Path(path))
    except UsageError as error:
        raise UsageError(f"{error} {other_checkpoints(path)}") from error


def other_checkpoints(path: str | Path) -> str:
    """A sentence: which checkpoints beside `path` can be resumed in its place."""
    others = []
    for other in sorted(Path(path).absolute().parent.glob("*.ckpt")):
        if other.name != Path(path).name:
            try:
                step = _read(other)["global_step"]
            except UsageError:
                continue
            where = Path(path).parent / other.name
            others.append(f"{other.name} is at step {step} and can be resumed: resume={where}.")
    return " ".join(others) or "A run keeps its own in <run folder>/checkpoints/last.ckpt and best.ckpt."


def _read(path: Path) -> dict[str, Any]:
    checkpoint = read_checkpoint(path)
    check_entries(path, checkpoint, _ENTRIES)
    return checkpoint


def check_same_run(checkpoint: Mapping[str, Any], config: Config, world: int | None = None) -> None:
    """Refuse to continue under other settings, which would silently be a different experiment.

    Free are where it runs, on as many processes, when it ends and what it prints (`_FREE`). Without `world`, the number
    of processes, that number is not compared: it is known only once there is a trainer.

    Raises:
        UsageError: lists what differs, as it was and as it is now.
    """
    then, now = checkpoint["run"]["config"], asdict(config)
    differences = [
        f"  {key}: {before!r} in the checkpoint, {after!r} now"
        for key, before, after in _differences("", then, now)
        if key not in _FREE
    ]
    if world is not None and checkpoint["run"]["world"] != world:
        differences.append(f"  processes: {checkpoint['run']['world']} in the checkpoint, {world} now")
    if differences:
        raise UsageError(
            "The checkpoint belongs to a run with other settings:\n"
            + "\n".join(differences)
            + "\nRepeat the command of that run with resume=... added, or start a new run without it."
        )


def check_optimizer(checkpoint: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], path: str) -> None:
    """Refuse moments that are not those of the parameters: AdamW's fused kernel reads as far as the parameter goes.

    A parameter without moments has had no gradient yet.

    Args:
        groups: of `parameter_groups`.
        path: of the checkpoint, for the message.
    Raises:
        UsageError: no optimizer or schedule, or several; moments that are missing or of another shape.
    """
    wrong = [
        f"{key} holds {len(checkpoint[key])} states, 1 is needed"
        for key in ("optimizer_states", "lr_schedulers")
        if len(checkpoint[key]) != 1
    ]
    if not wrong and (place := _wrong_moments(checkpoint["optimizer_states"][0], groups)):
        wrong = [f"the optimizer's moments of {place} are missing or of another shape"]
    if wrong:
        raise UsageError(
            f"{path} cannot be restored: {', '.join(wrong)}. It is damaged or was made by another program. "
            f"{other_checkpoints(path)}"
        )


def _wrong_moments(state: Any, groups: Sequence[Mapping[str, Any]]) -> str | None:
    """Name of the first parameter whose moments do not fit; other damage is found as torch loads the state."""
    try:
        places = [place for group in state["param_groups"] for place in group["params"]]
        moments = state["state"]
        names = [name for group in groups for name in group["param_names"]]
        parameters = [parameter for group in groups for parameter in group["params"]]
        for place, name, parameter in zip(places, names, parameters, strict=False):
            own = moments.get(place)
            if own and not all(_is_shaped(own.get(key), parameter.shape) for key in ("exp_avg", "exp_avg_sq")):
                return name
            if own and not _is_shaped(own.get("step"), ()):
                return name
    except (AttributeError, KeyError, TypeError):
        return None
    return None


def _is_shaped(value: Any, shape: Sequence[int]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == tuple(shape)


def _differences(path: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """(key, before, after) of every leaf that differs; a key is its path, with dots."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            found
            for key in sorted({*before, *after})
            for found in _differences(f"{path}.{key}" if path else key, before.get(key), after.get(key))
        ]
    return [] if before == after else [(path, before, after)]
