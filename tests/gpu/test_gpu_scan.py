"""The Triton scan on a GPU: every kind of gate, direction and length, against double precision on the CPU."""

import pytest
import torch
from gpu_cases import MODES, deviation, run_scan, scan_inputs

from fractal_ssm import scan

pytestmark = pytest.mark.gpu

LENGTHS = (1, 2, 3, 5, 7, 31, 33, 63, 65, 127, 129, 255, 257, 1000, 1023, 1025, 4095, 4097, 16384, 65537)
# Grids past 65535, modes either side of a block, many short samples.
SHAPES = (
    (70000, 8, 1), (1, 8, 70001), (5, 300, 63), (5, 300, 65), (2, 1000, 129), (1, 131073, 1), (1, 65535, 2),
    (1, 65536, 2), (300, 1000, 7), (4, 2048, 256),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
@pytest.mark.parametrize("mode", MODES)
def test_every_length_and_direction(device, tiny, dtype, mode):
    for length in (3,) if tiny else LENGTHS:
        for reverse in (False, True):
            # What is freed here is what the kernels find in their results' memory.
            torch.full((3, length, 5), float("nan"), dtype=dtype, device=device)
            inputs = scan_inputs(mode, dtype, 2 if tiny else 3, length, 2 if tiny else 5)
            found = run_scan(inputs, device, "triton", reverse)
            assert deviation(found, run_scan(inputs, "cpu", "native", reverse, wide=True)) < 2e-4, (length, reverse)


@pytest.mark.parametrize("mode", ["constant", "full"])
def test_sizes_of_grids_and_blocks(device, tiny, mode):
    for shape in ((3, 5, 1), (2, 5, 3)) if tiny else SHAPES:
        inputs = scan_inputs(mode, torch.complex64, *shape)
        found = run_scan(inputs, device, "triton", False)
        assert deviation(found, run_scan(inputs, "cpu", "native", False, wide=True)) < 2e-4, shape


@pytest.mark.parametrize("mode", MODES)
def test_the_same_inputs_give_the_same_bits(device, tiny, mode):
    inputs = scan_inputs(mode, torch.complex64, *((2, 6, 3) if tiny else (8, 5000, 64)))
    first, second = (run_scan(inputs, device, "triton", False) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_more_than_2_to_the_31_elements(device, tiny):
    if tiny or torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("under 40 GB of memory")
    b = torch.randn(2049, 16384, 65, device=device)
    a = torch.full((65,), 0.99, device=device)
    for reverse in (False, True):
        x = scan(a, b, reverse=reverse, backend="triton")
        # The last channels alone, in double precision.
        tail = scan(a[-1:].double().cpu(), b[-1:, :, -1:].double().cpu(), reverse=reverse, backend="native")
        assert deviation([x[-1:, :, -1:]], [tail]) < 2e-4
        del x
