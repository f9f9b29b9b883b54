"""Operators: against 120-digit and published numbers, over the whole range of N and alpha, and as what they claim."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hippo_cases import ALPHAS, FRACTIONAL, GOLDEN, ORDERS, PROJECTIONS, SETTINGS, build, relative, setting_id
from scipy.integrate import quad

from fractal_ssm import UsageError
from fractal_ssm.hippo import NormalForm, Operator, list_measures, operator, register_measure
from fractal_ssm.registry import measures

GOLD = np.load(GOLDEN / "fractional.npz")
PUBLISHED = np.load(GOLDEN / "s4.npz")


@pytest.mark.parametrize("key", [key for key in GOLD.files if key.rsplit("/", 1)[1] in ("A", "B")])
def test_golden_operators(key):
    alpha, N, name, what = key.split("/")
    built = operator(name, int(N[2:]), alpha=float(alpha[6:]))
    assert relative(getattr(built, what), GOLD[key]) < 2e-15


@pytest.mark.parametrize("N", (4, 8, 16))
@pytest.mark.parametrize(("name", "options"), [("legs", {}), ("legt", {"theta": 2.0}), ("fourier", {"theta": 2.0})])
def test_published_operators(name, options, N):
    built = operator(name, N, **options)
    assert relative(-built.A, PUBLISHED[f"hippo/{name}/{N}/A"]) < 1e-14
    assert relative(built.B[:, None], PUBLISHED[f"hippo/{name}/{N}/B"]) < 1e-14


def test_legs_as_printed():
    # The values users quote when they doubt the sign (LegS, N = 4).
    expected = [
        [1, 0, 0, 0],
        [1.73205081, 2, 0, 0],
        [2.23606798, 3.87298335, 3, 0],
        [2.64575131, 4.58257569, 5.91607978, 4],
    ]
    np.testing.assert_allclose(operator("legs", 4).A, expected, atol=1e-8)


@pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
def test_every_order_is_finite_and_quick(setting):
    for N in ORDERS:
        start = time.perf_counter()
        built = build(setting, N)
        assert built.A.shape == (N, N) and built.A.dtype == built.B.dtype == np.float64
        assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("name", FRACTIONAL)
@pytest.mark.parametrize("N", (1, 2, 4, 63, 64, 256))
def test_alpha_zero_is_legs_and_alpha_is_continuous(name, N):
    legs = operator("legs", N)
    zero = operator(name, N, alpha=0.0)
    assert relative(zero.A, legs.A) < 1e-10 and relative(zero.B, legs.B) < 1e-10
    for alpha in (0.0, 0.5, 0.9):
        here, there = operator(name, N, alpha=alpha), operator(name, N, alpha=alpha + 1e-6)
        assert np.linalg.norm(here.A - there.A) <= 1e-4 * np.linalg.norm(here.A)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_fractional_is_the_galerkin_matrix_of_its_differential_operator(alpha):
    # A_nk = <g_n + (1 + y) g_n', g_k>_w, the definition in the paper, by a Gauss rule; g' by differences in exact
    # polynomial arithmetic: a degree-N interpolant through Chebyshev points.
    N = 12
    built = operator("fractional", N, alpha=alpha)
    s, weights = built.quadrature(64)
    points = 0.5 * (1 + np.cos(np.pi * (np.arange(4 * N) + 0.5) / (4 * N)))
    derivative = np.stack(
        [np.polynomial.Chebyshev.fit(points, row, N - 1, domain=[0, 1]).deriv()(s) for row in built.basis(points)]
    )
    g = built.basis(s)
    A = ((g + 2 * s * derivative) * weights) @ g.T - ((s * derivative) * weights) @ g.T
    assert relative(A, built.A) < 1e-9


@pytest.mark.parametrize("setting", [s for s in PROJECTIONS if s[0] not in ("lagt", "random")], ids=setting_id)
def test_basis_is_orthonormal_on_the_unit_interval(setting):
    built = build(setting, 33)
    s, weights = built.quadrature(400)
    g = built.basis(s)
    np.testing.assert_allclose((g * weights) @ g.T, np.eye(33), atol=1e-11)


def test_basis_is_orthonormal_on_the_half_line():
    lagt = operator("lagt", 20)
    s, weights = lagt.quadrature(60)
    np.testing.assert_allclose((lagt.basis(s) * weights) @ lagt.basis(s).T, np.eye(20), atol=1e-8)
    # `random`: the Gramian solves A G + G A^T = B B^T, so orthonormal means A + A^T = B B^T.
    random = operator("random", 20, seed=3)
    np.testing.assert_allclose(random.A + random.A.T, np.outer(random.B, random.B), atol=1e-12)


@pytest.mark.parametrize("setting", PROJECTIONS, ids=setting_id)
def test_cumulative_integrates_basis_times_density(setting):
    built = build(setting, 6)
    low, high = (0.2, 0.7)
    G = built.cumulative(np.array([low, high]))

    def integrand(s: float, n: int) -> float:
        return float((built.basis(np.array([s]))[n] * built.density(np.array([s])))[0])

    for n in range(6):
        integral, _ = quad(integrand, low, high, args=(n,))
        assert abs(G[n, 1] - G[n, 0] - integral) < 1e-10


@pytest.mark.parametrize("setting", [s for s in PROJECTIONS if s[0] != "random"], ids=setting_id)
def test_density_is_a_probability(setting):
    built = build(setting, 4)
    _, weights = built.quadrature(50)
    assert abs(weights.sum() - 1.0) < 1e-12
    G = built.cumulative(np.array([0.0, 1.0]))[0] / built.basis(np.array([0.5]))[0, 0]
    if built.kind != "exponential":
        assert abs(G[1] - G[0] - 1.0) < 1e-12


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: operator("legz", 4), "legt"),
        (lambda: operator("legs", 0), "got 0"),
        (lambda: operator("legs", 1025), "1025"),
        (lambda: operator("legs", 4.0), "4.0"),
        (lambda: operator("legs", True), "True"),
        (lambda: operator("fractional", 4, alpha=1.0), "1.0"),
        (lambda: operator("fractional-tau", 4, alpha=-0.1), "-0.1"),
        (lambda: operator("fractional-galerkin", 4, alpha=float("nan")), "nan"),
        (lambda: operator("fractional", 4, alpha="half"), "half"),
        (lambda: operator("fractional", 4, alpah=0.5), "alpha"),
        (lambda: operator("legt", 4, theta=0.0), "0.0"),
        (lambda: operator("random", 4, seed=-1), "-1"),
    ],
)
def test_mistakes_are_refused_with_what_was_given(call, says):
    with pytest.raises(UsageError, match="(?s).*" + says.replace(".", r"\.")):
        call()


def test_a_measure_of_ones_own():
    @register_measure("hippo-test-decay")
    def decay(N: int, *, rate: float = 2.0) -> Operator:
        return Operator("hippo-test-decay", np.diag(np.arange(1.0, N + 1) ** rate), np.ones(N), {"rate": rate})

    try:
        assert "hippo-test-decay" in list_measures()
        np.testing.assert_array_equal(operator("hippo-test-decay", 3, rate=1.0).A.diagonal(), [1, 2, 3])
        with pytest.raises(UsageError, match="not finite"):
            operator("hippo-test-decay", 3, rate=float("nan"))
    finally:
        measures._parts.pop("hippo-test-decay")


def test_wrong_shapes_are_refused():
    with pytest.raises(UsageError, match="shape"):
        Operator("bad", np.eye(3), np.ones(2))
    with pytest.raises(UsageError, match="skew"):
        NormalForm(np.ones(2), 0.5, np.ones((2, 2)), np.ones((2, 1)), np.ones((2, 1)))


def test_importing_hippo_stays_light():
    code = "import sys, fractal_ssm.hippo; print([m for m in ('torch', 'mpmath', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_figures_of_the_theory_page():
    """B decays faster than LegS's for every alpha > 0; below the diagonal A grows with alpha (figure 3)."""
    legs = operator("fractional", 32, alpha=0.0)
    decay = [operator("fractional", 32, alpha=alpha).B[31] / legs.B[31] for alpha in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert np.array(decay) == pytest.approx([0.70, 0.33, 0.14, 0.055, 0.015], rel=0.02)
    below = [np.tril(operator("fractional", 32, alpha=alpha).A, -1) for alpha in np.linspace(0, 0.95, 11)]
    rows, columns = np.tril_indices(32, -1)
    assert (np.diff([A[rows, columns] for A in below], axis=0) > 0).all()
    assert [round(float(np.linalg.norm(A))) for A in (below[0], below[-1])] == [709, 3139]
