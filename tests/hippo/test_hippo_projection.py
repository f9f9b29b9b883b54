"""The state against the projection that the measure defines: exact, near-optimal, or off by a known amount."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hippo_cases import GOLDEN, SETTINGS, build, relative, setting_id
from scipy.linalg import expm

from fractal_ssm import UsageError
from fractal_ssm.hippo import (
    Operator,
    diagonalize,
    operator,
    project,
    reconstruct,
    scale_invariant_step,
    true_projection,
)

GOLD = np.load(GOLDEN / "fractional.npz")


def errors(u: np.ndarray, t: np.ndarray, built: Operator) -> tuple[float, float, float]:
    """Weighted L2 error of the reconstruction, the least possible one, and the error of the coefficients.

    With an orthonormal basis |u - sum x g|^2 = (|u|^2 - |c|^2) + |x - c|^2, c the true projection.
    """
    c = true_projection(u, t, built, at=[-1])[0]
    x = project(u, t, built)[-1]
    mass = np.diff(built.cumulative(np.concatenate([[0.0], t / t[-1]]))[0]) / built.basis(np.array([0.5]))[0, 0]
    best = mass @ u**2 - c @ c
    return np.sqrt(best + ((x - c) ** 2).sum()), np.sqrt(best), np.linalg.norm(x - c) / np.linalg.norm(c)


def multi_sine(L: int = 1500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ten sines of up to 12 periods with random phases and amplitudes, sampled as a step function."""
    generator = np.random.default_rng(seed)
    t = np.arange(1, L + 1) / L
    periods, phases = generator.uniform(0, 12, 10), generator.uniform(0, 2 * np.pi, 10)
    waves = np.sin(2 * np.pi * np.outer(periods, t) + phases[:, None])
    return generator.standard_normal(10) @ waves, t


@pytest.mark.parametrize("key", [key for key in GOLD.files if "projection" in key])
def test_true_projection_against_golden(key):
    alpha, N, _, power = key.split("/")
    m = float(power[2:])
    # t^0.5 is not smooth at 0, so the Gauss rule of 200 nodes is good to a few digits less there.
    tolerance = 1e-9 if m != 0.5 else 2e-7
    built = operator("fractional-tau", int(N[2:]), alpha=float(alpha[6:]))
    found = true_projection(lambda time: time**m, np.array([1.0]), built)[0]
    assert np.abs(found - GOLD[key]).max() < tolerance


@pytest.mark.parametrize("name", ("fractional-tau", "fractional-galerkin"))
@pytest.mark.parametrize("alpha", (0.0, 0.1, 0.5, 0.9))
@pytest.mark.parametrize("N", (1, 4, 16, 32))
def test_exact_on_polynomials(name, alpha, N):
    # For u = t^m the state is t^m (A + m)^-1 B, exactly, and equals the projection when m < N.
    built = operator(name, N, alpha=alpha)
    for m in range(N):
        state = np.linalg.solve(built.A + m * np.eye(N), built.B)
        true = true_projection(lambda time, m=m: time**m, np.array([1.0]), built)[0]
        assert np.abs(state - true).max() < 1e-9


@pytest.mark.parametrize("name", ("legs", "fractional-tau", "fractional-galerkin"))
def test_a_constant_is_kept_exactly(name):
    options = {} if name == "legs" else {"alpha": 0.5}
    x = project(np.ones(1000), np.arange(1.0, 1001), name, 16, **options)
    np.testing.assert_allclose(x, np.eye(16)[[0] * 1000], atol=1e-9)


@pytest.mark.parametrize("N", (8, 16, 32))
def test_a_parabola_is_read_back_better_with_growing_order(N):
    t = np.arange(1.0, 1001.0)
    u = 1 + (t / 1000) - 2 * (t / 1000) ** 2
    built = operator("fractional-tau", N, alpha=0.5)
    x = project(u, t, built)[-1]
    read = reconstruct(x, t, t[-1], built)
    # What is left is the half step between a held sample and the curve, and shrinks no further with N.
    assert np.abs(read - u).max() < {8: 3e-3, 16: 3e-3, 32: 3e-3}[N]
    assert np.abs(x).max() > 0.1


def test_legs_is_exact_on_any_step_function():
    u, t = np.random.default_rng(1).standard_normal(400), np.arange(1, 401) / 7.0
    true = true_projection(u, t, "legs", 20, at=[0, 1, 57, -1])
    np.testing.assert_allclose(project(u, t, "legs", 20)[[0, 1, 57, -1]], true, atol=1e-11)


