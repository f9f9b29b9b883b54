"""The time scale: what it is by definition, what it does not depend on, and what it says about the measures."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov

from fractal_ssm import UsageError
from fractal_ssm.hippo import calibrated_range, diagonalize, imaginary_parts, operator, time_scale


def by_definition(A: np.ndarray, B: np.ndarray) -> float:
    """(1/N) integral tau k^T G^-1 k dtau: A G + G A^T = B B^T, A G1 + G1 A^T = G, trace of G^-1 G1 over N."""
    G = solve_continuous_lyapunov(A, np.outer(B, B))
    return float(np.trace(np.linalg.solve(G, solve_continuous_lyapunov(A, G))) / len(A))


@pytest.mark.parametrize(
    ("name", "N", "options"),
    [
        ("legt", 6, {}),
        ("lagt", 6, {}),
        ("random", 12, {}),
        ("fourier", 7, {"theta": 3.0}),
        ("fractional-tau", 6, {"alpha": 0.5}),
        ("fractional-galerkin", 6, {"alpha": 0.9}),
        ("legs", 5, {}),
    ],
)
def test_closed_form_is_the_definition(name, N, options):
    built = operator(name, N, **options)
    assert abs(time_scale(built) / by_definition(built.A, built.B) - 1) < 1e-6


def test_the_unit_of_time_passes_through():
    assert abs(time_scale(operator("legt", 16, theta=5.0)) - 5 * time_scale(operator("legt", 16))) < 1e-6
    assert time_scale(np.array([-0.25])) == 2.0
    assert abs(time_scale(operator("lagt", 16)) - 8.0) < 1e-12


def test_known_limits():
    for alpha in (0.0, 0.5, 0.9):
        assert abs(time_scale(operator("fractional", 256, alpha=alpha)) - 2 * np.log(2)) < 0.03
    # An operator and its own eigenvectors agree; undriven modes are left out of both.
    for name, options in (("fractional-tau", {"alpha": 0.3}), ("fourier", {}), ("fractional", {"alpha": 0.9})):
        built = operator(name, 32, **options)
        assert abs(time_scale(diagonalize(built)) / time_scale(built) - 1) < 1e-8


def test_s4d_lin_remembers_one_time_unit():
    # Frequencies pi apart and real parts 1/2 hardly overlap, so each mode remembers 1 / (2 * 1/2).
    frequencies = imaginary_parts("lin", 64)[1:]
    Lambda = -0.5 + 1j * np.concatenate([frequencies, -frequencies])
    assert 1.0 < time_scale(Lambda) < 1.5


def test_calibrated_range_gives_equal_memory():
    for system in (operator("legs", 16), diagonalize(operator("legs", 16), "normal")):
        low, high = calibrated_range(system, 10, 1000)
        assert abs(time_scale(system) / low - 1000) < 1e-9 and abs(time_scale(system) / high - 10) < 1e-9
    with pytest.raises(UsageError, match="got 10 and 1"):
        calibrated_range(operator("legs", 4), 10, 1)
    with pytest.raises(UsageError, match="decay"):
        time_scale(np.array([0.0, -1.0]))


@pytest.mark.parametrize("alpha", (1 - 1e-6, 1 - 1e-9, 1 - 1e-12))
def test_slow_modes_count_beside_a_huge_one(alpha):
    # |A| grows like 1 / (1 - alpha); 1.10383 is the value from eigenvalues in 80 digits, the same for all three.
    built = operator("fractional-tau", 16, alpha=alpha)
    assert abs(time_scale(built) - 1.10383) < 2e-6
    # With every mode let through, its eigenvalues are still the right ones.
    assert abs(time_scale(diagonalize(built, tolerance=1e3)) - 1.10383) < 2e-6


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: time_scale("legs"), r"operator\(name, N\).*'legs'"),
        (lambda: time_scale([]), "at least one mode"),
        (lambda: time_scale(operator("legs", 2).A), r"shape \(2, 2\)"),
        (lambda: time_scale([-1.0, np.nan]), "decay"),
        (lambda: time_scale(None), "object"),
        (lambda: calibrated_range(operator("legs", 4), "ten", 20), "shortest.*'ten'"),
    ],
)
def test_mistakes(call, says):
    with pytest.raises(UsageError, match=says):
        call()
