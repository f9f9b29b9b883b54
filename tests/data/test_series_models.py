"""The classical reference models, recomputed by hand, and the archive's own baseline."""

from __future__ import annotations

import numpy as np
import pytest

from fractal_ssm.data.series.archive import ACSF1, OSULeaf, Plaid, read_ts
from fractal_ssm.data.series.arima import arima_forecast
from fractal_ssm.data.series.environment import CarbonDioxide
from fractal_ssm.data.series.garch import arch_forecasts, har_forecast
from fractal_ssm.data.series.volatility import SP500, Oil
from fractal_ssm.errors import UsageError


def test_har_is_the_regression_on_three_averages():
    rng = np.random.default_rng(0)
    daily = np.exp(rng.standard_normal(300))
    target = rng.uniform(1.0, 2.0, 300)
    rows = np.arange(30, 200)
    found = har_forecast(daily, target, (1, 5, 22), rows, log=False)
    design = np.array([[1.0, *(daily[t - k + 1 : t + 1].mean() for k in (1, 5, 22))] for t in range(30, 300)])
    coefficients = np.linalg.pinv(design[:170]) @ target[rows]
    np.testing.assert_allclose(found[30:], np.maximum(design @ coefficients, target[rows].min()))
    design[:, 1:] = np.log(design[:, 1:])
    coefficients = np.linalg.pinv(design[:170]) @ target[rows]
    np.testing.assert_allclose(
        har_forecast(daily, target, (1, 5, 22), rows, log=True)[30:], np.exp(design @ coefficients)
    )


def test_har_takes_days_without_change():
    daily = np.r_[np.zeros(20), np.ones(80)]
    forecasts = har_forecast(daily, np.zeros(100), (1, 5), np.arange(10, 60), log=True)
    assert np.isfinite(forecasts).all() and (forecasts > 0).all()


def test_garch_is_its_recursion_and_figarch_forgets_slowly():
    arch = pytest.importorskip("arch")
    rng = np.random.default_rng(3)
    returns, variance = np.zeros(1500), 1.0
    for t in range(1, 1500):
        variance = 0.05 + 0.1 * returns[t - 1] ** 2 + 0.85 * variance
        returns[t] = np.sqrt(variance) * rng.standard_normal()
    one, five = (arch_forecasts(returns, 1000, horizon) for horizon in (1, 5))
    mu, omega, alpha, beta = arch.arch_model(returns[:1000], rescale=False).fit(disp="off").params
    variance = one["GARCH(1,1)"][600]
    for t in range(601, 1500):
        variance = omega + alpha * (returns[t] - mu) ** 2 + beta * variance
        assert one["GARCH(1,1)"][t] == pytest.approx(variance)
    ahead, total = variance, variance
    for _ in range(4):
        ahead = omega + (alpha + beta) * ahead
        total += ahead
    assert five["GARCH(1,1)"][-1] == pytest.approx(total)
    assert (one["FIGARCH(1,d,1)"] > 0).all() and not np.allclose(one["FIGARCH(1,d,1)"], one["GARCH(1,1)"], rtol=0.01)


def test_an_autoregression_is_its_formula():
    sm = pytest.importorskip("statsmodels.tsa.arima.model")
    rng = np.random.default_rng(5)
    values = np.zeros(400)
    for t in range(2, 400):
        values[t] = 3.0 + 0.5 * values[t - 1] + 0.3 * values[t - 2] + rng.standard_normal()
    found = arima_forecast(values, 250, (2, 0, 0))
    mean, first, second, _ = sm.ARIMA(values[:250], order=(2, 0, 0)).fit().params
    by_hand = mean + first * (values[1:] - mean) + second * (values[:-1] - mean)
    np.testing.assert_allclose(found[1:], by_hand, rtol=1e-5)
    assert np.corrcoef(found[250:-1], values[251:])[0, 1] > 0.5


def test_a_gap_is_bridged_by_two_steps():
    pytest.importorskip("statsmodels")
    values = 10.0 + np.random.default_rng(0).standard_normal(300).cumsum() * 0.1
    values[200] = np.nan
    forecasts = arima_forecast(values, 150, (1, 0, 0))
    mean, slope = np.linalg.solve([[1, values[220] - 0], [1, values[240]]], [forecasts[220], forecasts[240]])
    assert forecasts[200] == pytest.approx(mean + slope * (mean + slope * values[199]), rel=1e-6)


def test_forecasts_of_the_level_become_forecasts_of_the_change():
    pytest.importorskip("statsmodels")
    data = CarbonDioxide(None, context=50, length=100)
    values = data.read()[:600]
    data.read = lambda: values
    data.orders = ((0, 1, 1),)
    data.prepare()
    rows = data.classical()
    assert set(rows) == {"last value", "ARIMA(0,1,1)"}
    seen = np.isfinite(values[1:, 0])
    np.testing.assert_array_equal(rows["last value"][1:][seen], 0.0)
    scored = data.scored("test")
    assert np.mean((rows["ARIMA(0,1,1)"] - data.series.target)[scored] ** 2) < np.mean(data.series.target[scored] ** 2)


