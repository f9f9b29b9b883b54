"""The fused SSM kernels against the float64 loop, cut in other ways than `cut()`: more blocks, longer chunks."""

import torch
from fused_cases import B, H, P, cut, deviations, inputs

from fractal_ssm.ops.ssm import ssm
from fractal_ssm.ops.ssm import triton as triton_backend


def test_more_modes_and_features_than_a_block_holds(fused):
    fused(cut(block_p=2, block_k=2, block_h=2, sum_h=2))
    assert max(deviations(inputs(3, modes=3, features=3, out_features=3))) < 1e-6


def test_several_blocks_of_chunks_a_program(fused, monkeypatch):
    """One program for the whole sum, and one partial sum a block, agree with the loop."""
    fused(cut(sum_m=1))
    for programs in (1, 64):
        monkeypatch.setattr(triton_backend, "_PROGRAMS", programs)
        assert max(deviations(inputs(3))) < 1e-6


def test_long_sequence_with_a_slow_mode(fused):
    """513 steps in 33 chunks: no worse than three times plain float32, in values and in every gradient."""
    fused(cut(rows=16, block_m=64, sum_m=64))
    tensors = inputs(513)
    plain = deviations(tensors, backend="torch")
    for ours, theirs in zip(deviations(tensors), plain, strict=True):
        assert ours < 3 * theirs + 3e-7


def test_only_the_borders_of_chunks_are_kept(fused):
    fused(cut(rows=4))
    tensors = [t.requires_grad_() for t in inputs(10)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        ssm(*tensors, backend="triton")
    assert (B, 3, P, 2) in kept and not any(shape[:2] == (B, 10) and shape != (B, 10, H) for shape in kept)
