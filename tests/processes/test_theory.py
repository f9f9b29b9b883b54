"""Predictors, filters and estimates against dense solves, limits and each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from fractal_ssm.errors import UsageError
from fractal_ssm.processes import (
    Arfima,
    FractionalNoise,
    OptimalPredictor,
    PowerSpectrum,
    Relaxations,
    ShortPredictor,
    Smoother,
    WienerFilter,
    durbin_levinson,
    filtering_limit,
    innovation_variance,
    posterior_mean,
    smoothing_limit,
    whittle,
    wold,
)

PROCESSES = [
    *(FractionalNoise(hurst) for hurst in (0.05, 0.5, 0.8, 0.98)),
    *(Arfima(d) for d in (-0.4, 0.2, 0.45)),
    Arfima(0.3, ar=(0.8,), ma=(0.3,), innovation=2.0),
    Relaxations((2.0, 100.0), (1.0, 3.0)),
    PowerSpectrum(1.0, 4096),
]
process_id = dict(ids=str)


def dense(process, n, h):
    """Coefficients, for x_0 .. x_{n-1} in this order, and error of the prediction of x_{n-1+h}, by a dense solve."""
    gamma = process.covariance(n + h)
    G, wanted = linalg.toeplitz(gamma[:n]), gamma[h : n + h][::-1]
    found = np.linalg.solve(G, wanted)
    return found, gamma[0] - found @ wanted


@pytest.mark.parametrize("process", PROCESSES, **process_id)
def test_durbin_levinson_against_dense_solves(process):
    found = durbin_levinson(process.covariance(41))
    for n in (1, 2, 13, 40):
        coefficients, mse = dense(process, n, 1)
        assert found.mse[n] == pytest.approx(mse, rel=1e-9)
        assert found.partial[n - 1] == pytest.approx(coefficients[0], abs=1e-9)
    np.testing.assert_allclose(found.coefficients[::-1], coefficients, atol=1e-9)
    assert found.mse[0] == process.covariance(1)[0] and np.all(np.diff(found.mse) <= 0)


def test_durbin_levinson_against_statsmodels():
    tsa = pytest.importorskip("statsmodels.tsa.stattools")
    gamma = Arfima(0.3, ar=(0.5,)).covariance(21)
    sigma, coefficients, partial, *_ = tsa.levinson_durbin(gamma, nlags=20, isacov=True)
    found = durbin_levinson(gamma)
    assert found.mse[-1] == pytest.approx(sigma)
    np.testing.assert_allclose(found.coefficients, coefficients, atol=1e-12)
    np.testing.assert_allclose(found.partial, partial[1:], atol=1e-12)


@pytest.mark.parametrize("d", [-0.4, 0.1, 0.45])
def test_partial_autocorrelations_of_fractional_noise_are_known(d):
    # Hosking 1981: d / (k - d).
    k = np.arange(1, 200)
    np.testing.assert_allclose(durbin_levinson(Arfima(d).covariance(200)).partial, d / (k - d), rtol=1e-9)


@pytest.mark.parametrize("process", PROCESSES, **process_id)
@pytest.mark.parametrize("horizon", [1, 7])
def test_the_optimal_predictor_against_dense_solves(process, horizon):
    n = 31
    predictor, x = OptimalPredictor(process, n, horizon), np.random.default_rng(0).standard_normal((2, 3, n))
    found = predictor.predict(x)
    for t in (0, 1, 16, 30):
        coefficients, mse = dense(process, t + 1, horizon)
        assert predictor.mse[t] == pytest.approx(mse, rel=1e-8)
        np.testing.assert_allclose(found[..., t], x[..., : t + 1] @ coefficients, atol=1e-8)


@pytest.mark.parametrize("process", PROCESSES[3:], **process_id)
@pytest.mark.parametrize(("order", "horizon"), [(1, 1), (3, 1), (5, 20)])
def test_short_predictors_against_dense_solves(process, order, horizon):
    n = 11
    predictor, x = ShortPredictor(process, order, horizon), np.random.default_rng(0).standard_normal((4, n))
    found, errors = predictor.predict(x), predictor.mse(n)
    for t in range(n):
        used = min(t + 1, order)
        coefficients, mse = dense(process, used, horizon)
        assert errors[t] == pytest.approx(mse, rel=1e-9)
        np.testing.assert_allclose(found[:, t], x[:, t + 1 - used : t + 1] @ coefficients, atol=1e-9)
    assert np.all(errors >= OptimalPredictor(process, n, horizon).mse - 1e-12)


@pytest.mark.parametrize("kind", ["predict", "short", "filter"])
def test_nothing_looks_ahead(kind):
    process, rng = Arfima(0.3), np.random.default_rng(0)
    apply = {
        "predict": OptimalPredictor(process, 20, 3).predict,
        "short": ShortPredictor(process, 4, 3).predict,
        "filter": WienerFilter(process, 0.5, 20).estimate,
    }[kind]
    x = rng.standard_normal((1, 20))
    other = x.copy()
    other[:, 12:] = rng.permutation(other[:, 12:].T).T + 1.0
    np.testing.assert_allclose(apply(x)[:, :12], apply(other)[:, :12], atol=1e-12)
    assert not np.allclose(apply(x)[:, 12:], apply(other)[:, 12:])


@pytest.mark.parametrize("d", [-0.45, -0.1, 0.2, 0.45])
@pytest.mark.parametrize("innovation", [1.0, 0.3])
def test_the_infinite_past_of_arfima(d, innovation):
    process = Arfima(d, ar=(0.4,), ma=(-0.3,), innovation=innovation)
    assert innovation_variance(process) == pytest.approx(innovation, rel=1e-8)
    # (1 + theta z) (1 - z)^-d / (1 - phi z), multiplied out.
    fractional = np.cumprod([1.0, *((d + np.arange(8)) / np.arange(1, 9))])
    psi = np.convolve([1.0, -0.3], np.convolve(0.4 ** np.arange(9), fractional))[:9]
    np.testing.assert_allclose(process.moving_average(9), psi, atol=1e-13)
    np.testing.assert_allclose(wold(process, 9), psi, atol=1e-7)
    # The finite past tends to it: the remainder falls as d^2 / n.
    mse = durbin_levinson(process.covariance(2001)).mse[-1]
    assert 0 < mse / innovation - 1 == pytest.approx(d**2 / 2000, rel=0.05)


@pytest.mark.parametrize("hurst", [0.1, 0.6, 0.9])
def test_the_infinite_past_of_fractional_noise(hurst):
    process = FractionalNoise(hurst)
    n, d = 2000, hurst - 0.5
    mse = durbin_levinson(process.covariance(n + 1)).mse
    assert 0 < mse[n] / innovation_variance(process) - 1 == pytest.approx(d**2 / n, rel=0.05)
    far = OptimalPredictor(process, 600, 4).mse[-1]
    assert far == pytest.approx(innovation_variance(process) * (wold(process, 4) ** 2).sum(), rel=2e-3)


@pytest.mark.parametrize("process", PROCESSES[:-1], **process_id)
@pytest.mark.parametrize("noise", [0.1, 2.0])
def test_filters_against_dense_solves(process, noise):
    n = 24
    gamma, y = linalg.toeplitz(process.covariance(n)), np.random.default_rng(0).standard_normal((3, n))
    causal, smoother = WienerFilter(process, noise, n), Smoother(process, noise, n)
    for t in (0, 1, 10, 23):
        seen = gamma[: t + 1, : t + 1] + noise * np.eye(t + 1)
        weights = np.linalg.solve(seen, gamma[t, : t + 1])
        assert causal.mse[t] == pytest.approx(gamma[t, t] - weights @ gamma[t, : t + 1], rel=1e-9)
        np.testing.assert_allclose(causal.estimate(y)[:, t], y[:, : t + 1] @ weights, atol=1e-9)
        weights = np.linalg.solve(gamma + noise * np.eye(n), gamma[t])
        assert smoother.mse[t] == pytest.approx(gamma[t, t] - weights @ gamma[t], rel=1e-9)
        np.testing.assert_allclose(smoother.estimate(y)[:, t], y @ weights, atol=1e-9)


@pytest.mark.parametrize(
    "process", [FractionalNoise(0.2), FractionalNoise(0.8), Arfima(0.4), Relaxations((30.0,), (1.0,))]
)
def test_filters_tend_to_their_limits(process):
    n, noise = 1200, 1.0
    assert WienerFilter(process, noise, n).mse[-1] == pytest.approx(filtering_limit(process, noise), rel=1e-3)
    assert Smoother(process, noise, n).mse[n // 2] == pytest.approx(smoothing_limit(process, noise), rel=1e-3)


@pytest.mark.parametrize("process", [FractionalNoise(0.9), Arfima(-0.4), Relaxations((2.0, 50.0), (1.0, 1.0))])
def test_errors_on_samples_are_the_expected_ones(process, agrees):
    rng, n, noise = np.random.default_rng(0), 40, 0.5
    x = process.sample(rng, n + 5, (3000,))
    y = x[:, :n] + np.sqrt(noise) * rng.standard_normal((3000, n))
    predictor = OptimalPredictor(process, n, 5)
    agrees((predictor.predict(x[:, :n]) - x[:, 5:]) ** 2, predictor.mse)
    short = ShortPredictor(process, 2, 5)
    agrees((short.predict(x[:, :n]) - x[:, 5:]) ** 2, short.mse(n))
    for estimator in (WienerFilter(process, noise, n), Smoother(process, noise, n)):
        agrees((estimator.estimate(y) - x[:, :n]) ** 2, estimator.mse)


@pytest.mark.parametrize("family", [FractionalNoise, lambda value: Arfima(value - 0.5)])
@pytest.mark.parametrize("truth", [0.2, 0.5, 0.85])
def test_estimates_of_the_exponent(family, truth, agrees):
    x = family(truth).sample(np.random.default_rng(0), 512, (60,))
    found = whittle(x, family, 0.02, 0.98)
    # Known: sqrt(6 / n) / pi is the standard error of d in large samples.
    assert found.std() == pytest.approx(np.sqrt(6 / 512) / np.pi, rel=0.5)
    agrees(found[:, None], np.array([truth]))
    # The scale is free, and so is the mean.
    np.testing.assert_allclose(whittle(7.0 * x[:3] + 5.0, family, 0.02, 0.98), found[:3], atol=1e-4)


def test_no_estimate_beats_the_posterior_mean():
    rng, low, high = np.random.default_rng(0), 0.1, 0.9
    truth = rng.uniform(low, high, 300)
    x = np.stack([FractionalNoise(value).sample(rng, 64) for value in truth])
    best = posterior_mean(x, FractionalNoise, low, high)
    np.testing.assert_allclose(best, posterior_mean(x, FractionalNoise, low, high, nodes=150), atol=1e-6)
    errors = (best - truth) ** 2
    other = (whittle(x, FractionalNoise, low, high) - truth) ** 2
    assert errors.mean() < other.mean()
    # Calibrated: its errors are uncorrelated with itself.
    product = (truth - best) * best
    assert abs(product.mean()) < 4 * product.std() / np.sqrt(300)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: durbin_levinson(np.array([1.0, 1.0, 1.0])), "not positive definite"),
        (lambda: durbin_levinson(np.array([1.0, 2.0])), "not positive definite: .* from 1 values is -3"),
        (lambda: durbin_levinson(np.array([1.0, 0.9, -0.9])), "not positive definite: .* from 2 values"),
        (lambda: OptimalPredictor(Arfima(0.3), 5).predict(np.zeros((1, 10))), r"samples \(..., 5\), got .* \(1, 10\)"),
        (lambda: WienerFilter(Arfima(0.3), 1.0, 5).estimate(np.zeros((1, 10))), "This WienerFilter was made for"),
        (lambda: Smoother(Arfima(0.3), 1.0, 5).estimate(np.zeros((2, 4))), "Make one for 4 positions"),
        (lambda: Smoother(Arfima(0.3), 1.0, 5).estimate(np.float64(1.0)), "Make one for 1 positions"),
        (lambda: whittle(np.zeros(16), FractionalNoise, 0.9, 0.1), "got 0.9 and 0.1|got 0.9, 0.1"),
        (lambda: posterior_mean(np.zeros(16), FractionalNoise, 0.1, float("nan")), "low < high"),
        (lambda: OptimalPredictor(Arfima(0.1), 0), "whole number n"),
        (lambda: OptimalPredictor(Arfima(0.1), 10, 0), "horizon"),
        (lambda: OptimalPredictor(Arfima(0.1), 9000), "at most 8,192"),
        (lambda: ShortPredictor(Arfima(0.1), 0), "order"),
        (lambda: WienerFilter(Arfima(0.1), 0.0, 5), "noise"),
        (lambda: Smoother(Arfima(0.1), -1.0, 5), "noise"),
        (lambda: whittle(np.zeros((2, 5)), FractionalNoise, 0.1, 0.9), "8 steps at least"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(UsageError, match=message):
        make()
