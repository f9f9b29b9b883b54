"""Resume from checkpoints: read them safely and compare them with the run that is to continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..checkpoint import check_entries, read_checkpoint
from ..config import Config, OptimizerConfig
from ..errors import UsageError
from .optimizers import fits, fresh_state

# Where files lie, where parts are imported from (the parts themselves are compared), and where the run computes (the
# number of processes is compared separately).
WHERE = (
    *("imports", "data_dir", "runs_dir", "resume"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "training.num_workers"),
)
# When the run ends, and which checkpoints are kept.
_WHEN = (
    *("training.max_epochs", "training.max_steps", "training.max_minutes", "training.target"),
    *("training.patience", "training.min_delta", "training.requeue"),
    *("training.checkpoint_minutes", "training.checkpoint_steps", "training.keep_checkpoints"),
)
# The name of training.target in checkpoints of version 0.1.
_FORMER = ("training.target_accuracy",)
# What the run prints and logs.
SAYS = (
    *("trainer.log_every_n_steps", "trainer.progress_bar", "trainer.progress_seconds"),
    *("training.stuck_steps", "training.train_eval_samples"),
    "logger",
)
# Keys that a resumed run may change; every other key must be as it was.
_FREE = (*WHERE, *_WHEN, *_FORMER, *SAYS)

# Entries of a checkpoint that lightning and this program read.
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
        UsageError: the file is missing, damaged (every byte is checked), or not such a checkpoint; names other
            checkpoints of the folder that can be read.
    """
    try:
        return _read(Path(path))
    except UsageError as error:
        raise UsageError(f"{error} {other_checkpoints(path)}") from error


def other_checkpoints(path: str | Path) -> str:
    """A sentence that names the checkpoints beside `path` that can be resumed in its place."""
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

    Where the run computes, when it ends and what it prints may change (`_FREE`). `world` is the number of processes; if
    it is None, it is not compared, because it is known only once there is a trainer.

    Raises:
        UsageError: lists what differs, as it was and as it is now.
    """
    # A key that the checkpoint lacks did not exist then, and the run behaved as with its default.
    then, now = _completed(checkpoint["run"]["config"], asdict(Config())), asdict(config)
    differences = [
        f"  {key}: {before!r} in the checkpoint, {after!r} now"
        for key, before, after in _differences("", then, now)
        if key not in _FREE and not key.startswith("logger.")
    ]
    if world is not None and checkpoint["run"]["world"] != world:
        differences.append(f"  processes: {checkpoint['run']['world']} in the checkpoint, {world} now")
    if differences:
        raise UsageError(
            "The checkpoint belongs to a run with other settings:\n"
            + "\n".join(differences)
            + "\nRepeat the command of that run with resume=... added, or start a new run without it."
        )


def check_optimizer(
    checkpoint: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], config: OptimizerConfig, path: str
) -> None:
    """Refuse optimizer states that do not fit the parameters: a fused kernel would read past the end of a state.

    A parameter without a state is accepted: it has had no gradient yet.

    Args:
        checkpoint: as `load_checkpoint` returns it.
        groups: of `parameter_groups`.
        config: of the optimizer.
        path: of the checkpoint, for the message.
    Raises:
        UsageError: no optimizer or schedule, or several; states that are missing or of another shape.
    """
    wrong = [
        f"{key} holds {len(checkpoint[key])} states, 1 is needed"
        for key in ("optimizer_states", "lr_schedulers")
        if len(checkpoint[key]) != 1
    ]
    if not wrong and (place := _wrong_state(checkpoint["optimizer_states"][0], groups, config)):
        wrong = [f"the optimizer's moments of {place} are missing or of another shape"]
    if wrong:
        raise UsageError(
            f"{path} cannot be restored: {', '.join(wrong)}. It is damaged or was made by another program. "
            f"{other_checkpoints(path)}"
        )


def _wrong_state(state: Any, groups: Sequence[Mapping[str, Any]], config: OptimizerConfig) -> str | None:
    """Name of the first parameter whose state does not fit; other damage is found as torch loads the state."""
    try:
        places = [place for group in state["param_groups"] for place in group["params"]]
        owners = [
            (group, *pair) for group in groups for pair in zip(group["param_names"], group["params"], strict=True)
        ]
        for place, (group, name, parameter) in zip(places, owners, strict=False):
            own = state["state"].get(place)
            if own and not fits(own, fresh_state(parameter, group, config)):
                return name
    except (AttributeError, KeyError, TypeError):
        return None
    return None


def _completed(then: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration `then`, with defaults for the keys that it lacks."""
    found = {**defaults, **then}
    for key, value in defaults.items():
        if isinstance(value, dict) and value and isinstance(then.get(key), Mapping):
            found[key] = _completed(then[key], value)
    return found


def _differences(path: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """(key, before, after) of every leaf that differs; a key is its path, with dots."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            found
            for key in sorted({*before, *after})
            for found in _differences(f"{path}.{key}" if path else key, before.get(key), after.get(key))
        ]
    return [] if before == after else [(path, before, after)]
