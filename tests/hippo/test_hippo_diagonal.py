"""Eigenvectors, normal parts and low-rank forms: exact where claimed, refused where not."""

from __future__ import annotations

import numpy as np
import pytest
from hippo_cases import ALPHAS, FRACTIONAL, GOLDEN, SETTINGS, build, relative, setting_id
from scipy.linalg import expm

from fractal_ssm import UsageError
from fractal_ssm.hippo import Operator, conjugate_half, diagonalize, dplr, imaginary_parts, operator
from fractal_ssm.hippo.fractional import eigensystem
from fractal_ssm.hippo.low_rank import skew_eigensystem

GOLD = np.load(GOLDEN / "fractional.npz")
CASES = sorted({key.rsplit("/", 2)[0] for key in GOLD.files})

# Imaginary parts that the published S5 code starts from (blocks of order R, the ones it keeps).
S5_KEPT = {
    2: [-0.8660],
    4: [-4.60329, -0.55650],
    8: [-19.8574, -5.3542, -1.9578, -0.4275],
    16: [-80.9661, -25.6292, -13.8343],
    32: [-325.4263],
    64: [-1303.27],
    128: [-5214.67],
}
S5_LAST = {16: -0.352, 32: -0.3011, 64: -0.2639, 128: -0.2352}


@pytest.mark.parametrize("case", CASES)
def test_golden_eigenvectors_of_the_papers_operator(case):
    alpha, N = (float(part.split("=")[1]) for part in case.split("/"))
    system = eigensystem(int(N), alpha)
    V, B_tilde = GOLD[f"{case}/fractional/V_unit_diagonal"], GOLD[f"{case}/fractional/B_tilde_unit_diagonal"]
    mine = system.sign_V * np.exp(system.log_V)
    present = V != 0
    assert ((mine != 0) == present).all()
    assert np.abs(mine[present] / V[present] - 1).max() < 1e-12
    assert np.abs(np.exp(system.log_B_tilde) / B_tilde - 1).max() < 1e-12


@pytest.mark.parametrize("key", [key for key in GOLD.files if key.endswith("eigenvalues")])
def test_golden_eigenvalues(key):
    alpha, N, name, _ = key.split("/")
    found = diagonalize(operator(name, int(N[2:]), alpha=float(alpha[6:]))).Lambda
    for expected in GOLD[key]:
        assert np.abs(-found - expected).min() <= 1e-11 * np.abs(expected)


@pytest.mark.parametrize("alpha", (0.0, 0.3, 0.9, 0.99))
@pytest.mark.parametrize("N", (40, 64))
def test_closed_form_against_sixty_digits_beyond_float64(N, alpha):
    import mpmath

    with mpmath.workdps(60 + N):
        exact = mpmath.mpf(alpha)
        h = [mpmath.sqrt(2 * n + 1 - exact) for n in range(N)]
        beta = [mpmath.binomial(n - exact, n) for n in range(N)]
        # Forward substitution for V z = B with the eigenvectors solved from A, column by column.
        V = [[mpmath.mpf(0)] * N for _ in range(N)]
        for j in range(N):
            V[j][j] = mpmath.mpf(1)
            partial = h[j] * beta[j]
            for n in range(j + 1, N):
                V[n][j] = -(h[n] / beta[n]) * partial / (n - j)
                partial += h[n] * beta[n] * V[n][j]
        z = []
        for n in range(N):
            known = mpmath.fsum(V[n][j] * z[j] for j in range(n))
            z.append(h[n] * beta[n] / mpmath.sqrt(1 - exact) - known)
        norm = [mpmath.sqrt(mpmath.fsum(V[n][j] ** 2 for n in range(j, N))) for j in range(N)]
        expected = np.array([float(z[j] * norm[j]) for j in range(N)])
        columns = np.array([[float(V[n][j] / norm[j]) for j in range(N)] for n in range(N)])
    found = diagonalize(operator("fractional", N, alpha=alpha))
    assert found.arithmetic == "closed form" and found.condition > 1e18
    assert np.abs(found.B_tilde.real / expected - 1).max() < 1e-12
    assert relative(found.V.real, columns) < 1e-12


