"""Reads checkpoint files from untrusted sources: executes nothing in them and verifies every checksum."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import UsageError


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint of `python -m train`, read by torch's weights_only reader.

    Raises:
        UsageError: not a path; no such file; a damaged or truncated file; not a checkpoint, or one of another program.
    """
    if not isinstance(path, (str, Path)):
        raise UsageError(
            f"A checkpoint is named by a path, got {type(path).__name__}. Pass '<run folder>/checkpoints/best.ckpt'."
        )
    try:
        if not Path(path).is_file():
            raise UsageError(
                f"There is no checkpoint file {str(path)!r}. A run keeps its own in <run folder>/checkpoints/: "
                f"best.ckpt, last.ckpt."
            )
        with zipfile.ZipFile(path) as archive:
            # torch writes checksums but does not verify them.
            damaged = archive.testzip()
        checkpoint = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except UsageError:
        raise
    except Exception as error:
        # Catch everything: damaged bytes make the readers raise any exception.
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(
            f"{str(path)!r} cannot be read as a checkpoint: {said}. Take a file that `python -m train` wrote, "
            f"<run folder>/checkpoints/best.ckpt or last.ckpt, whole."
        ) from error
    if damaged:
        raise UsageError(
            f"The checkpoint {str(path)!r} is damaged: the checksum of its part {damaged} is wrong. Copy it again, or "
            f"take the other file of its folder (best.ckpt, last.ckpt)."
        )
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("run"), dict):
        kind = f"a {type(checkpoint).__name__}"
        if isinstance(checkpoint, dict):
            kind = f"entries {', '.join(sorted(map(str, checkpoint))[:5])}"
        raise UsageError(
            f"{str(path)!r} is not a checkpoint of `python -m train`: it has no entry 'run' ({kind}). Load the weights "
            f"of a bare layer with layer.load_state_dict(torch.load(path, weights_only=True))."
        )
    return checkpoint


def check_entries(path: str | Path, checkpoint: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Refuse an incomplete checkpoint.

    Args:
        path: its file, for the message.
        kinds: name of an entry, dotted for a nested one ("run.config") -> type.
    Raises:
        UsageError: names the entries that are missing or of another type.
    """
    wrong = [name for name, kind in kinds.items() if not isinstance(_entry(checkpoint, name), kind)]
    if wrong:
        raise UsageError(
            f"{str(path)!r} is not a whole checkpoint of `python -m train`: {', '.join(wrong)} missing or wrong. Take "
            f"best.ckpt or last.ckpt of a run folder."
        )


def _entry(node: Any, name: str) -> Any:
    for key in name.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
