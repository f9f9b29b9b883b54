"""Runs of the toy parts inside the test process."""

from __future__ import annotations

import signal

import pytest
from training_toys import FOLDER, compose_toy


@pytest.fixture
def toy_config(monkeypatch):
    """(*overrides) -> the configuration of the toy experiment, its parts importable."""
    monkeypatch.syspath_prepend(FOLDER)
    return compose_toy


@pytest.fixture
def keep_signals():
    """Lightning ignores SIGINT for the rest of the process once it has seen one."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
