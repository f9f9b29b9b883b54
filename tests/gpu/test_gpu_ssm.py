"""The SSM on a GPU, float32 against double precision on the CPU: around the Triton scan, and as fused kernels."""

import pytest
import torch
from gpu_cases import MODES, as_precision, deviation, gates, with_gradients

from fractal_ssm.ops.ssm import ssm
from fractal_ssm.ops.ssm import triton as fused_kernels

pytestmark = pytest.mark.gpu


def draw(mode, batch, length, features, out, modes):
    """u, Lambda_bar, B, C, x0."""
    matrices = [torch.randn(size, dtype=torch.complex64) / size[1] for size in ((modes, features), (out, modes))]
    a = gates(mode, torch.complex64, batch, length, modes)
    return [torch.randn(batch, length, features), a, *matrices, torch.randn(batch, modes, dtype=torch.complex64)]


def run(tensors, device, backend, wide=False, **options):
    tensors = [as_precision(t, wide, device) for t in tensors]
    batch, length, _ = tensors[0].shape
    seeds = [
        torch.arange(y.numel(), device=device, dtype=torch.float64).cos().view(y.shape).to(y)
        for y in (tensors[0].new_empty(batch, length, len(tensors[3])), tensors[4])
    ]
    return with_gradients(lambda *parts: ssm(*parts, backend=backend, **options), tensors, seeds)


@pytest.mark.parametrize("mode", MODES)
def test_around_the_scan(device, tiny, mode):
    tensors = draw(mode, *((2, 5, 3, 3, 2) if tiny else (4, 3001, 96, 96, 48)))
    expected = run(tensors, "cpu", "native", wide=True)
    for checkpoint in (False, True):
        assert deviation(run(tensors, device, "triton", checkpoint=checkpoint), expected) < 2e-4


# Short last chunks, sizes that are no powers of two, more modes than a block.
@pytest.mark.parametrize(("sizes", "reverse"), [((3, 257, 24, 24, 5), True), ((2, 4097, 96, 130, 48), False)])
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_fused_kernels(device, tiny, monkeypatch, sizes, reverse, precision):
    """Off by default (`FUSED`) until they have passed here and won in `python -m scripts.bench.gpu`."""
    if tiny:
        pytest.skip("the interpreter's own tests cut them smaller (tests/ops/interpreter/test_fused.py)")
    if precision != "ieee" and torch.version.hip:
        pytest.skip("for NVIDIA only")
    monkeypatch.setattr(fused_kernels, "FUSED", True)
    monkeypatch.setattr(fused_kernels, "PRECISION", precision)
    tensors = draw("constant", *sizes)
    lengths = None if reverse else torch.randint(1, sizes[1] + 1, (sizes[0],))
    expected = run(tensors, "cpu", "native", wide=True, reverse=reverse, lengths=lengths)
    lengths = None if lengths is None else lengths.to(device)
    assert deviation(run(tensors, device, "triton", reverse=reverse, lengths=lengths), expected) < 2e-4
