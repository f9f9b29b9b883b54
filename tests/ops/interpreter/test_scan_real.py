"""The scan kernels on real numbers against the double-precision loop. The interpreter takes half a millisecond a
scanned element, so tiles are tiny here; that also puts several tiles and chunks into short sequences. Lengths around
those of a tile and a chunk are tried on complex numbers."""

import pytest
import torch
from scan_cases import MODES, errors, make, oracle, run

from fractal_ssm import scan


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 8, 17])
def test_kernels_agree_with_the_oracle(tiny, mode, reverse, length):
    case = make(mode, torch.float32, length, batch=2, reverse=reverse, x0=length in (8, 17), seed=length)
    assert max(errors(run(case, scan, backend="triton"), oracle(case))) < 2e-6