@pytest.mark.parametrize("alpha", (0.2, 0.5, 0.9))
@pytest.mark.parametrize("N", (2, 5, 8))
def test_the_papers_operator_is_legs_in_other_coordinates(N, alpha):
    # A(alpha) = T A(0) T^-1, B(alpha) = T B(0), T = V(alpha) diag(B_tilde(alpha) / B_tilde(0)) V(0)^-1.
    here, legs = eigensystem(N, alpha), eigensystem(N, 0.0)
    T = here.sign_V * np.exp(here.log_V + (here.log_B_tilde - legs.log_B_tilde)[None, :]) @ np.exp(legs.log_W)
    built, zero = operator("fractional", N, alpha=alpha), operator("legs", N)
    scale = np.abs(T) @ np.abs(zero.A)
    assert (np.abs(built.A @ T - T @ zero.A) <= 1e-9 * scale.max()).all()
    assert relative(T @ zero.B, built.B) < 1e-9
    # And harmless ones: nothing is hidden in a singular T.
    assert np.linalg.cond(T) < 20


@pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
@pytest.mark.parametrize("N", (1, 2, 4, 63, 64, 256))
def test_direct_rebuilds_the_operator_or_refuses(setting, N):
    built = build(setting, N)
    try:
        found = diagonalize(built)
    except UsageError as error:
        assert "dplr" in str(error) or ("normal" in str(error) and "alpha >= 1e-6" in str(error))
        assert built.no_direct or built.name == "legt"
        return
    assert (found.Lambda.real < 0).all() and np.isfinite(found.size) and found.residual <= 1e-9
    np.testing.assert_allclose(np.linalg.norm(found.V, axis=0), 1.0, rtol=1e-12)
    assert (found.B_tilde.imag == 0).all() and (found.B_tilde.real >= 0).all()
    if found.arithmetic == "closed form":
        # Float64 cannot form V^-1; every pair is checked by itself.
        assert np.linalg.norm(built.A @ found.V + found.V * found.Lambda) < 1e-13 * np.linalg.norm(built.A) * N
    else:
        rebuilt = (found.V * found.Lambda) @ np.linalg.inv(found.V)
        assert np.linalg.norm(rebuilt + built.A) <= 1e-9 * np.linalg.norm(built.A)
        assert relative(found.V @ found.B_tilde, built.B) < 1e-13 * max(found.condition, 1e3)


def test_what_direct_refuses_and_the_remedy():
    for name in ("fractional-tau", "fractional-galerkin"):
        with pytest.raises(UsageError, match="alpha >= 1e-6.*method='normal'"):
            diagonalize(operator(name, 16, alpha=0.0))
    with pytest.raises(UsageError, match="Jordan"):
        diagonalize(operator("lagt", 4))
    with pytest.raises(UsageError, match="beyond float64"):
        diagonalize(operator("fractional", 1024, alpha=0.5))
    with pytest.raises(UsageError, match="tolerance"):
        diagonalize(operator("legt", 64))
    with pytest.raises(UsageError, match="not stable.*right half plane"):
        diagonalize(Operator("wrong-sign", -np.eye(3) - np.diag(np.arange(3.0)), np.ones(3)))
    with pytest.raises(UsageError, match="Did you mean 'normal'"):
        diagonalize(operator("legs", 4), "norml")


def test_a_tiny_alpha_is_a_diagonal_legs():
    # cond(V) 4e7, and the kernel of the diagonal form within 1e-8 of the dense one.
    built = operator("fractional-tau", 64, alpha=1e-6)
    found = diagonalize(built)
    for lag in (0.01, 0.3, 2.0):
        dense = expm(-lag * built.A) @ built.B
        kernel = found.V @ (np.exp(lag * found.Lambda) * found.B_tilde)
        assert np.linalg.norm(kernel - dense) < 3e-8 * np.linalg.norm(dense)
        # docs/theory.md: that much of LegS, since alpha is not 0.
        legs = expm(-lag * operator("legs", 64).A) @ operator("legs", 64).B
        assert 1e-7 < np.linalg.norm(kernel - legs) / np.linalg.norm(legs) < 4e-6


