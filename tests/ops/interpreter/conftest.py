"""Tests of the Triton kernels in Triton's interpreter. It must be switched on before triton is first imported, so they
run in processes of their own, started by `tests/ops/test_interpreted_*.py`, and are not collected elsewhere."""

import os

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture
def tiny(monkeypatch):
    """Scan tiles of 4 steps by 8 reals, chunks of 8 steps: lengths up to 8 are one chunk, 17 is three."""
    from fractal_ssm.ops.scan import triton as triton_backend

    def plan(batch, length, width, processors, adjoint):
        return triton_backend.Plan(block_l=4, block_w=8, rows=8, chunks=-(-length // 8))

    monkeypatch.setattr(triton_backend, "plan", plan)


@pytest.fixture
def fused(monkeypatch):
    """Switches the fused kernels on, cut as the returned function says."""
    from fused_cases import cut

    from fractal_ssm.ops.scan import triton as scan_backend
    from fractal_ssm.ops.ssm import triton as triton_backend

    def scan_plan(batch, length, width, processors, adjoint):
        return scan_backend.Plan(block_l=4, block_w=8, rows=1 << 20, chunks=1)

    def choose(plan):
        monkeypatch.setattr(triton_backend, "plan", lambda *sizes: plan)
        return plan

    monkeypatch.setattr(triton_backend, "FUSED", True)
    monkeypatch.setattr(scan_backend, "plan", scan_plan)
    choose(cut())
    return choose
