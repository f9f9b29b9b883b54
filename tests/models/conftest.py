"""A layer of the contract's cases, built in float64."""

from __future__ import annotations

import pytest
from contract_cases import build


@pytest.fixture
def layer(case):
    return build(case)


@pytest.fixture
def causal_layer(case):
    layer = build(case)
    assert layer.causal
    return layer
