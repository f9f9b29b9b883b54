"""The layers of the contract's cases, which live with the tests of the models."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from contract_cases import build


@pytest.fixture
def causal_layer(case):
    layer = build(case)
    assert layer.causal
    return layer