def test_lagt_and_random_are_exact_on_any_step_function():
    u, t = np.random.default_rng(1).standard_normal(200), np.arange(1, 201) / 20.0
    for name, N in (("lagt", 12), ("random", 12)):
        true = true_projection(u, t, name, N, at=[0, 57, -1])
        np.testing.assert_allclose(project(u, t, name, N)[[0, 57, -1]], true, atol=1e-10)


@pytest.mark.parametrize("alpha", (0.1, 0.3, 0.5))
@pytest.mark.parametrize("seed", (0, 1))
def test_tau_is_within_two_percent_of_optimal(alpha, seed):
    built = operator("fractional-tau", 32, alpha=alpha)
    sines, t = multi_sine(seed=seed)
    noise = np.random.default_rng(seed).standard_normal(len(t))
    smooth = np.convolve(noise, np.ones(60) / 60, mode="same")
    for u in (sines, noise, smooth):
        reached, best, _ = errors(u, t, built)
        assert best <= reached < 1.02 * best


def test_the_papers_operator_is_off_by_what_the_theory_says(capsys):
    """Reported, not hidden: the published (A, B) is not the projection for alpha > 0."""
    constant = {}
    for alpha in (0.5, 0.8):
        built = operator("fractional", 32, alpha=alpha)
        constant[alpha] = np.linalg.norm(np.linalg.solve(built.A, built.B) - np.eye(32)[0])
        # alpha / sqrt(1 - alpha^2) for large N, 58 % and 133 %, and hardly less for small N: order is no remedy.
        small = operator("fractional", 4, alpha=alpha)
        assert abs(np.linalg.norm(np.linalg.solve(small.A, small.B) - np.eye(4)[0]) - constant[alpha]) < 5e-3
        assert abs(constant[alpha] / (alpha / np.sqrt(1 - alpha**2)) - 1) < 6e-6
    u, t = multi_sine()
    sines = {alpha: errors(u, t, operator("fractional", 32, alpha=alpha)) for alpha in (0.2, 0.5, 0.8)}
    exact = {alpha: errors(u, t, operator("fractional-tau", 32, alpha=alpha)) for alpha in (0.2, 0.5, 0.8)}
    with capsys.disabled():
        print("\nfractional (the paper): relative error of a constant", {a: f"{e:.0%}" for a, e in constant.items()})
        print("  coefficients of a multi-sine, N = 32:", {a: f"{e[2]:.0%}" for a, e in sines.items()})
        print("  fractional-tau on the same signal:   ", {a: f"{e[2]:.2%}" for a, e in exact.items()})
    assert sines[0.2][2] < sines[0.5][2] < sines[0.8][2]
    assert 0.1 < sines[0.2][2] and 0.3 < sines[0.5][2] and 0.8 < sines[0.8][2]
    assert all(error[2] < 0.01 for error in exact.values())


def test_impulse_response_tends_to_the_warped_jacobi_basis():
    # exp(-T A) B -> g_n(e^-T) w(e^-T) e^-T; n = 0, T = 1, alpha = 1/2 is 0.2314.
    T = 1.0
    for alpha in (0.2, 0.5):
        off = []
        for N in (32, 128):
            built = operator("fractional-tau", N, alpha=alpha)
            s = np.exp([-T])
            exact = (built.basis(s) * built.density(s) * s)[:, 0]
            response = expm(-T * built.A) @ built.B
            off.append(np.abs(response[:4] - exact[:4]).max())
            if alpha == 0.5:
                assert abs(exact[0] - 0.2314) < 5e-5
                assert abs(response[0] - {32: 0.2310, 128: 0.2313}[N]) < 5e-5
        assert off[1] < off[0] < 5e-3


@pytest.mark.parametrize("name", ("legs", "fractional", "fractional-tau", "fractional-galerkin"))
def test_ltv_states_do_not_change_with_the_unit_of_time(name):
    options = {} if name == "legs" else {"alpha": 0.4}
    u, t = multi_sine(300)
    base = project(u, t, name, 12, **options)
    # The same samples on a dilated clock: the same states.
    np.testing.assert_allclose(project(u, 17.3 * t, name, 12, **options), base, atol=1e-10 * np.abs(base).max())
    # Three times as many samples of the same held signal: the same states at corresponding times.
    dense_t = np.arange(1, 901) / 900
    dense = project(np.repeat(u, 3), dense_t, name, 12, **options)[2::3]
    np.testing.assert_allclose(dense, base, atol=1e-9 * np.abs(base).max())


