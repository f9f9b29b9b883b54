"""Runs of the toy parts inside the test process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from training_toys import FOLDER, compose_toy

from fractal_ssm.train import run


@pytest.fixture
def toy_config(monkeypatch):
    """(*overrides) -> the configuration of the toy experiment, its parts importable."""
    monkeypatch.syspath_prepend(FOLDER)
    return compose_toy


@pytest.fixture
def keep_signals():
    """Restore the handlers: lightning ignores SIGINT for the rest of the process once it has seen one."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(options) -> the folder of an uninterrupted run."""
    folders: dict[tuple, Path] = {}

    def straight(*options: str) -> Path:
        if options not in folders:
            folders[options] = tmp_path_factory.mktemp("whole")
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(FOLDER)
                run(compose_toy(*options), folders[options])
        return folders[options]

    return straight
