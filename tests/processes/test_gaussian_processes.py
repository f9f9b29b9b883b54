"""Stationary processes: covariances against spectra and known values, samples against covariances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, linalg

from fractal_ssm.errors import UsageError
from fractal_ssm.processes import Arfima, FractionalMotion, FractionalNoise, PowerSpectrum, Relaxations
from fractal_ssm.processes.stationary import _circulant_roots, circulant_eigenvalues

PROCESSES = [
    *(FractionalNoise(hurst, 2.0) for hurst in (0.01, 0.3, 0.5, 0.8, 0.99)),
    *(Arfima(d) for d in (-0.49, -0.2, 0.0, 0.2, 0.4, 0.49)),
    Arfima(0.3, ar=(0.5,), innovation=3.0),
    Arfima(-0.3, ar=(1.2, -0.5), ma=(0.4,)),
    Arfima(0.2, ma=(-0.7, 0.1)),
    Arfima(0.4, ar=(0.95,)),
    Relaxations((0.3, 5.0, 400.0), (1.0, 0.5, 2.0)),
    Relaxations.power_law(0.4, 1.0, 1000.0, 6),
]
process_id = dict(ids=str)


@pytest.mark.parametrize("process", PROCESSES, **process_id)
@pytest.mark.parametrize("lag", [0, 1, 7])
def test_the_covariance_is_the_transform_of_the_spectrum(process, lag):
    def wave(w):
        return float(process.spectrum(np.array([w]))[0]) * np.cos(lag * w) / np.pi

    # In the logarithm of the frequency, so that a pole at 0 is integrated and not stepped over.
    found, _ = integrate.quad(lambda s: wave(np.exp(s)) * np.exp(s), -80.0, np.log(np.pi), limit=2000)
    left_out = np.exp(-80.0 * (1.0 - 2.0 * process.memory))
    gamma = process.covariance(lag + 1)
    # Within exp(-80) of 0, d = 0.49 still holds a fifth of the variance.
    tolerance = 1e-6 * gamma[0] + 2.0 * left_out * gamma[0]
    assert found == pytest.approx(gamma[lag], abs=tolerance)


@pytest.mark.parametrize("process", PROCESSES, **process_id)
@pytest.mark.parametrize("length", [1, 2, 3, 17, 64])
def test_samples_have_the_covariance(process, length, agrees):
    """Every entry of x x^T over 4,000 samples, within standard errors."""
    x = process.sample(np.random.default_rng(length), length, (4000,))
    assert x.shape == (4000, length) and x.dtype == np.float64
    first = x[:, :1] * x
    agrees(first, process.covariance(length))
    agrees(x, np.zeros(length))
    # Stationary: the end of a sample has the law of its beginning.
    agrees(x[:, -1:] * x[:, ::-1], process.covariance(length))


@pytest.mark.parametrize("process", PROCESSES[::3], **process_id)
@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_the_map_from_draws_to_a_sample_has_exactly_the_covariance(process, length):
    """A sample is linear in its draws, sample = M z: M M^T is the covariance to rounding, with no luck involved."""
    half = len(_circulant_roots(process, length)) - 1

    class Unit:
        def standard_normal(self, shape):
            return np.eye(2 * half)

    M = process.sample(Unit(), length, (2 * half,)).T
    gamma = process.covariance(length)
    np.testing.assert_allclose(M @ M.T, linalg.toeplitz(gamma), atol=1e-11 * gamma[0])


@pytest.mark.parametrize(
    "process", [FractionalNoise(0.7), Arfima(-0.4), Arfima(0.4, ar=(0.95,)), PowerSpectrum(1.0, 64)]
)
def test_samples_follow_from_the_seed_and_the_parameters(process):
    draw = lambda seed: process.sample(np.random.default_rng(seed), 21, (2, 3))
    np.testing.assert_array_equal(draw(5), draw(5))
    assert draw(5).shape == (2, 3, 21) and not np.array_equal(draw(5), draw(6))
    # A batch is its samples, drawn one after the other.
    rng = np.random.default_rng(5)
    np.testing.assert_array_equal(draw(5)[0], np.stack([process.sample(rng, 21) for _ in range(3)]))


def test_known_values():
    np.testing.assert_allclose(FractionalNoise(0.5).covariance(4), [1, 0, 0, 0], atol=1e-15)
    np.testing.assert_allclose(FractionalNoise(0.75).covariance(2)[1], 2**0.5 - 1)
    np.testing.assert_allclose(Arfima(0.0, ar=(0.5,)).covariance(4), np.array([1, 0.5, 0.25, 0.125]) / 0.75)
    np.testing.assert_allclose(Arfima(0.0, ma=(0.5,)).covariance(4), [1.25, 0.5, 0, 0], atol=1e-15)
    # gamma_1 / gamma_0 = d / (1 - d).
    gamma = Arfima(0.3).covariance(2)
    assert gamma[1] / gamma[0] == pytest.approx(0.3 / 0.7)
    # Against the moving average with its first million weights: the tail beyond falls as n^(2d-1).
    weights = Arfima(-0.3).moving_average(1_000_000)
    np.testing.assert_allclose(Arfima(-0.3).covariance(2), [weights @ weights, weights[1:] @ weights[:-1]], rtol=1e-9)


@pytest.mark.parametrize("hurst", [0.05, 0.6, 0.95])
def test_distant_covariances_of_fractional_noise_do_not_cancel(hurst):
    n = 1 << 20
    power = hurst * (2 * hurst - 1) * float(n - 1) ** (2 * hurst - 2)
    assert FractionalNoise(hurst).covariance(n)[-1] == pytest.approx(power, rel=1e-6)


@pytest.mark.parametrize("statsmodels_case", [((0.6,), ()), ((1.1, -0.4), (0.3,)), ((), (0.5, -0.2))])
def test_short_memory_covariance_against_statsmodels(statsmodels_case):
    arma = pytest.importorskip("statsmodels.tsa.arima_process")
    ar, ma = statsmodels_case
    expected = arma.arma_acovf(np.r_[1, -np.array(ar)], np.r_[1, np.array(ma)], 12)
    np.testing.assert_allclose(Arfima(0.0, ar, ma).covariance(12), expected, atol=1e-12)


def test_an_embedding_with_negative_eigenvalues_is_doubled():
    process = Arfima(0.3, ar=(1.5, -0.9), ma=(0.5,))
    assert circulant_eigenvalues(process.covariance(17)).min() < -1e-3
    assert len(_circulant_roots(process, 17)) > 17
    assert len(_circulant_roots(FractionalNoise(0.999), 17)) == 17


def test_a_process_that_no_embedding_holds_is_refused():
    with pytest.raises(UsageError, match=r"cannot be sampled exactly over 3 steps.*a longer sample"):
        Arfima(0.49, ar=(0.999,)).sample(np.random.default_rng(0), 3)


@pytest.mark.parametrize("hurst", [0.02, 0.5, 0.7, 0.98])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_fractional_motion(hurst, length, agrees):
    motion = FractionalMotion(hurst, 3.0)
    x = motion.sample(np.random.default_rng(1), length, (4000,))
    agrees((x[:, :, None] * x[:, None]).reshape(4000, -1), motion.covariance_matrix(length).ravel())
    assert motion.covariance_matrix(length)[0, 0] == 3.0


@pytest.mark.parametrize("beta", [-1.0, 0.0, 0.7, 1.0, 2.0])
def test_power_spectrum(beta, agrees):
    process = PowerSpectrum(beta, period=64, variance=2.0)
    x = process.sample(np.random.default_rng(0), 31, (4000,))
    agrees(x[:, :1] * x, process.covariance(31))
    agrees(x[:, -1:] * x[:, ::-1], process.covariance(31))
    assert process.covariance(1)[0] == pytest.approx(2.0)
    # gamma is the mean of S cos over the ring's frequencies.
    w = 2 * np.pi * np.arange(1, 33) / 64
    twice = np.where(np.arange(1, 33) < 32, 2.0, 1.0)
    expected = [(twice * process.spectrum(w) * np.cos(w * k)).sum() / 64 for k in range(5)]
    np.testing.assert_allclose(process.covariance(5), expected, atol=1e-12)


# 60 digits, rounded, from the sum over aliases by Hurwitz zeta functions.
@pytest.mark.parametrize(
    ("hurst", "w", "value"),
    [
        (1e-17, 1.0, 0.45969769413186029),
        (1e-10, 0.01, 4.9999586457910111e-5),
        (0.999999999999, 3.0, 1.7163924579357514e-12),
    ],
)
def test_spectrum_of_fractional_noise_near_the_ends(hurst, w, value):
    assert FractionalNoise(hurst).spectrum(np.array([w]))[0] == pytest.approx(value, rel=1e-14)


def test_relaxations_cover_a_power_law_and_scale_with_speed():
    process = Relaxations.power_law(0.5, 1.0, 1e4, 24)
    gamma = process.covariance(1001)
    assert np.log(gamma[1000] / gamma[10]) / np.log(100) == pytest.approx(-0.5, abs=0.09)
    np.testing.assert_allclose(process.at_speed(4.0).covariance(5), process.covariance(17)[::4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FractionalNoise(0.0), r"hurst in \(0, 1\), got 0.0"),
        (lambda: FractionalNoise(1.0), r"hurst in \(0, 1\)"),
        (lambda: FractionalNoise(float("nan")), "hurst"),
        (lambda: FractionalNoise(0.5, -1.0), "variance"),
        (lambda: Arfima(0.5), r"d in \(-0.5, 0.5\), got 0.5"),
        (lambda: Arfima(-0.5), "d in"),
        (lambda: Arfima(0.1, ar=(1.0,)), "roots of its ar polynomial"),
        (lambda: Arfima(0.1, ma=(-1.0,)), "roots of its ma polynomial"),
        (lambda: Arfima(0.1, ar=0.5), "ar as a tuple"),
        (lambda: Arfima(True), "d in"),
        *(
            (lambda one=one, w=w: one.spectrum(np.array([0.5, w])), r"in \(0, pi\], radians per step, got")
            for one in (FractionalNoise(0.7), Arfima(-0.3), PowerSpectrum(1.0, 64), Relaxations((2.0,), (1.0,)))
            for w in (0.0, -0.5, 4.0, np.nan)
        ),
        (lambda: Arfima(0.1, ar=("a",)), "ar as a tuple of finite numbers"),
        (lambda: Arfima(0.1, ar=(10**400,)), "ar as a tuple of finite numbers"),
        (lambda: FractionalNoise(0.5, 10**400), "variance"),
        (lambda: Arfima(0.1, ma=(True,)), "ma as a tuple of finite numbers"),
        (lambda: Relaxations.power_law(0.5, 1.0, "a", 4), "longest"),
        (lambda: Relaxations.power_law(0.5, 2.0, 1.0, 4), "shortest"),
        (lambda: Relaxations((1.0,), (1.0, 2.0)), "one weight a time"),
        (lambda: Relaxations((0.0,), (1.0,)), "times"),
        (lambda: PowerSpectrum(5.0), "beta"),
        (lambda: PowerSpectrum(1.0, 63), "even period"),
        (lambda: PowerSpectrum(1.0, 64).covariance(34), "at most 33 steps of a sample, asked for 34"),
        (lambda: FractionalNoise(0.5).sample(np.random.default_rng(0), 0), "whole number length from 1"),
        (lambda: FractionalNoise(0.5).covariance(2.5), "whole number n"),
        (lambda: FractionalMotion(1.5), "hurst"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(UsageError, match=message):
        make()
