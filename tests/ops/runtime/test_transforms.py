"""Forward mode, torch.func and second derivatives: right, or refused, never silently dropped."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from fractal_ssm import Fractal, UsageError, scan
from fractal_ssm.models.s4 import S4
from fractal_ssm.ops.cauchy import dplr_response
from fractal_ssm.ops.convolution import convolve
from fractal_ssm.ops.ssm import ssm
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum
from fractal_ssm.registry import layers

# Torch itself uses what it has deprecated when it first loads its forward-mode rules.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_scan_keeps_its_tangents():
    a, b = torch.tensor([0.5]), torch.ones(1, 4, 1)
    _, tangent = torch.func.jvp(lambda b: scan(a, b), (b,), (b,))
    assert tangent.flatten().tolist() == [1.0, 1.5, 1.75, 1.875]
    with forward_ad.dual_level():
        x = scan(forward_ad.make_dual(a, torch.ones(1)), b)
        assert forward_ad.unpack_dual(x).tangent.flatten().tolist() == [0.0, 1.0, 2.0, 2.75]


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_named_backend_refuses_what_it_cannot_follow(backend):
    a, b = torch.tensor([0.5]), torch.ones(1, 4, 1)
    for transform in (
        lambda f: torch.func.jvp(f, (b,), (b,)),
        lambda f: torch.func.grad(lambda b: f(b).sum())(b),
        lambda f: torch.vmap(f)(b[None]),
    ):
        with pytest.raises(UsageError, match="backend='auto'"):
            transform(lambda b: scan(a, b, backend=backend))
    leaf = b.clone().requires_grad_()
    x = scan(a, leaf, backend=backend)
    with forward_ad.dual_level(), pytest.raises(UsageError, match="backward of scan"):
        torch.autograd.grad(x, leaf, forward_ad.make_dual(b, b))


def test_ssm_keeps_its_tangents():
    u, t = draw(2, 5, 3), draw(2, 5, 3, seed=1)
    a, B, C = (draw(*shape, dtype=torch.complex128, seed=2) for shape in ((4,), (4, 3), (3, 4)))
    a = 0.5 * a / a.abs()
    _, tangent = torch.func.jvp(lambda u: ssm(u, a, B, C)[0], (u,), (t,))
    torch.testing.assert_close(tangent, ssm(t, a, B, C)[0])


@pytest.mark.parametrize("name", ["s5", "lru", "fractal"])
def test_layers_that_scan_follow_every_transform(name):
    torch.manual_seed(0)
    layer = layers.build({"name": name}, d_model=4, l_max=None).double()
    u, t = draw(2, 5, 4), draw(2, 5, 4, seed=1)
    linear = layer(t)[0]
    torch.testing.assert_close(torch.func.jvp(lambda u: layer(u)[0], (u,), (t,))[1], linear)
    torch.testing.assert_close(torch.vmap(lambda u: layer(u[None])[0][0])(u), layer(u)[0])
    u.requires_grad_()
    (expected,) = torch.autograd.grad((layer(u)[0] * t).sum(), u)
    torch.testing.assert_close(torch.func.grad(lambda u: (layer(u)[0] * t).sum())(u), expected)


@pytest.mark.parametrize("name", ["s4", "s4d", "dss", "fractal-conv"])
def test_layers_that_convolve_refuse_every_transform(name):
    layer = layers.build({"name": name}, d_model=4, l_max=8)
    u = torch.ones(2, 5, 4)
    with pytest.raises(UsageError, match="torch.autograd"):
        torch.func.jvp(lambda u: layer(u)[0], (u,), (u,))
    with pytest.raises(UsageError, match="torch.autograd"):
        torch.vmap(lambda u: layer(u[None])[0])(u)
    parameters = dict(layer.named_parameters())
    with pytest.raises(UsageError, match="torch.autograd"):
        torch.func.grad(lambda p: torch.func.functional_call(layer, p, (u,))[0].sum())(parameters)


def test_operators_of_convolutions_refuse_every_transform():
    u, w = torch.ones(1, 4, 2), torch.full((2, 3), 0.5, dtype=torch.complex64)
    for function, given in (
        (lambda u: convolve(u, torch.ones(2, 4)), u),
        (lambda w: vandermonde(w, w, 4), w),
        (lambda w: vandermonde_sum(torch.ones(2, 4), w), w),
        (lambda w: dplr_response(-w, w[None], w[None], w, w[None], torch.ones(2), 4), w),
    ):
        with pytest.raises(UsageError, match="torch.autograd"):
            torch.func.jvp(function, (given,), (given,))


def test_a_trained_alpha_refuses_what_its_derivative_lacks():
    layer = Fractal(4, d_state=16, n_alphas=2, learn_alpha=True)
    u = torch.ones(1, 6, 4)
    with pytest.raises(UsageError, match="trained alpha"):
        torch.func.jvp(lambda u: layer(u)[0], (u,), (u,))
    loss = layer(u)[0].square().sum()
    with pytest.raises(UsageError, match="first derivatives only"):
        torch.autograd.grad(loss, layer.alpha_logit, create_graph=True)


def test_the_cauchy_kernel_refuses_second_derivatives():
    u = torch.ones(1, 6, 4)
    for options in ({"backend": "cauchy"}, {"fold_length": 8}):
        layer = S4(4, d_state=4, **options)
        # A sum's gradient is a constant, which once_differentiable would take for no second derivative.
        with pytest.raises(UsageError, match="first derivatives only.*powers"):
            torch.autograd.grad(layer.kernel(6).sum(), layer.A_real, create_graph=True)
        u.requires_grad_()
        # A penalty on the input's gradient needs first derivatives of the kernel only.
        (slope,) = torch.autograd.grad(layer(u)[0].sum(), u, create_graph=True)
        slope.square().sum().backward()
        assert torch.isfinite(layer.A_real.grad).all()