@pytest.mark.parametrize("kind", [SP500, Oil])
def test_variance_forecasts_are_right_in_the_mean_of_the_training_rows(kind):
    pytest.importorskip("arch")
    data = kind(None, context=100, length=200)
    values = data.read()[:1500]
    data.read = lambda: values
    data.prepare()
    rows = data.scored("train")
    forecasts = data.variance_forecasts()
    assert set(forecasts) == {"HAR", "log-HAR", "GARCH(1,1)", "FIGARCH(1,d,1)"}
    for values in forecasts.values():
        logarithm, variance = data.calibrated(values)
        assert (data.series.target - logarithm)[rows].mean() == pytest.approx(0, abs=1e-9)
        assert (data.variance() / variance)[rows].mean() == pytest.approx(1)
        # A factor of the forecast does not matter.
        np.testing.assert_allclose(data.calibrated(7.0 * values)[1], variance)
    reference = data.reference()
    assert set(reference) == {"mean of the training part", "last value", *forecasts}
    assert reference["log-HAR"] < reference["last value"]


@pytest.mark.parametrize(("kind", "accuracy"), [(ACSF1, 0.54), (OSULeaf, 0.5207)])
def test_the_nearest_neighbour_has_the_archives_accuracy(kind, accuracy):
    """Source: the UCR archive's table of baselines, ED (w=0): errors 0.4600 and 0.4793."""
    data = prepared(kind)
    assert data.reference()["nearest neighbour, Euclidean"] == pytest.approx(accuracy, abs=5e-5)


@pytest.mark.parametrize("kind", [ACSF1, OSULeaf, Plaid])
def test_the_archives_split_is_kept(kind):
    data = prepared(kind)
    facts = data.describe()
    n_train = {"ACSF1": 100, "OSULeaf": 200, "PLAID": 537}[kind.ucr]
    assert facts["counts"]["train"] + facts["counts"]["val"] == n_train
    assert facts["counts"]["test"] == {"ACSF1": 100, "OSULeaf": 242, "PLAID": 537}[kind.ucr]
    assert min(facts["label_shares"]["val"]) > 0
    assert np.concatenate(data.split("train").series).mean() == pytest.approx(0, abs=1e-4)
    assert max(len(x) for name in facts["counts"] for x in data.split(name).series) == data.l_max


def prepared(kind):
    data = kind(None)
    try:
        data.prepare()
    except UsageError as error:
        pytest.skip(str(error).splitlines()[0])
    return data


HEAD = "# words\n@problemName Leaves\n@classLabel true a b\n@data\n"


def write_archive(folder, train: str, test: str = "1,2,3:a\n"):
    """Write the files of a set with two classes and return the dataset that reads them."""
    files = [folder / "TRAIN.ts", folder / "TEST.ts"]
    for path, text in zip(files, (train, test), strict=True):
        path.write_text(HEAD + text)

    class Leaves(ACSF1):
        name, n_classes, l_max = "leaves", 2, 4

        def files(self):
            return files

    return Leaves(None, val_share=0.25)


def test_a_set_of_the_archive(tmp_path):
    data = write_archive(tmp_path, "0,1,2:a\n1,1,1:b\n2,2,4:a\n1,3,1,5:b\n" * 2, "1,2,3:b\n")
    with pytest.raises(UsageError, match="prepare"):
        data.split("train")
    data.prepare()
    assert data.describe()["counts"] == {"train": 6, "val": 2, "test": 1}
    assert sorted(data.split("val").labels.tolist()) == [0, 1] and data.split("test")[0][1] == 1
    assert "nearest neighbour, Euclidean" not in data.reference()
    batch = data.collate([data.split("train")[index] for index in range(6)])
    assert batch.inputs.shape[2] == 1 and set(batch.lengths.tolist()) <= {3, 4}


def test_the_test_part_does_not_change_the_units(tmp_path):
    lines = "0,1,2:a\n1,1,1:b\n2,2,4:a\n1,3,1:b\n" * 2
    data, other = (write_archive(tmp_path, lines, test) for test in ("1,2,3:a\n", "100,-50,3:b\n"))
    data.prepare(), other.prepare()
    for name in ("train", "val"):
        for one, two in zip(data.split(name), other.split(name), strict=True):
            np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.parametrize(
    "text", ["", "1,2,x:a\n", "1,2,3\n", "nan,1:a\n", "1,2:c\n1,2:a\n1,3:b\n", "1,2,3,4,5:a\n1:b\n"]
)
def test_a_damaged_set_is_told(tmp_path, text):
    with pytest.raises(UsageError, match="TRAIN.ts is damaged or of another version.*--no-deps sktime"):
        write_archive(tmp_path, text).prepare()


def test_a_file_without_data_is_told(tmp_path):
    (tmp_path / "x.ts").write_text("@problemName x\n")
    with pytest.raises(UsageError, match="damaged"):
        read_ts(tmp_path / "x.ts")
