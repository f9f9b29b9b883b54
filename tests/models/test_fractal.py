"""The FRACTAL layer: the paper's initialisation, its options, and mistakes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete

from fractal_ssm import Fractal, UsageError, hippo, list_measures, register_alpha, register_measure
from fractal_ssm.models.fractal.init import parse_measure
from fractal_ssm.registry import alphas, measures

GOLDEN = Path(__file__).parent.parent / "golden" / "fractional.npz"


def test_defaults_are_the_papers():
    torch.manual_seed(0)
    layer = Fractal(16, d_state=64)
    assert layer.alphas == pytest.approx((0.0, 0.3, 0.6, 0.9))
    Lambda = layer.Lambda.detach().numpy().reshape(4, 8)
    for block in Lambda:
        np.testing.assert_allclose(block.real, -np.arange(1, 9))
        np.testing.assert_allclose(block.imag, np.pi * np.arange(8), rtol=1e-6)
    assert layer.discretization == "zoh"
    assert layer.log_dt.min() >= math.log(0.001) - 1e-6
    assert layer.log_dt.max() <= math.log(0.1) + 1e-6


@pytest.mark.parametrize("alpha", [0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("order", [1, 2, 4, 8, 16, 32])
def test_analytic_B_tilde_against_120_digits(alpha, order):
    with np.load(GOLDEN) as data:
        exact = data[f"alpha={alpha}/N={order}/fractional/B_tilde_unit_diagonal"]
    block = parse_measure("fractional", "lin").block(order, float(alpha))
    np.testing.assert_allclose(block.B_tilde, exact / np.sqrt(np.mean(exact**2)), rtol=1e-12)


def test_slow_modes_start_almost_undriven():
    # The figures of the README beside the layer.
    measure = parse_measure("fractional", "auto")
    drive = {order: measure.block(order, 0.0).B_tilde.real for order in (2, 4, 8)}
    ratio = {order: B_tilde[-1] / B_tilde[0] for order, B_tilde in drive.items()}
    assert round(ratio[8]) == 13_292
    assert round(ratio[4]) == 53
    assert round(ratio[2], 1) == 3.5
    assert drive[8][[0, -1]].round(4).tolist() == [0.0002, 2.7381]
    np.testing.assert_allclose((drive[8][:4] ** 2).sum() / (drive[8] ** 2).sum(), 1.6e-5, rtol=0.01)


def test_rows_of_B_carry_the_analytic_weight():
    torch.manual_seed(0)
    layer = Fractal(4096, d_state=16, n_alphas=2)
    blocks = [parse_measure("fractional", "lin").block(4, alpha) for alpha in (0.0, 0.9)]
    weight = np.concatenate([np.abs(block.B_tilde) for block in blocks])
    rms = layer.B_tilde.detach().abs().square().mean(dim=1).sqrt().numpy() * 64
    np.testing.assert_allclose(rms, weight, rtol=0.05)
    flat = Fractal(4096, d_state=16, n_alphas=2, B_init="random").B_tilde.detach()
    np.testing.assert_allclose(flat.abs().square().mean(dim=1).sqrt().numpy() * 64, np.ones(8), rtol=0.05)
    assert flat.imag.std() > 0
    assert (layer.B_tilde.imag == 0).all()


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("order", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_no_order_or_alpha_gives_an_infinity(order, alpha):
    torch.manual_seed(0)
    layer = Fractal(2, d_state=2 * order, n_alphas=1, alpha=alpha)
    y, _ = layer(torch.randn(1, 20, 2))
    y.sum().backward()
    for parameter in layer.parameters():
        assert torch.isfinite(parameter).all()
        assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize(
    "measure", ["fractional", "fractional-tau", "fractional-galerkin", "legs", "legt", "lagt", "fourier", "random"]
)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_measure_makes_a_layer(measure, bidirectional):
    assert measure in list_measures()
    torch.manual_seed(0)
    layer = Fractal(4, measure=measure, bidirectional=bidirectional)
    assert (layer.Lambda.real < 0).all()
    assert 32 <= layer.n_modes <= 36
    y, _ = layer(torch.randn(2, 50, 4))
    assert torch.isfinite(y).all()
    assert 0.1 < y.std() < 10


@pytest.mark.parametrize("measure", ["fractional-tau", "fractional-galerkin", "legt", "random"])
def test_modes_of_an_own_spectrum_are_the_real_system(measure):
    """One block read out through V is the dense system x' = -A x + B u, discretised by scipy."""
    torch.manual_seed(0)
    order, dt, length = 8, 0.05, 30
    alpha = 0.6 if measure.startswith("fractional") else None
    layer = Fractal(1, d_state=order, n_alphas=1, alpha=alpha, measure=measure, dt_min=dt, dt_max=dt).double()
    operator = hippo.operator(measure, order, **({"alpha": alpha} if alpha else {}))
    diagonal = hippo.diagonalize(operator)
    _, V, B_tilde, weight = hippo.conjugate_half(diagonal)
    block = layer.measure.block(order, alpha)
    scale = block.B_tilde[-1] / (weight * B_tilde)[-1]
    reads = np.random.default_rng(0).standard_normal(order)
    with torch.no_grad():
        layer.B.copy_(torch.view_as_real(torch.from_numpy(block.B_tilde)[:, None]))
        layer.C.copy_(torch.view_as_real(torch.from_numpy(reads @ V / scale)[None]))
        layer.D.zero_()
        layer.Lambda_re.copy_(torch.from_numpy(block.Lambda.real))
        layer.Lambda_im.copy_(torch.from_numpy(block.Lambda.imag))
        layer.log_dt.fill_(math.log(dt))
    u = torch.randn(1, length, 1, dtype=torch.float64)
    y = layer(u)[0].detach().numpy()[0, :, 0]
    A_bar, B_bar, *_ = cont2discrete((-operator.A, operator.B[:, None], np.eye(order), np.zeros((order, 1))), dt)
    x = np.zeros(order)
    for position in range(length):
        x = A_bar @ x + B_bar[:, 0] * u[0, position, 0].item()
        assert y[position] == pytest.approx(reads @ x, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("measure", ["fractional", "fractional-tau", "legs"])
def test_calibrated_steps_give_every_block_the_same_memory(measure):
    torch.manual_seed(0)
    options = dict(d_state=64, measure=measure, dt_min=0.01, dt_max=0.01)
    layer = Fractal(2, dt="calibrated", **options).double()
    plain = Fractal(2, **options).double()
    assert torch.allclose(plain.log_dt, torch.tensor(math.log(0.01)).double(), atol=1e-6)
    alphas_of_blocks = layer.alphas or (None,) * 4
    start = 0
    for alpha in alphas_of_blocks:
        block = layer.measure.block(layer.measure.block_order(64, 4), alpha)
        step = layer.log_dt[start : start + len(block.Lambda)].exp()
        start += len(block.Lambda)
        # Mean lag in positions: 1 / 0.01.
        np.testing.assert_allclose(block.time_scale / step.detach().numpy(), 100.0, rtol=1e-5)
    assert start == layer.n_modes


def test_the_same_seed_gives_the_same_layer():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(Fractal(4, alpha="uniform").state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_no_mode_can_be_trained_to_grow():
    layer = Fractal(2)
    with torch.no_grad():
        layer.Lambda_re.fill_(3.0)
    assert (layer.Lambda.real == -1e-4).all()
    y, _ = layer(torch.randn(1, 2000, 2))
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("value", [0.0, -1e4])
def test_extreme_eigenvalues_stay_finite(value):
    layer = Fractal(2)
    with torch.no_grad():
        layer.Lambda_re.fill_(value)
        layer.Lambda_im.fill_(value)
    y, _ = layer(torch.randn(1, 65, 2))
    y.sum().backward()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(alpha=1.2), r"alpha must lie in \[0, 1\), got 1.2"),
        (dict(alpha=-0.1), r"alpha must lie in \[0, 1\), got -0.1"),
        (dict(alpha=1), r"got 1 from"),
        (dict(alpha=math.nan), "got nan"),
        (dict(alpha=[0.1, 0.2, 0.3, 1.5]), "got 1.5"),
        (dict(alpha=[0.1, 0.2]), "2 value.s. for 4 blocks"),
        (dict(alpha=["a"]), "got 'a'"),
        (dict(alpha="linspce"), "Did you mean 'linspace'"),
        (dict(alpha={"name": "linspace", "hi": 0.5}), "no option 'hi'.*Did you mean 'high'"),
        (dict(alpha={"high": 0.5}), "needs a 'name'"),
        (dict(alpha=True), "a number or a list"),
        (dict(measure="legz"), "Unknown measure 'legz'.*Did you mean"),
        (dict(measure={"name": "legt", "tetha": 1.0}), "no option 'tetha'.*Did you mean 'theta'"),
        (dict(measure={"name": "fractional", "alpha": 0.5}), "layer's own option alpha=0.5"),
        (dict(measure="legs", alpha=0.5), "has no alpha"),
        (dict(measure="fractional-tau", alpha=0.0), "alpha >= 1e-6"),
        (dict(measure="fractional-tau", alpha=0.5, imag="lin"), "has frequencies of its own"),
        (dict(imag="line"), "Unknown imag 'line'.*Did you mean 'lin'"),
        (dict(d_state=60), "multiple of 2 \\* n_alphas .* = 8, got d_state=60. Nearest: 64"),
        (dict(d_state=62, measure="legs"), "multiple of n_alphas = 4, got d_state=62"),
        (dict(n_alphas=0), "n_alphas"),
        (dict(B_init="analytical"), "Did you mean 'analytic'"),
        (dict(C_init="normal"), "Unknown C_init"),
        (dict(discretization="euler"), "Known: bilinear, zoh"),
        (dict(dt="calibrate"), "Did you mean 'calibrated'"),
        (dict(dt_min=0.0), "dt_min=0.0"),
        (dict(time="lvt"), "Did you mean 'ltv'"),
    ],
)
def test_mistakes_are_refused_when_building(options, message):
    with pytest.raises(UsageError, match=message):
        Fractal(4, **options)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        ("linspace", [0.0, 0.3, 0.6, 0.9]),
        ({"name": "linspace", "low": 0.2, "high": 0.8}, [0.2, 0.4, 0.6, 0.8]),
        ("constant", [0.5] * 4),
        (0.25, [0.25] * 4),
        (0, [0.0] * 4),
        ([0.3, 0.1, 0.1, 0.99], [0.3, 0.1, 0.1, 0.99]),
        ({"name": "list", "values": [0.3, 0.1, 0.1, 0.0]}, [0.3, 0.1, 0.1, 0.0]),
        ("chebyshev", [0.034254, 0.277793, 0.622207, 0.865746]),
    ],
)
def test_alphas(alpha, expected):
    assert Fractal(2, alpha=alpha).alphas == pytest.approx(expected, abs=1e-6)


