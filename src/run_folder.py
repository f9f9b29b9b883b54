"""Creates the run folder and tests that it is writable before Hydra does, to report every problem in one message."""

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
    """Hydra's hook before it creates `hydra.run.dir` or `hydra.sweep.dir`.

    Hydra turns an exception in a hook into a warning and continues, so a mistake exits the program here.
    """

    def on_run_start(self, config: DictConfig, **_: object) -> None:
        """Before a single run."""
        _check(config, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        """Before a sweep."""
        _check(config, "hydra.sweep.dir")


def _check(config: DictConfig, key: str) -> None:
    # Resolving the folder's name needs HydraConfig, which Hydra's run_job sets only later.
    HydraConfig.instance().set_config(config)
    try:
        folder = config.hydra.run.dir if key == "hydra.run.dir" else config.hydra.sweep.dir
    except OmegaConfBaseException:
        return  # Hydra resolves the same key a moment later and reports the reason
    try:
        make_writable(key, str(folder))
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


def make_writable(key: str, folder: str) -> None:
    """Create the folder with its parents and write a temporary file in it; on failure remove all folders created.

    Args:
        key: the setting that named the folder, for the message.
        folder: absolute, or relative to the working directory.
    Raises:
        UsageError: a blank name, unprintable characters, a `~` that no shell expanded, or an error of the file system.
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
            # Another process of the same job has just created it.
            continue
        made.append(folder)


def _reason(error: OSError) -> str:
    if error.errno is None:
        return str(error.args[1])
    return (error.strerror or str(error)).lower()
