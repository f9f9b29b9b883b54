"""Fractal with time="ltv": the 1 / t system, exact, scale-invariant, streamed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from fractal_ssm import Fractal, UsageError, hippo


def build(**options):
    torch.manual_seed(0)
    return Fractal(3, **{"d_state": 16, "n_alphas": 2, "time": "ltv", **options}).double().eval()


def noise(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_equals_the_dense_recurrence():
    """x_{k+1} = r^A x_k + A^-1 (I - r^A) B u_k with r = t_k / t_{k+1}, read out through V."""
    order, length, alpha = 6, 12, 0.5
    layer = build(d_state=order, n_alphas=1, measure="fractional-tau", alpha=alpha)
    operator = hippo.operator("fractional-tau", order, alpha=alpha)
    _, V, B_tilde, weight = hippo.conjugate_half(hippo.diagonalize(operator))
    block = layer.measure.block(order, alpha)
    scale = block.B_tilde[-1] / (weight * B_tilde)[-1]
    reads = np.random.default_rng(0).standard_normal((3, order))
    mix = np.random.default_rng(1).standard_normal(3)
    with torch.no_grad():
        layer.B.copy_(torch.view_as_real(torch.from_numpy(block.B_tilde[:, None] * mix)))
        layer.C.copy_(torch.view_as_real(torch.from_numpy(reads @ V / scale)))
        layer.D.zero_()
        layer.Lambda_re.copy_(torch.from_numpy(block.Lambda.real))
        layer.Lambda_im.copy_(torch.from_numpy(block.Lambda.imag))
    u = noise(1, length, 3)
    y = layer(u)[0].detach().numpy()[0]
    x = np.zeros(order)
    for k in range(length):
        ratio = expm(np.log(k / (k + 1)) * operator.A) if k else np.zeros((order, order))
        x = ratio @ x + np.linalg.solve(operator.A, (np.eye(order) - ratio) @ operator.B) * (mix @ u[0, k].numpy())
        np.testing.assert_allclose(y[k], reads @ x, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("stretch", [2, 3, 10])
def test_a_held_signal_stretched_in_time_gives_the_same_features_exactly(stretch):
    layer, u = build(), noise(2, 40, 3)
    slow = layer(u.repeat_interleave(stretch, dim=1))[0][:, stretch - 1 :: stretch]
    torch.testing.assert_close(slow, layer(u)[0], rtol=1e-9, atol=1e-10)


def test_a_smooth_signal_sampled_more_densely_gives_nearly_the_same_features():
    layer = build()

    def features(samples):
        t = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples
        u = torch.stack([torch.sin(7 * t), torch.cos(3 * t), t], dim=-1)[None]
        return layer(u)[0]

    coarse, fine = features(500), features(2000)[:, 3::4]
    error = (coarse - fine)[:, 50:].abs().max() / coarse.abs().max()
    assert error < 0.02


def test_a_layer_with_a_step_does_not_have_this_invariance():
    torch.manual_seed(0)
    layer, u = Fractal(3, d_state=16, n_alphas=2).double(), noise(2, 40, 3)
    slow = layer(u.repeat_interleave(2, dim=1))[0][:, 1::2]
    assert not torch.allclose(slow, layer(u)[0], rtol=0.05)


def test_durations_scale_out_and_may_vary():
    layer, u = build(), noise(2, 12, 3)
    y = layer(u)[0]
    torch.testing.assert_close(layer(u, dt_scale=5.0)[0], y)
    lasting = torch.tensor([[1.0, 2.0, 3.0, 1.0]] * 2).double()
    held = torch.cat([u[:, i : i + 1].expand(-1, int(n), -1) for i, n in enumerate(lasting[0])], dim=1)
    ends = lasting[0].cumsum(0).long() - 1
    torch.testing.assert_close(layer(u[:, :4], dt_scale=lasting)[0], layer(held)[0][:, ends])
    # An input that lasts no time changes nothing, not even before the first one.
    gap = torch.tensor([[0.0, 1.0, 0.0, 1.0]] * 2).double()
    torch.testing.assert_close(layer(u[:, :4], dt_scale=gap)[0][:, [1, 3]], layer(u[:, [1, 3]])[0])


def test_the_state_carries_the_time_of_each_sample():
    layer, u = build(), noise(3, 10, 3)
    _, state = layer(u, lengths=torch.tensor([2, 10, 7]))
    assert state.elapsed.tolist() == [2.0, 10.0, 7.0]
    _, state = layer(u[:, :3], state)
    assert state.elapsed.tolist() == [5.0, 13.0, 10.0]
    _, shared = layer(u)
    assert shared.elapsed.tolist() == [10.0, 10.0, 10.0] and shared.time().shape == (1,)
    whole, _ = layer(torch.cat([u[:1, :2], u[:1, :3]], dim=1))
    torch.testing.assert_close(layer(u[:, :3], layer(u, lengths=torch.tensor([2, 10, 7]))[1])[0][:1], whole[:, 2:])


def test_gradients_reach_every_parameter_and_are_right():
    layer, u = build(), noise(1, 6, 3)
    names = [name for name, _ in layer.named_parameters()]
    assert "log_dt" not in names

    def run(*values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (u,))[0]

    assert torch.autograd.gradcheck(run, tuple(p.detach().requires_grad_() for p in layer.parameters()), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(bidirectional=True), "bidirectional=False"),
        (dict(discretization="bilinear"), "discretization=bilinear"),
        (dict(dt="calibrated"), "has no step"),
        (dict(dt_max=0.5), "dt_max=0.5"),
    ],
)
def test_options_without_effect_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        build(**options)


def test_a_state_of_another_kind_is_refused():
    layer = build()
    with pytest.raises(UsageError, match="ScaledState"):
        layer(noise(2, 5, 3), torch.zeros(2, layer.n_modes, dtype=torch.complex128))