def test_lti_states_do_change_with_the_unit_of_time():
    u, t = multi_sine(100)
    one = project(u, t, "legs", 8, form="lti")
    assert relative(project(u, 2 * t, "legs", 8, form="lti"), one) > 0.1


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s[0] != "random"], ids=setting_id)
def test_lti_form_is_the_matrix_exponential(setting):
    built = build(setting, 5)
    generator = np.random.default_rng(0)
    u, t = generator.standard_normal(12), np.cumsum(generator.uniform(0.05, 0.4, 12))
    x, state, before = project(u, t, built, form="lti"), np.zeros(5), 0.0
    for k, now in enumerate(t):
        # One exponential of the augmented matrix holds the input over the step, with no inverse of A.
        augmented = np.zeros((6, 6))
        augmented[:5, :5], augmented[:5, 5] = -built.A, built.B
        both = expm((now - before) * augmented)
        state, before = both[:5, :5] @ state + both[:5, 5] * u[k], now
        np.testing.assert_allclose(x[k], state, atol=1e-9 * max(1.0, np.abs(state).max()))


def test_channels_and_irregular_times_in_ltv():
    generator = np.random.default_rng(0)
    u, t = generator.standard_normal((40, 3)), np.cumsum(generator.uniform(0.1, 3.0, 40))
    x = project(u, t, "fractional-tau", 9, alpha=0.3)
    assert x.shape == (40, 9, 3)
    np.testing.assert_allclose(x[:, :, 1], project(u[:, 1], t, "fractional-tau", 9, alpha=0.3), atol=1e-12)
    legs = project(u[:, 0], t, "legs", 9)
    np.testing.assert_allclose(legs[-1], true_projection(u[:, 0], t, "legs", 9, at=[-1])[0], atol=1e-10)


@pytest.mark.parametrize(
    ("name", "options", "N", "bound"),
    [("legt", {"theta": 0.5}, 24, 0.02), ("fourier", {"theta": 0.5}, 64, 0.25), ("lagt", {}, 24, 0.25)],
)
def test_sliding_measures_read_back_a_slow_signal(name, options, N, bound):
    t = np.arange(1, 1501) / 500.0
    u = np.sin(2 * np.pi * t) + 0.5 * np.cos(2 * np.pi * 0.4 * t)
    x = project(u, t, name, N, **options)[-1]
    window = t[t > 2.55]
    read = reconstruct(x, window, t[-1], name, N, **options)
    # The state is close to the projection that the measure defines, so the basis runs the right way in time.
    true = true_projection(u, t, name, N, at=[-1], **options)[0]
    assert np.linalg.norm(x - true) < {"legt": 0.01, "fourier": 0.15, "lagt": 1e-9}[name] * np.linalg.norm(true)
    assert np.sqrt(np.mean((read - u[t > 2.55]) ** 2)) < bound


