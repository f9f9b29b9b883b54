"""Layers under what others do with them: transforms, copies, wrappers, other devices, broken inputs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from contract_cases import D_MODEL, build, draw, every_causal_layer, every_layer, relative_error
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.nn.utils.parametrizations import weight_norm

from fractal_ssm import S4, UsageError
from fractal_ssm.models.transformer import Attention


@every_layer
def test_an_empty_batch_gives_an_empty_batch_and_gradients_of_zero(layer):
    u = draw(0, 7, D_MODEL).requires_grad_()
    y, state = layer(u)
    assert y.shape == (0, 7, layer.d_output)
    y.sum().backward()
    assert u.grad.shape == u.shape
    for name, parameter in layer.named_parameters():
        assert parameter.grad is None or (parameter.grad == 0).all(), name
    assert layer(u, lengths=torch.ones(0, dtype=torch.int64))[0].shape == y.shape
    if layer.causal:
        again, _ = layer(u, layer.initial_state(0))
        assert again.shape == y.shape
        for context in (torch.no_grad(), torch.enable_grad()):
            with context:
                assert layer.step(u[:, 0], state)[0].shape == (0, layer.d_output)


@pytest.mark.parametrize("backend", ["powers", "cauchy"])
@pytest.mark.parametrize("fold_length", [None, 8])
def test_an_empty_batch_of_s4_by_every_backend(backend, fold_length):
    layer = S4(4, d_state=8, backend=backend, fold_length=fold_length)
    y, state = layer(torch.zeros(0, 7, 4), dt_scale=torch.ones(0))
    assert y.shape == (0, 7, 4)
    assert layer.step(torch.zeros(0, 4), state)[0].shape == (0, 4)


# Outputs by a Fourier transform of the whole sequence: a NaN reaches all positions of its sample and feature.
SMEARED = ("s4", "s4d", "dss", "fractal-conv")


@every_causal_layer
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_input_leaves_earlier_outputs_alone(case, causal_layer, value):
    if case[0] in SMEARED:
        pytest.skip("a Fourier transform")
    for length, at in ((20, 12), (300, 130), (300, 299)):
        u = draw(2, length, D_MODEL)
        clean = u.clone().requires_grad_()
        expected, _ = causal_layer(clean)
        (wanted,) = torch.autograd.grad(expected[:, :at].square().sum(), clean)
        broken = u.clone()
        broken[1, at, 1] = value
        y, state = causal_layer(broken.requires_grad_())
        assert relative_error(y[:, :at], expected[:, :at]) < 1e-9
        assert relative_error(y[0], expected[0]) < 1e-9
        assert not y[1, at].isfinite().all()
        (found,) = torch.autograd.grad(y[:, :at].square().sum(), broken)
        assert relative_error(found[:, :at], wanted[:, :at]) < 1e-9
        later, _ = causal_layer(draw(2, 3, D_MODEL, seed=5), state)
        assert later[0].isfinite().all()
        assert not later[1].isfinite().all()


@every_causal_layer
def test_a_broken_input_stays_in_its_sample(causal_layer):
    u = draw(3, 40, D_MODEL)
    expected, _ = causal_layer(u)
    u[1, 20] = torch.nan
    y, _ = causal_layer(u)
    assert relative_error(y[::2], expected[::2]) < 1e-9


@every_causal_layer
def test_a_parametrised_layer_that_was_stepped_is_copied(causal_layer):
    u, state = draw(2, D_MODEL), causal_layer.initial_state(2)
    with torch.no_grad():
        causal_layer.step(u, state)
        name = "C" if hasattr(causal_layer, "C") else "out"
        owner, name = (causal_layer, "C") if name == "C" else (causal_layer.out, "weight")
        weight_norm(owner, name)
        expected, _ = causal_layer.step(u, state)
        twin = copy.deepcopy(causal_layer)
        torch.testing.assert_close(twin.step(u, state)[0], expected)
        for parameter in twin.parameters():
            parameter.mul_(0.5)
        assert not torch.allclose(twin.step(u, state)[0], expected)
        torch.testing.assert_close(causal_layer.step(u, state)[0], expected)


def small(case):
    return build(case), draw(1, 5, D_MODEL, seed=3)


def agrees_or_refuses(attempt, expected):
    try:
        found = attempt()
    except UsageError as error:
        assert len(str(error)) > 40
        return
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


# torch scripts decompositions of its own for forward mode.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@every_layer
def test_transforms_work_or_are_refused_in_words(case):
    layer, u = small(case)
    tangent = draw(1, 5, D_MODEL, seed=4)
    f = lambda v: layer(v)[0]
    J = torch.autograd.functional.jacobian(f, u)
    along = torch.einsum("abcdef,def->abc", J, tangent)
    agrees_or_refuses(lambda: torch.autograd.functional.jacobian(f, u, vectorize=True), J)
    agrees_or_refuses(lambda: jacrev(f)(u), J)
    agrees_or_refuses(lambda: jvp(f, (u,), (tangent,))[1], along)
    agrees_or_refuses(lambda: torch.autograd.functional.jacobian(f, u, vectorize=True, strategy="forward-mode"), J)
    agrees_or_refuses(lambda: torch.autograd.functional.jvp(f, u, tangent)[1], along)
    agrees_or_refuses(lambda: grad(lambda v: f(v).sum())(u), J.sum((0, 1, 2)))
    agrees_or_refuses(lambda: vmap(f)(u[None])[0], f(u))
    g = lambda v: f(v).pow(3).sum()
    agrees_or_refuses(lambda: hessian(g)(u), torch.autograd.functional.hessian(g, u))
    named = dict(layer.named_parameters())
    agrees_or_refuses(lambda: functional_call(layer, named, (u,))[0], f(u))
    if layer.causal:
        state = layer.initial_state(1)
        one = lambda v: layer.step(v, state)[0]
        agrees_or_refuses(lambda: jvp(one, (u[:, 0],), (tangent[:, 0],))[0], one(u[:, 0]))
        agrees_or_refuses(lambda: vmap(lambda v: one(v[None])[0])(u[:, 0]), one(u[:, 0]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}])
def test_attention_has_second_derivatives_and_forward_mode(options):
    torch.manual_seed(0)
    layer = Attention(4, n_heads=2, **options).double()
    u = draw(2, 5, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: layer(v)[0], u, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda v: layer(v)[0], u)
    lengths = torch.tensor([5, 3])
    assert torch.autograd.gradgradcheck(lambda v: layer(v, lengths=lengths)[0][0], u)


def test_attention_twice_over_one_graph_and_with_dropout():
    torch.manual_seed(0)
    layer = Attention(4, n_heads=2, dropout=0.5).double().train()
    u = draw(2, 5, 4).requires_grad_()
    y, _ = layer(u)
    first = torch.autograd.grad(y.sum(), u, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(y.sum(), u, retain_graph=True)[0], first)
    with pytest.raises(UsageError, match="first derivatives only"):
        torch.autograd.grad(y.square().sum(), u, create_graph=True)


@every_layer
def test_wrappers(case):
    layer, u = small(case)
    expected, _ = layer(u)
    recomputed = torch.utils.checkpoint.checkpoint(lambda v: layer(v)[0], u.requires_grad_(), use_reentrant=False)
    torch.testing.assert_close(recomputed, expected)
    inputs = [u, *layer.parameters()]
    for one, other in zip(
        torch.autograd.grad(recomputed.sum(), inputs), torch.autograd.grad(layer(u)[0].sum(), inputs), strict=True
    ):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(nn.DataParallel(layer)(u)[0], expected)
    with torch.no_grad():
        twin = pickle.loads(pickle.dumps(layer.share_memory()))
        torch.testing.assert_close(twin(u)[0], expected)


@every_layer
def test_a_layer_on_the_meta_device_has_shapes_or_says_no(case):
    layer = build(case).to("meta")
    u = torch.zeros(2, 9, D_MODEL, dtype=torch.float64, device="meta")
    try:
        y, _ = layer(u)
        assert y.shape == (2, 9, layer.d_output)
    except UsageError as error:
        assert "meta" in str(error)
    if layer.causal:
        try:
            assert layer.step(u[:, 0], layer.initial_state(2))[0].shape == (2, layer.d_output)
        except UsageError as error:
            assert "meta" in str(error)


@pytest.mark.parametrize("options", [{}, {"fold_length": 64}, {"fold_length": 64, "backend": "cauchy"}])
def test_s4_is_built_under_the_meta_device(options):
    with torch.device("meta"):
        layer = S4(4, d_state=8, **options)
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"meta"}
