"""Everything under tests/ops runs with torch's uninitialised memory filled with NaN, so that a stray read shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before)
