"""Conjugate pairs and real modes of measures from outside, and what a measure may not return."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from fractal_ssm import S4D, Fractal, UsageError, hippo
from fractal_ssm.hippo.diagonal import Diagonal
from fractal_ssm.registry import measures


@contextmanager
def measure(build):
    """`build` (N -> what the measure returns) registered as "toy"."""

    def toy(N: int):
        return build(N)

    measures.register("toy")(toy)
    try:
        yield
    finally:
        del measures._parts["toy"]


def scaled_legs(factor):
    def build(N):
        base = hippo.operator("legs", N)
        return hippo.Operator(name="toy", A=factor * base.A, B=factor * base.B)

    return build


def similar(blocks, seed=0):
    """An operator with the given real 1x1 and 2x2 diagonal blocks, in a random orthonormal basis."""
    n = sum(len(block) for block in blocks)
    A, at = np.zeros((n, n)), 0
    for block in blocks:
        A[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return hippo.Operator(name="toy", A=Q @ A @ Q.T, B=rng.standard_normal(n))


def pair(real, imag):
    return np.array([[real, imag], [-imag, real]])


def response(Lambda, B, C, times):
    return (np.exp(np.outer(times, Lambda)) * (B * C)).sum(1)


@pytest.mark.parametrize("factor", [0.5, 0.3, 0.1, 1 / 3, 0.7, 1.0, 3.0, 1e-3, 1e3])
@pytest.mark.parametrize("N", [1, 2, 3, 8, 15, 16, 21, 32])
def test_no_mode_of_a_scaled_real_spectrum_is_lost(factor, N):
    with measure(scaled_legs(factor)):
        diagonal = hippo.diagonalize(hippo.operator("toy", N))
    Lambda, _, _, weight = hippo.conjugate_half(diagonal)
    assert len(Lambda) == N
    assert (Lambda.imag == 0).all()
    assert (weight == 0.5).all()
    np.testing.assert_allclose(np.sort(-Lambda.real), factor * np.arange(1, N + 1), rtol=1e-6)


def test_a_layer_keeps_every_mode_of_a_scaled_legs():
    with measure(scaled_legs(0.5)):
        assert S4D(4, d_state=16, init={"name": "toy"}, method="direct").A_real.shape[1] == 16
        assert Fractal(4, d_state=16, n_alphas=1, measure="toy").n_modes == 16


@pytest.mark.parametrize(
    "blocks",
    [
        [[[1.0]], [[2.0]], pair(0.5, 3.0)],
        [pair(0.5, 1e-6), pair(0.7, 4.0)],
        [[[0.5]], pair(1e-3, 1e4), pair(0.5, 1e-3)],
        [pair(0.5, 2.0), pair(0.5, 2.0 + 1e-8), [[3.0]]],
        [[[1.0]], [[1.0 + 1e-7]], pair(1.0, 1e-7)],
    ],
)
def test_the_half_gives_the_response_of_the_whole(blocks):
    operator = similar([np.array(block) for block in blocks])
    diagonal = hippo.diagonalize(operator)
    Lambda, V, B, weight = hippo.conjugate_half(diagonal)
    C, times = np.random.default_rng(1).standard_normal(operator.N), np.linspace(0, 3, 7)
    whole = response(diagonal.Lambda, diagonal.B_tilde, C @ diagonal.V, times)
    half = 2 * response(Lambda, weight * B, C @ V, times).real
    np.testing.assert_allclose(half, whole, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("N", [17, 24, 31, 32])
def test_multiprecision_pairs_are_exact(N):
    diagonal = hippo.diagonalize(hippo.operator("legt", N))
    assert diagonal.arithmetic == ("float64" if N == 17 else "multiprecision")
    lower, upper = diagonal.Lambda[diagonal.Lambda.imag < 0], diagonal.Lambda[diagonal.Lambda.imag > 0]
    assert set(lower.conj()) == set(upper)
    assert len(lower) == len(upper) >= N // 2 - 1
    assert len(hippo.conjugate_half(diagonal)[0]) == N - len(upper)


def test_a_mode_without_its_partner_is_refused():
    whole = hippo.diagonalize(hippo.operator("legt", 8))
    for Lambda in (whole.Lambda * (1 + 1e-3j), np.abs(whole.Lambda) * (-1 - 1j)):
        torn = Diagonal(Lambda, whole.V, whole.B_tilde, whole.driven, 0.0, 1.0, "float64")
        with pytest.raises(UsageError, match="conjugate pairs"):
            hippo.conjugate_half(torn)


GARBAGE = {
    "none": lambda N: None,
    "a pair": lambda N: (np.eye(N), np.ones(N)),
    "lists": lambda N: hippo.Operator("toy", [[1.0]], [1.0]),
    "complex": lambda N: hippo.Operator("toy", np.eye(N) * 1j, np.ones(N)),
    "nan": lambda N: hippo.Operator("toy", np.eye(N) * np.nan, np.ones(N)),
    "not square": lambda N: hippo.Operator("toy", np.ones((N, N + 1)), np.ones(N)),
    "column": lambda N: hippo.Operator("toy", np.eye(N), np.ones((N, 1))),
    "another order": lambda N: hippo.Operator("toy", np.eye(N + 1), np.ones(N + 1)),
    "empty": lambda N: hippo.Operator("toy", np.ones((0, 0)), np.ones(0)),
    "unstable": lambda N: hippo.Operator("toy", np.diag(np.arange(N) - 1.5), np.ones(N)),
    "undamped": lambda N: hippo.Operator("toy", np.kron(np.eye(N // 2), pair(0, 1.0)), np.ones(N)),
    "one jordan block": lambda N: hippo.Operator("toy", np.eye(N) + np.eye(N, k=1), np.ones(N)),
    "text": lambda N: hippo.Operator("toy", np.full((N, N), "a"), np.ones(N)),
    "objects": lambda N: hippo.Operator("toy", np.full((N, N), None), np.ones(N)),
    "kind": lambda N: hippo.Operator("toy", np.eye(N), np.ones(N), kind="sliding window"),
    "normal form of another order": lambda N: hippo.Operator(
        "toy", np.eye(N), np.ones(N), normal_form=hippo.operator("legs", N + 2).normal_form
    ),
    "normal form of vectors": lambda N: hippo.Operator(
        "toy", np.eye(N), np.ones(N), normal_form=hippo.NormalForm(np.ones(N), 0.5, 0 * np.eye(N), *np.ones((2, N)))
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_measure_that_returns_garbage_is_told(name):
    with measure(GARBAGE[name]):
        for attempt in (
            lambda: hippo.diagonalize(hippo.operator("toy", 4)),
            lambda: Fractal(4, d_state=4, n_alphas=1, measure="toy"),
            lambda: S4D(4, d_state=4, init={"name": "toy"}, method="direct"),
        ):
            with pytest.raises(UsageError):
                attempt()


def test_single_precision_and_whole_numbers_are_taken_as_they_are():
    for dtype in (np.float32, np.int64):
        built = hippo.Operator("toy", np.diag([1, 2]).astype(dtype), np.ones(2, dtype=dtype))
        assert built.A.dtype == built.B.dtype == np.float64
        assert hippo.diagonalize(built).Lambda.tolist() == [-1.0, -2.0]