@pytest.mark.slow
def test_multiprecision_takes_over_from_float64():
    found = diagonalize(operator("legt", 24))
    assert found.arithmetic == "multiprecision" and found.residual < 1e-30 and found.condition > 1e12


@pytest.mark.parametrize("R", S5_KEPT)
def test_normal_legs_is_the_start_of_s5(R):
    Lambda, V, B_tilde, weight = conjugate_half(diagonalize(operator("legs", R), "normal"))
    assert Lambda.shape == B_tilde.shape == weight.shape == (R // 2,) and V.shape == (R, R // 2)
    assert (weight == 1).all() and (Lambda.real == -0.5).all()
    kept = S5_KEPT[R]
    np.testing.assert_allclose(Lambda.imag[: len(kept)], kept, rtol=6e-6, atol=6e-5)
    if R in S5_LAST:
        np.testing.assert_allclose(Lambda.imag[-1], S5_LAST[R], atol=6e-4)


def test_normal_legs_in_the_published_numbers():
    form = dplr(operator("legs", 4)).half()
    np.testing.assert_allclose(form.Lambda, [-0.5 - 4.60329301j, -0.5 - 0.55650112j], atol=1e-8)
    np.testing.assert_allclose(np.abs(form.B), [2.65802, 0.96693], atol=1e-5)
    np.testing.assert_allclose(np.abs(form.P[:, 0]), [1.87950, 0.68372], atol=1e-5)
    found = diagonalize(operator("legs", 4), "normal")
    assert "rank-1" in found.dropped and 0.1 < found.residual < 1 and found.condition < 1 + 1e-12


@pytest.mark.parametrize("name", ("legt", "fourier", "random"))
def test_normal_refuses_what_would_never_forget(name):
    with pytest.raises(UsageError, match="never forgets"):
        diagonalize(operator(name, 8), "normal")


@pytest.mark.parametrize("name", FRACTIONAL)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_normal_part_of_the_fractional_operators(name, alpha):
    found = diagonalize(operator(name, 16, alpha=alpha), "normal")
    expected = 0.5 * (1 + alpha) if name == "fractional" else 0.5 * (1 - alpha)
    np.testing.assert_allclose(found.Lambda.real, -expected, rtol=1e-15)


@pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
@pytest.mark.parametrize("N", (1, 2, 3, 4, 63, 64))
def test_dplr_is_exact(setting, N):
    built = build(setting, N)
    form = dplr(built)
    middle = np.diag(form.Lambda) - form.P @ form.Q.conj().T
    rebuilt = form.V @ middle @ np.linalg.inv(form.V)
    assert np.linalg.norm(rebuilt + built.A) <= 1e-10 * np.linalg.norm(built.A)
    assert relative(form.V @ form.B, built.B) < 1e-9
    assert form.rank == (min(N, 2) if built.name in ("legt", "fractional-galerkin") and N > 1 else form.P.shape[1])
    # Pairs mirror each other exactly, so half of them stands for all.
    np.testing.assert_array_equal(form.Lambda, form.Lambda[::-1].conj())
    np.testing.assert_array_equal(form.V, form.V[:, ::-1].conj())
    if N % 2 == 0:
        half = form.half()
        full = (form.V * form.Lambda) @ form.B
        twice = 2 * ((half.V * half.Lambda) @ half.B).real
        np.testing.assert_allclose(twice, full.real, atol=1e-9 * np.abs(full).max())
    else:
        with pytest.raises(UsageError, match="odd"):
            form.half()


def test_dplr_trap_rows_rescaled():
    # A matrix that is not normal plus low rank must not pass as one: no silent eigenvectors of its skew part.
    legs = operator("legs", 8)
    rows = (np.arange(8) + 1.0) ** -0.5
    with pytest.raises(UsageError, match="declares no normal-plus-low-rank form"):
        dplr(Operator("scaled-rows", rows[:, None] * legs.A, legs.B))
    with pytest.raises(UsageError, match="declares no normal-plus-low-rank form"):
        diagonalize(Operator("scaled-rows", rows[:, None] * legs.A, legs.B), "normal")


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s[1].get("alpha") != 0.0], ids=setting_id)
@pytest.mark.parametrize("N", (1, 2, 5, 8))
def test_conjugate_half_stands_for_all_modes(setting, N):
    built = build(setting, N)
    found = diagonalize(built, "normal" if built.no_direct else "direct")
    Lambda, V, B_tilde, weight = conjugate_half(found)
    assert (Lambda.imag <= 0).all()
    for lag in (0.0, 0.3, 2.0):
        whole = found.V @ (np.exp(lag * found.Lambda) * found.B_tilde)
        half = 2 * (V @ (weight * np.exp(lag * Lambda) * B_tilde)).real
        np.testing.assert_allclose(half, whole.real, atol=1e-11 * max(1, np.abs(whole).max()))
        assert np.abs(whole.imag).max() < 1e-11 * max(1, np.abs(whole).max())


