"""Tests of the GPU kernels: `pytest -m gpu tests/gpu` on a machine with a CUDA or ROCm device; skipped elsewhere.

With TRITON_INTERPRET=1 the same tests run tiny, on the CPU; `test_dry_run` does that, so that they are never dead code.
"""

import pytest
import torch

from fractal_ssm.ops.runtime.backends import interpreting


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    if interpreting():
        return "cpu"
    pytest.skip("no CUDA or ROCm device here")


@pytest.fixture
def tiny(device) -> bool:
    """Whether Triton's interpreter runs the test, a millisecond an operation."""
    return device == "cpu"