def test_uniform_alphas_are_sorted_draws():
    torch.manual_seed(0)
    drawn = np.array(Fractal(2, d_state=512, n_alphas=64, alpha={"name": "uniform", "low": 0.2, "high": 0.4}).alphas)
    assert (np.diff(drawn) >= 0).all()
    assert 0.2 <= drawn[0] < 0.22
    assert 0.38 < drawn[-1] < 0.4


@pytest.fixture
def outside():
    """A measure and an alpha recipe of somebody else's, forgotten afterwards."""

    @register_alpha("outside-halving")
    def halving(K, first=0.8):
        return first * 0.5 ** np.arange(K)

    @register_measure("outside-decays")
    def decays(N, *, alpha=0.5):
        return hippo.Operator("outside-decays", np.diag(np.arange(1.0, N + 1) + alpha), np.ones(N), {"alpha": alpha})

    yield
    del alphas._parts["outside-halving"], measures._parts["outside-decays"]


def test_measures_and_alphas_of_others_make_a_layer(outside):
    layer = Fractal(2, d_state=16, n_alphas=2, measure="outside-decays", alpha="outside-halving", imag="lin")
    rates = [1.8, 2.8, 3.8, 4.8, 1.4, 2.4, 3.4, 4.4]
    np.testing.assert_allclose(-layer.Lambda.detach().real, rates, rtol=1e-6)
    own = Fractal(2, d_state=8, n_alphas=1, measure="outside-decays", alpha=0.5)
    assert own.n_modes == 8
    assert (own.Lambda.imag == 0).all()
    with pytest.raises(UsageError, match="learn_alpha needs modes with a derivative"):
        Fractal(2, measure="outside-decays", learn_alpha=True)
    with pytest.raises(UsageError, match="got 1.5"):
        Fractal(2, measure="outside-decays", alpha={"name": "outside-halving", "first": 1.5})


@pytest.mark.slow
def test_memory_of_a_step_of_its_own_for_every_position():
    """B_bar is never spread over positions: 3 GB would hold 38.7 GB / 13 of it."""
    import subprocess
    import sys

    script = (
        "import resource, torch\n"
        "from fractal_ssm import Fractal\n"
        "layer = Fractal(576, d_state=1024, n_alphas=32)\n"
        "with torch.no_grad():\n"
        "    layer(torch.randn(2, 8192, 576), dt_scale=torch.rand(2, 8192) + 0.5)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 3_000_000