@pytest.mark.parametrize("S", [np.zeros((4, 4)), np.zeros((1, 1)), np.zeros((3, 3))])
def test_skew_eigensystem_of_nothing(S):
    omega, U = skew_eigensystem(S)
    assert (omega == 0).all()
    np.testing.assert_allclose(U.conj().T @ U, np.eye(len(S)), atol=1e-14)


def test_imaginary_parts_of_s4d():
    np.testing.assert_allclose(imaginary_parts("lin", 3), np.pi * np.arange(3))
    np.testing.assert_allclose(imaginary_parts("inv", 4), [17.8254, 4.2441, 1.5279, 0.3638], atol=5e-5)
    inv = imaginary_parts("inv", 32)
    np.testing.assert_allclose(inv[[0, 1, 2, 3, -1]], [1283.4255, 414.2273, 240.3876, 165.8849, 0.3234], atol=5e-5)
    np.testing.assert_allclose(imaginary_parts("quad", 3), np.array([1, 9, 25]) / np.pi)
    np.testing.assert_allclose(imaginary_parts("inv2", 2), 4 / np.pi * (4 / np.array([1, 2]) - 1))
    np.testing.assert_allclose(imaginary_parts("legs", 2), [4.60329301, 0.55650112], atol=1e-8)
    assert (imaginary_parts("none", 5) == 0).all()
    with pytest.raises(UsageError, match="Did you mean 'lin'"):
        imaginary_parts("line", 2)
    with pytest.raises(UsageError, match="got 0"):
        imaginary_parts("lin", 0)


@pytest.mark.parametrize("name", ("fractional-tau", "fractional-galerkin"))
def test_an_alpha_near_one_is_exact_or_refused(name):
    # |A| or |B| grows like 1 / (1 - alpha), so the residual, relative to |A|, says nothing about the slow modes.
    import mpmath

    for gap in (1e-3, 1e-6, 1e-9, 1e-12, 1.2e-16):
        built = operator(name, 8, alpha=1 - gap)
        try:
            found = diagonalize(built)
        except UsageError as error:
            assert gap < 1e-5 and "alpha further from 1" in str(error)
            continue
        with mpmath.workdps(60):
            eigenvalues, V = mpmath.eig(mpmath.matrix(built.A.tolist()))
            B_tilde = mpmath.lu_solve(V, mpmath.matrix(built.B.tolist()))
            for mode in range(8):
                here = int(np.argmin([abs(complex(value) + found.Lambda[mode]) for value in eigenvalues]))
                exact = np.array([complex(V[n, here] * B_tilde[here]) for n in range(8)])
                # A mode's share of the response, which no scaling of its eigenvector changes.
                assert relative(found.V[:, mode] * found.B_tilde[mode], exact) < 10 * max(found.mode_error, 1e-12)
        assert found.driven.all() and found.mode_error <= 1e-7


