"""The fused SSM kernels against the float64 loop: every length, output, and kind of input."""

import pytest
import torch
from fused_cases import deviations, inputs

from fractal_ssm.ops.ssm import ssm
from fractal_ssm.ops.ssm import triton as triton_backend


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_every_length_forward_and_backward(fused, length, reverse):
    assert max(deviations(inputs(length, seed=length), reverse=reverse)) < 1e-6


def test_the_kernels_are_what_runs(fused, monkeypatch):
    def instead(*arguments):
        raise NotImplementedError

    monkeypatch.setattr(triton_backend, "forward", instead)
    with pytest.raises(NotImplementedError), torch.no_grad():
        ssm(*inputs(3), backend="triton")


@pytest.mark.parametrize("which", [(True, False), (False, True)])
def test_gradient_through_one_output_alone(fused, which):
    assert max(deviations(inputs(3), which=which)) < 1e-6


def test_without_an_initial_state(fused):
    tensors = inputs(5)[:4]
    assert max(deviations(tensors, conj_sym=False)) < 1e-6


def test_lengths_of_samples(fused):
    assert max(deviations(inputs(5), lengths=torch.tensor([3, 1]))) < 1e-6


def test_gates_of_each_sample_s_own(fused):
    assert max(deviations(inputs(5, per_sample=True), reverse=True)) < 1e-6


def test_half_precision_input_is_cast_when_loaded(fused):
    u, *rest = inputs(5)
    half = u.half()
    y, last = ssm(half, *rest, backend="triton")
    expected, state = ssm(half.float(), *rest, backend="triton")
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, expected.half(), rtol=0, atol=0)
    torch.testing.assert_close(last, state, rtol=0, atol=0)


def test_second_derivatives(fused):
    def penalty(tensors, backend):
        y, _ = ssm(*tensors, backend=backend)
        (gu,) = torch.autograd.grad(y.square().sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(gu.square().sum(), tensors)

    found, expected = ([t.requires_grad_() for t in inputs(2)] for _ in range(2))
    torch.testing.assert_close(penalty(found, "triton"), penalty(expected, "torch"), rtol=1e-4, atol=1e-4)


def test_same_bits_twice(fused):
    tensors = [t.requires_grad_() for t in inputs(2)]
    runs = [torch.autograd.grad(ssm(*tensors, backend="triton")[0].sum(), tensors) for _ in range(2)]
    torch.testing.assert_close(*runs, rtol=0, atol=0)
