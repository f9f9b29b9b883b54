"""Create the run folder and test it before Hydra does, so that a problem gives one clear message."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from .errors import UsageError

_REMEDY = "It takes a folder that can be made and written in: {key}=runs/my-run, or leave it out for one in runs_dir."


class CheckRunFolder(Callback):
    """Hydra's hook before it makes `hydra.run.dir` or `hydra.sweep.dir`.

    Hydra turns an exception of a hook into a warning and goes on, so that a mistake ends the program here.
    """

    def on_run_start(self, config: DictConfig, **_: object) -> None:
        """Before a single run."""
        _check(config, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        """Before a sweep."""
        _check(config, "hydra.sweep.dir")


def _check(config: DictConfig, key: str) -> None:
    # The names of folders are built from Hydra's own configuration, which run_job sets a moment later.
    HydraConfig.instance().set_config(config)
    try:
        folder = config.hydra.run.dir if key == "hydra.run.dir" else config.hydra.sweep.dir
    except OmegaConfBaseException:
        return  # told, with its reason, when Hydra resolves the same key a moment later
    try:
        make_writable(key, str(folder))
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


def make_writable(key: str, folder: str) -> None:
    """Make the folder, with those above it, and write in it; on failure nothing of it is left.

    Args:
        key: the setting that named it, for the message.
        folder: absolute, or relative to the working directory.
    Raises:
        UsageError: blank, odd characters, a `~` that no shell expanded, or what the file system answers.
    """
    remedy = _REMEDY.format(key=key)
    if not folder.strip() or folder in ("None", "???"):
        raise UsageError(f"{key} is empty: name a folder, or leave it out for one in runs_dir.")
    if not folder.isprintable():
        raise UsageError(f"{key} holds a character that cannot be printed, got {folder[:200]!r}. {remedy}")
    if folder.startswith("~"):
        raise UsageError(f"{key}={folder}: '~' is not expanded here. Did you mean '{os.path.expanduser(folder)}'?")
    made: list[Path] = []
    try:
        path = Path(folder).absolute()
        _make(path, made)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        for done in reversed(made):
            done.rmdir()
        shown = folder if len(folder) <= 200 else f"{folder[:100]}... ({len(folder)} characters)"
        raise UsageError(f"{key}={shown} cannot be used: {_reason(error)}. {remedy}") from error


def _make(path: Path, made: list[Path]) -> None:
    missing = []
    while not path.exists():
        if path.is_symlink():
            raise NotADirectoryError(None, f"{path} is a link to {os.readlink(path)}, which does not exist")
        missing.append(path)
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(None, f"{path} is a file")
    for folder in reversed(missing):
        try:
            folder.mkdir()
        except FileExistsError:
            # Another process of the same job was quicker.
            continue
        made.append(folder)


def _reason(error: OSError) -> str:
    if error.errno is None:
        return str(error.args[1])
    return (error.strerror or str(error)).lower()