@pytest.mark.parametrize("alpha", (0.1, 0.5, 0.9))
def test_scale_invariant_step_equals_project(alpha):
    u, t = multi_sine(50)
    built = operator("fractional-tau", 16, alpha=alpha)
    found = diagonalize(built)
    a, gain = scale_invariant_step(found.Lambda, np.concatenate([[0.0], t[:-1]]), t)
    assert a.shape == gain.shape == (50, 16) and (a[0] == 0).all()
    z = np.zeros(16, dtype=complex)
    for k in range(50):
        z = a[k] * z + gain[k] * found.B_tilde * u[k]
    x = project(u, t, built)[-1]
    np.testing.assert_allclose((found.V @ z).real, x, atol=1e-9 * np.abs(x).max())
    # A mode at zero integrates log t.
    _, flat = scale_invariant_step(np.zeros(1), np.array([1.0]), np.array([np.e]))
    np.testing.assert_allclose(flat, 1.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda u, t: project(u, t, "legs"), "needs an order"),
        (lambda u, t: project(u, t, "lagt", 4, form="ltv"), "time-invariant"),
        (lambda u, t: project(u, t, "legs", 4, form="ltx"), "ltv"),
        (lambda u, t: project(u, t - 1, "legs", 4), "positive"),
        (lambda u, t: project(u, t[::-1], "legs", 4), "increasing"),
        (lambda u, t: project(u[:3], t, "legs", 4), r"\(3,\)"),
        (lambda u, t: project(u, t, operator("legs", 4), 5), "one or the other"),
        (lambda u, t: reconstruct(np.ones(3), t, 1.0, "legs", 4), r"\(3,\)"),
        (lambda u, t: reconstruct(np.ones(2), t, 1.0, Operator("bare", np.eye(2), np.ones(2))), "no basis"),
        (lambda u, t: true_projection(np.sin, t, "random", 4), "samples"),
        (lambda u, t: true_projection(np.ones((10, 2)), t, "legs", 4), "one signal"),
        (lambda u, t: true_projection(u, t, "legs", 4, at=[10]), r"indices into the 10 times"),
        (lambda u, t: true_projection(u, t, "legs", 4, at=2), r"indices into the 10 times"),
        (lambda u, t: project([[1], [2, 3]], [1, 2], "legs", 4), "inhomogeneous"),
        (lambda u, t: true_projection(math.sin, t, "legs", 4), "as np.sin does"),
        (lambda u, t: true_projection(lambda time: 1.0, t, "legs", 4), r"returned shape \(\)"),
        (lambda u, t: true_projection(np.sin, 1.0, "legs", 4), r"shape \(L,\)"),
        (lambda u, t: true_projection(np.sin, -t, "legs", 4), "positive"),
        (lambda u, t: project(u + 1j, t, "legs", 4), "real numbers, got complex128.*two channels"),
        (lambda u, t: project(u * np.nan, t, "legs", 4), "u must be finite"),
        (lambda u, t: project(u, np.append(t[:-1], np.inf), "legs", 4), r"t must be finite, got inf at index \(9,\)"),
        (lambda u, t: project(u, np.where(t == 3, np.nan, t), "lagt", 4), "t must be finite"),
        (lambda u, t: project(u, ["a"] * 10, "legs", 4), "real numbers"),
        (lambda u, t: reconstruct(np.ones(4) + 0j, t, 10.0, "legs", 4), "real numbers"),
        (lambda u, t: reconstruct(np.ones(4), t, 0.0, "legs", 4), "time of the state, must be a positive"),
        (lambda u, t: reconstruct(np.ones(4), t, -1.0, "lagt", 4), "time of the state, must be a positive"),
        (lambda u, t: reconstruct(np.ones(4), [11.0], 10.0, "legs", 4), r"over \[0, 10\].*from 11.0"),
        (lambda u, t: reconstruct(np.ones(4), [-0.1], 10.0, "legs", 4, form="lti"), r"over \[0, 10\]"),
        (lambda u, t: reconstruct(np.ones(4), [7.9], 10.0, "legt", 4, theta=2.0), r"over \[8, 10\]"),
        (lambda u, t: reconstruct(np.ones(4), [-0.5], 1.0, "fourier", 4, theta=2.0), r"over \[0, 1\]"),
        (lambda u, t: reconstruct(project(u, t, "legs", 4), t, 10.0, "legs", 4), r"pass one of them, x\[k\]"),
        (lambda u, t: reconstruct(project(u, t, "legs", 10), t, 10.0, "legs", 10), r"\(10, 10\) may be 10 channels"),
    ],
)
def test_mistakes(call, says):
    with pytest.raises(UsageError, match=says):
        call(np.ones(10), np.arange(1.0, 11.0))


@pytest.mark.parametrize(
    ("t_from", "t_to", "says"),
    [
        ([2.0], [1.0], "0 <= t_from < t_to"),
        ([0.0], [0.0], "0 <= t_from < t_to"),
        ([-1.0], [1.0], r"t_from\[0\] = -1.0"),
        ([1.0], [np.inf], "t_to must be finite"),
        (1.0, 2.0, "one shape"),
        ([1.0, 2.0], [3.0], "one shape"),
    ],
)
def test_steps_that_run_backwards(t_from, t_to, says):
    with pytest.raises(UsageError, match=says):
        scale_invariant_step(np.array([-1.0]), np.asarray(t_from), np.asarray(t_to))
    with pytest.raises(UsageError, match="real parts <= 0"):
        scale_invariant_step(np.array([1.0]), np.array([1.0]), np.array([2.0]))
    with pytest.raises(UsageError, match="integrates log t"):
        scale_invariant_step(np.array([0.0]), np.array([0.0]), np.array([2.0]))


def test_the_ends_of_the_past_can_be_read_and_channels_too():
    t = np.cumsum(np.full(30, 0.1))
    assert reconstruct(np.eye(4)[0], [0.0, t[-1]], t[-1], "legs", 4).shape == (2,)
    assert reconstruct(np.ones((4, 3)), t, t[-1], "legs", 4).shape == (30, 3)
    assert reconstruct(np.ones(4), t[-1] - 2.0, t[-1], "legt", 4, theta=2.0).shape == (1,)
    assert reconstruct(np.ones((1, 1)), t, t[-1], "legs", 1).shape == (30, 1)


@pytest.mark.parametrize("name", ("fractional-tau", "fractional-galerkin", "fractional"))
@pytest.mark.parametrize("gap", (1e-6, 1e-12, 1.2e-16))
def test_rest_is_exact_beside_a_huge_mode(name, gap):
    # |A| grows like 1 / (1 - alpha); a cut of small singular values would lose the slow states.
    built = operator(name, 8, alpha=1 - gap)
    rest = project(np.ones(1), np.ones(1), built)[0]
    slack = 1e-14 * (np.abs(built.A) @ np.abs(rest) + np.abs(built.B))
    assert (np.abs(built.A @ rest - built.B) <= slack).all() and np.abs(rest).max() > 0.5