@pytest.mark.parametrize("name", ("fractional-tau", "fractional-galerkin"))
def test_dplr_near_one_is_exact_or_refused(name):
    import mpmath

    for N, gap in ((8, 1e-3), (24, 1e-3), (8, 1e-6), (8, 1e-9), (8, 1e-12)):
        built = operator(name, N, alpha=1 - gap)
        try:
            form = dplr(built)
        except UsageError as error:
            assert gap < 1e-4 and "alpha further from 1" in str(error)
            continue
        assert gap > 1e-9
        with mpmath.workdps(40):
            matrix = mpmath.matrix(built.A.tolist()) + mpmath.mpc(0, 0.5) * mpmath.eye(N)
            exact = np.array([complex(x) for x in mpmath.lu_solve(matrix, mpmath.matrix(built.B.tolist()))])
        middle = 0.5j * np.eye(N) - np.diag(form.Lambda) + form.P @ form.Q.conj().T
        # The dense solve here loses more than S4's Woodbury formula does.
        assert relative(form.V @ np.linalg.solve(middle, form.B), exact) < 1e-5


def test_a_normal_form_of_another_operator_is_refused():
    legs, other = operator("legs", 8), operator("fractional", 8, alpha=0.5)
    with pytest.raises(UsageError, match="check its normal_form"):
        dplr(Operator("mine", legs.A, legs.B, normal_form=other.normal_form))


def test_only_a_declared_state_may_be_undamped():
    found = diagonalize(operator("fourier", 8))
    assert (~found.driven).sum() == 1 and found.Lambda.real[~found.driven] > -1e-8
    A, B = np.diag([0.0, 1.0]), np.array([0.0, 1.0])
    with pytest.raises(UsageError, match="not stable.*undriven"):
        diagonalize(Operator("mine", A, B))
    declared = diagonalize(Operator("mine", A, B, undriven=(0,)))
    np.testing.assert_array_equal(declared.driven, [False, True])
    np.testing.assert_allclose(declared.V, np.eye(2))
    with pytest.raises(UsageError, match="must be zero"):
        Operator("mine", A, np.ones(2), undriven=(0,))
    with pytest.raises(UsageError, match="order 2 names the states"):
        Operator("mine", A, B, undriven=(2,))
    with pytest.raises(UsageError, match="real numpy arrays"):
        Operator("mine", [[1.0]], [1.0])


def test_a_name_is_no_operator():
    for call in (diagonalize, dplr):
        with pytest.raises(UsageError, match=r"got 'legs'.*\(operator\('legs', N\)\)"):
            call("legs")
    with pytest.raises(UsageError, match="diagonalize"):
        conjugate_half(operator("legs", 2))
    with pytest.raises(UsageError, match="tolerance must be a positive number"):
        diagonalize(operator("legs", 2), tolerance="tight")


@pytest.mark.parametrize("name", ("legt", "fourier"))
@pytest.mark.parametrize("theta", (1e-320, 1e-200, 1e300))
def test_windows_outside_float64(name, theta):
    with pytest.raises(UsageError, match="between 1e-100 and 1e100.*unit of time"):
        operator(name, 4, theta=theta)


def test_the_theory_says_where_an_alpha_near_one_is_refused():
    # docs/theory.md: about 4.4e-16 N^2 / (1 - alpha), and the orders that it names.
    for N in (2, 8, 16, 64):
        found = diagonalize(operator("fractional-tau", N, alpha=0.999))
        assert abs(found.mode_error / (4.4e-16 * N**2 / 1e-3) - 1) < 0.1
    for N, serves, refuses in ((16, 1.3e-6, 1.1e-6), (256, 3.2e-4, 2.7e-4)):
        diagonalize(operator("fractional-tau", N, alpha=1 - serves))
        with pytest.raises(UsageError, match="alpha further from 1"):
            diagonalize(operator("fractional-tau", N, alpha=1 - refuses))
    dplr(operator("fractional-tau", 64, alpha=1 - 1e-3))
    with pytest.raises(UsageError, match="alpha further from 1"):
        dplr(operator("fractional-tau", 64, alpha=1 - 1e-4))
