"""Processes that are not Gaussian: long-memory volatility and on-off traffic."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from fractal_ssm.errors import UsageError
from fractal_ssm.processes import LongMemoryVolatility, OnOffTraffic
from fractal_ssm.processes.volatility import LOG_SQUARE_MEAN, LOG_SQUARE_VARIANCE


@pytest.mark.parametrize(("d", "variance", "scale"), [(0.4, 0.5, 1.0), (0.2, 1.0, 0.3), (-0.3, 0.2, 2.0)])
def test_volatility(d, variance, scale, agrees):
    process = LongMemoryVolatility(d, variance, scale)
    r = process.sample(np.random.default_rng(0), 12, (20_000,))
    agrees(r[:, :1] * r, scale**2 * np.exp(variance / 2) * np.eye(12)[0])
    logs = np.log(r**2) - 2 * np.log(scale) - LOG_SQUARE_MEAN
    agrees(logs, np.zeros(12))
    agrees(logs[:, :1] * logs, process.log_squares_covariance(12))
    squares = r**2 - scale**2 * np.exp(variance / 2)
    agrees(squares[:, :1] * squares, process.squares_covariance(12))
    w = np.array([0.3, 2.0])
    np.testing.assert_allclose(
        process.log_squares_spectrum(w) - process.log_volatility().spectrum(w), LOG_SQUARE_VARIANCE
    )


def test_moments_of_the_log_of_a_squared_normal():
    assert LOG_SQUARE_MEAN == pytest.approx(special.digamma(0.5) + np.log(2.0), abs=1e-15)
    assert LOG_SQUARE_VARIANCE == pytest.approx(special.polygamma(1, 0.5), abs=1e-14)


@pytest.mark.parametrize(("tail", "off", "sources"), [(1.5, None, 1), (1.2, 3.0, 2), (2.5, 1.4, 1), (50.0, 1.5, 1)])
@pytest.mark.parametrize("length", [1, 2, 25])
def test_traffic(tail, off, sources, length, agrees):
    process = OnOffTraffic(tail, off, sources)
    x = process.sample(np.random.default_rng(length), length, (6000,))
    assert x.shape == (6000, length) and set(np.unique(x)) <= set(range(sources + 1))
    agrees(x, np.full(length, process.mean))
    centred = x - process.mean
    agrees(centred[:, :1] * centred, process.covariance(length))
    agrees(centred[:, -1:] * centred[:, ::-1], process.covariance(length))


def test_durations_of_traffic_have_the_tail():
    x = OnOffTraffic(1.5).sample(np.random.default_rng(0), 400_000)
    edges = np.flatnonzero(np.diff(x)) + 1
    lasting = np.diff(edges)
    assert lasting.min() == 2
    for k in (2, 5, 20, 50):
        share, expected = (lasting > k).mean(), float(k) ** -1.5
        assert share == pytest.approx(expected, abs=4.5 * np.sqrt(expected / len(lasting)))


@pytest.mark.parametrize(("tail", "off"), [(1.8, None), (2.5, 3.0)])
def test_the_spectrum_of_traffic_is_the_transform_of_its_covariance(tail, off):
    process, n = OnOffTraffic(tail, off, sources=3), 8192
    gamma, k = process.covariance(n), np.arange(n)
    w = np.array([0.2, 1.0, 3.0])
    # Fejer's sum, whose bias falls as 1 / n.
    transform = [2 * (gamma * np.cos(k * value) * (1 - k / n)).sum() - gamma[0] for value in w]
    np.testing.assert_allclose(process.spectrum(w), transform, rtol=3e-3)


def test_traffic_has_long_memory():
    process = OnOffTraffic(1.4)
    gamma = process.covariance(4096)
    assert process.hurst == pytest.approx(0.8)
    assert np.log(gamma[4000] / gamma[400]) / np.log(10) == pytest.approx(2 * process.hurst - 2, abs=0.03)


# 60 digits or more, rounded, from the formula in the docstring.
@pytest.mark.parametrize(
    ("tail", "off", "w", "value"),
    [
        (10.0, 10.0, 0.3, 0.00014101246901330531),
        (20.0, 1.7, 0.3, 0.092848330125422096),
        (99.0, 99.0, 3.0, 2.012225444374671e-31),
    ],
)
def test_spectra_of_traffic_with_hardly_varying_durations(tail, off, w, value):
    assert OnOffTraffic(tail, off).spectrum(np.array([[w]])) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnOffTraffic(1.5).spectrum(np.array([0.5, 0.0])), r"in \(0, pi\], radians per step, got 0.0"),
        (lambda: OnOffTraffic(1.0), r"tail in \(1, 100\)"),
        (lambda: OnOffTraffic(1.5, 0.5), "off_tail"),
        (lambda: OnOffTraffic(1.5, sources=0), "sources"),
        (lambda: LongMemoryVolatility(0.6), "d in"),
        (lambda: LongMemoryVolatility(0.1, scale=0.0), "scale"),
        (lambda: LongMemoryVolatility(0.1, variance=-1.0), "variance"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(UsageError, match=message):
        make()
