"""Native steps against their equations in double precision."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fractal_ssm.models.fractal.scaled_time import discretize_scaled
from fractal_ssm.ops.discretize import discretize
from fractal_ssm.ops.step import MIMOStep, SISOStep, unobserved

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}
precisions = pytest.mark.parametrize("real", [torch.float32, torch.float64])
# Modes, so that 2 P numbers fill whole vectors, leave a short one, single numbers, or all of them; and features.
sizes = pytest.mark.parametrize(("P", "H"), [(1, 1), (3, 5), (21, 9), (16, 21), (32, 64)])


def draw(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def draws(shapes, real):
    """One tensor a shape; complex ones are given as (shape, "complex")."""
    return [
        draw(*shape[0], dtype=real.to_complex(), seed=seed) if shape[-1] == "complex" else draw(*shape, dtype=real)
        for seed, shape in enumerate(shapes)
    ]


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        error = (one - other).abs().max() if other.numel() else torch.zeros(())
        assert one.shape == other.shape
        assert error <= TOLERANCE[one.dtype.to_real()] * 10 * max(1.0, other.numel() and other.abs().max().item())


def wide(tensors):
    return [tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) for tensor in tensors]


def mimo_tensors(real, P, H):
    shapes = [((P,), "complex"), ((P,), "complex"), ((P, H), "complex"), ((H, P), "complex"), (H,)]
    return draws(shapes, real)


def mimo_expected(tensors, u, x, conj_factor):
    Lambda, gamma, B, C, D, u, x = wide([*tensors, u, x])
    x = Lambda * x + gamma * (u.to(B.dtype) @ B.T)
    return conj_factor * (x @ C.T).real + D * u, x


@precisions
@sizes
@pytest.mark.parametrize("batch", [0, 1, 2, 5])
def test_a_mimo_step_is_its_equation(real, P, H, batch):
    tensors = mimo_tensors(real, P, H)
    u, x = draw(batch, H, dtype=real), draw(batch, P, dtype=real.to_complex())
    before = u.clone(), x.clone()
    for conj_factor in (1.0, 2.0):
        assert_close(MIMOStep(*tensors, conj_factor)(u, x), mimo_expected(tensors, u, x, conj_factor))
    assert torch.equal(u, before[0]) and torch.equal(x, before[1])


@precisions
@pytest.mark.parametrize("times", [[0.0], [3.0], [1e5], [0.0, 0.5, 1e5]])
@pytest.mark.parametrize("lasting", [[1.0], [0.0], [0.25, 0.0, 40.0]])
def test_a_step_at_a_time_is_that_of_the_scaled_system(real, times, lasting):
    P, H, batch = 5, 7, 3
    _, _, B, C, D = mimo_tensors(real, P, H)
    Lambda = torch.complex(-1e-4 - 8 * torch.rand(P, dtype=real), draw(P, dtype=real))
    u, x = draw(batch, H, dtype=real), draw(batch, P, dtype=real.to_complex())
    elapsed, lasting = torch.tensor(times).double(), torch.tensor(lasting).double()
    Lambda_bar, gamma = discretize_scaled(Lambda.to(torch.complex128), elapsed, lasting)
    step = MIMOStep(Lambda, None, B, C, D, 2.0, rule="scaled time")
    y, after, until = step.at_time(u, x, elapsed, lasting)
    assert_close([y, after], mimo_expected([Lambda_bar, gamma, B, C, D], u, x, 2.0))
    assert torch.equal(until, elapsed + lasting)
    if len(times) == 1:
        *again, shared = step.at_time(u, x, elapsed.expand(batch), lasting)
        assert_close(again, (y, after))
        assert torch.equal(shared, until)


@precisions
@sizes
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
@pytest.mark.parametrize("scale", [[1.0], [0.0], [1e-6, 2.5, 300.0]])
def test_a_step_at_a_scale_is_that_of_the_discretised_system(real, P, H, method, scale):
    batch, scale = 3, torch.tensor(scale, dtype=torch.float64)
    _, _, B, C, D = mimo_tensors(real, P, H)
    Lambda = torch.complex(-8 * torch.rand(P, dtype=real), 10 * draw(P, dtype=real))
    # An eigenvalue of 0 is an integrator.
    Lambda[0] = 0
    dt = 0.001 + 0.1 * torch.rand(P, dtype=real)
    u, x = draw(batch, H, dtype=real), draw(batch, P, dtype=real.to_complex())
    Lambda_bar, gamma = discretize(Lambda.to(torch.complex128), scale[:, None] * dt.double(), method)
    found = MIMOStep(Lambda, None, B, C, D, 2.0, rule=method, dt=dt).scaled(u, x, scale)
    assert_close(found, mimo_expected([Lambda_bar, gamma, B, C, D], u, x, 2.0))


@precisions
@sizes
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(("rank", "channels"), [(0, 1), (1, 1), (2, 1), (0, 3), (1, 2)])
def test_a_siso_step_is_its_equation(real, P, H, batch, rank, channels):
    shapes = [((H, P), "complex")] * 2 + [((channels, H, P), "complex"), (channels, H)]
    Lambda, B, C, D = draws(shapes, real)
    P_r, Q = (draw(rank, H, P, dtype=real.to_complex(), seed=seed) for seed in (8, 9))
    u, x = draw(batch, H, dtype=real), draw(batch, H, P, dtype=real.to_complex())
    found = SISOStep(Lambda, B, C, D, P_r, Q)(u, x)
    if not rank:
        assert_close(SISOStep(Lambda, B, C, D)(u, x), found)
    Lambda, B, C, D, P_r, Q, u, x = wide([Lambda, B, C, D, P_r, Q, u, x])
    after = Lambda * x + B * u[..., None]
    for r in range(rank):
        after = after - P_r[r] * (Q[r] * x).sum(-1, keepdim=True).real
    y = 2 * (C * after[:, None]).sum(-1).real + D * u[:, None]
    assert_close(found, [y.flatten(1), after])


def test_samples_shared_between_threads_give_the_same():
    threads, (P, H, batch) = torch.get_num_threads(), (32, 64, 9)
    Lambda, B, C, D = draws([((H, P), "complex")] * 2 + [((1, H, P), "complex"), (H,)], torch.float32)
    step, u, x = SISOStep(Lambda, B, C, D), draw(batch, H).float(), draw(batch, H, P, dtype=torch.complex64)
    try:
        torch.set_num_threads(2)
        assert step._kernels.threads_for(x) == 2
        together = step(u, x)
        torch.set_num_threads(1)
        alone = step(u, x)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))


def test_lazy_and_strided_inputs():
    tensors = mimo_tensors(torch.float64, 3, 4)
    u, x = draw(4, 2).T, draw(2, 3, dtype=torch.complex128).conj()
    assert_close(MIMOStep(*tensors, 2.0)(u, x), mimo_expected(tensors, u, x, 2.0))
    negative = draw(2, 4, dtype=torch.complex128).conj().imag
    assert negative.is_neg()
    assert_close(MIMOStep(*tensors, 2.0)(negative, x), mimo_expected(tensors, negative, x, 2.0))
    lazy = [tensor.conj() for tensor in tensors]
    assert_close(MIMOStep(*lazy, 2.0)(u, x), mimo_expected(lazy, u, x, 2.0))


def test_tensors_are_read_where_they_lie_and_kept():
    tensors = mimo_tensors(torch.float64, 3, 4)
    step, u, x = MIMOStep(*tensors, 2.0), draw(2, 4), draw(2, 3, dtype=torch.complex128)
    tensors[2].mul_(0.5)
    assert step.reads(tensors[2]) and not step.reads(tensors[2].clone())
    expected = mimo_expected(tensors, u, x, 2.0)
    del tensors
    assert_close(step(u, x), expected)


def test_what_a_kernel_cannot_read_is_refused():
    tensors = mimo_tensors(torch.float64, 3, 4)
    with pytest.raises(TypeError, match="one precision"):
        MIMOStep(*tensors[:-1], tensors[-1].float(), 2.0)
    with pytest.raises(TypeError, match="on a CPU"):
        MIMOStep(*(tensor.to("meta") for tensor in tensors), 2.0)


def test_what_follows_operators_is_noticed():
    u = draw(2, 3)
    assert unobserved(u, torch.nn.Parameter(u, requires_grad=False))
    assert not unobserved(u, u.clone().requires_grad_())
    assert not unobserved(u.to("meta"))
    with torch.no_grad():
        assert unobserved(u.clone().requires_grad_())
    with FlopCounterMode(display=False):
        assert not unobserved(u)
    seen = []
    torch.func.vmap(lambda row: seen.append(unobserved(row)) or row)(u)
    assert seen == [False]


@pytest.mark.filterwarnings("ignore")
def test_a_trace_is_noticed():
    seen = []
    torch.jit.trace(lambda u: seen.append(unobserved(u)) or u + 1, draw(2, 3), check_trace=False)
    assert seen == [False]
