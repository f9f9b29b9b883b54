"""Gradients that are to be differentiated again equal those that are not, however the inputs hang together."""

from __future__ import annotations

import pytest
import torch

from fractal_ssm.ops.convolution import convolve
from fractal_ssm.ops.ssm import bidirectional_ssm, ssm

B, L, H, P = 2, 5, 4, 3


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


u, gates, kernel = draw(B, L, H), torch.full((P,), 0.5 + 0.1j, dtype=torch.complex128).requires_grad_(), draw(H, L)
B_bar, C = draw(P, H, dtype=torch.complex128), draw(H, P, dtype=torch.complex128)
CASES = {
    "a kernel given twice": (lambda k: convolve(u.detach(), k, k, "native"), (kernel,)),
    "a kernel made of u": (lambda u: convolve(u, u.mean(0).t().contiguous(), None, "native"), (u,)),
    "one C both ways": (lambda *t: bidirectional_ssm(*t, t[-1]), (u, gates, B_bar, C)),
    "C backward made of C": (lambda *t: bidirectional_ssm(*t, 1j * t[-1]), (u, gates, B_bar, C)),
    "C made of B": (lambda u, a, b: ssm(u, a, b, b.t())[0], (u, gates, B_bar)),
    "x0 made of u": (lambda u, a, b, c: ssm(u, a, b, c, u.mean(1)[:, :P].to(a.dtype))[0], (u, gates, B_bar, C)),
    "gates made of u": (lambda u, b, c: ssm(u, u[..., :P].sigmoid().to(b.dtype), b, c)[0], (u, B_bar, C)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_path_outside_the_operator_is_counted_twice(name):
    function, inputs = CASES[name]
    y = function(*inputs)
    seed = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    once = torch.autograd.grad(y, inputs, seed, retain_graph=True)
    again = torch.autograd.grad(y, inputs, seed, create_graph=True)
    for one, other in zip(once, again, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("operator", [lambda *t: ssm(*t)[0], lambda *t: bidirectional_ssm(*t, t[-1])])
def test_a_batch_of_gradients(operator):
    inputs = (u, gates, B_bar, C)
    y = operator(*inputs)
    seeds = torch.randn(3, *y.shape, dtype=y.dtype)
    found = torch.autograd.grad(y, inputs, seeds, is_grads_batched=True, retain_graph=True)
    for index, seed in enumerate(seeds):
        expected = torch.autograd.grad(y, inputs, seed, retain_graph=True)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[index], other, rtol=1e-11, atol=1e-11)
