"""The one-pass scan kernel against the double-precision loop."""

import pytest
import torch
from scan_cases import errors, make, oracle, run

from fractal_ssm import scan
from fractal_ssm.ops.scan import triton as triton_backend


@pytest.fixture
def one_pass(tiny, monkeypatch):
    """The one-pass kernel with chunks of 4 steps in groups of 2: 26 steps are seven chunks in four groups."""

    def plan(batch, length, width, adjoint, constant):
        lanes = batch * -(-width // 8)
        return triton_backend.OnePassPlan(log_r=1, log_s=1, block_w=8, chunks=-(-length // 4), lanes=lanes, group=2)

    monkeypatch.setattr(triton_backend, "ONE_PASS", True)
    monkeypatch.setattr(triton_backend, "one_pass_plan", plan)


@pytest.mark.parametrize("mode", ["constant", "shared", "full"])
@pytest.mark.parametrize("reverse", [False, True])
def test_one_pass_agrees_with_the_oracle(one_pass, mode, reverse):
    for length, dtype in ((9, torch.float32), (26, torch.complex64)):
        case = make(mode, dtype, length, batch=2, modes=3, reverse=reverse, x0=length == 26, seed=length)
        assert max(errors(run(case, scan, backend="triton"), oracle(case))) < 2e-6, length
