"""Series of installed packages: their targets, the rows that are scored, and no use of the future."""

from __future__ import annotations

import csv
from importlib.util import find_spec

import numpy as np
import pytest

from fractal_ssm.data.base import SPLITS
from fractal_ssm.data.series import packages
from fractal_ssm.data.series.environment import CarbonDioxide, Nile, Sunspots, season
from fractal_ssm.data.series.forecast import ForecastData
from fractal_ssm.data.series.heart import RATE, REFRACTORY, Pulse, find_beats, plausible
from fractal_ssm.data.series.volatility import SP500, Nasdaq, Oil
from fractal_ssm.data.series.windows import Series
from fractal_ssm.errors import UsageError

# Orders of the classical models in these tests; high orders would take seconds each.
QUICK = {Pulse: ((1, 0, 0), (2, 1, 1)), CarbonDioxide: ((1, 1, 1),), Sunspots: ((2, 0, 0),)}
# Number of values that are read in the slow comparisons.
FIRST = {SP500: 1400, Nasdaq: 1400, Oil: 1600, Sunspots: 309, Nile: 100, CarbonDioxide: 900, Pulse: 30_000}
FORECASTS = tuple(FIRST)
each = pytest.mark.parametrize("kind", FORECASTS, ids=lambda kind: kind.name)


def built(kind: type[ForecastData], values: np.ndarray | None = None, **options) -> ForecastData:
    """The prepared dataset, with `values` in place of those of the file."""
    pytest.importorskip(kind.install)
    data = kind(None, **options)
    data.orders = QUICK.get(kind) or getattr(data, "orders", ())
    if values is not None:
        data.read = lambda: values
    data.prepare()
    return data


def shortened(kind: type[ForecastData]) -> np.ndarray:
    """The first values of the file."""
    pytest.importorskip(kind.install)
    return kind(None).read()[: FIRST[kind]]


@each
def test_splits_follow_in_time_and_every_row_is_scored_once(kind):
    data = built(kind)
    parts = [data.part(name) for name in SPLITS]
    assert [part.start for part in parts] == [0, parts[0].stop, parts[1].stop]
    assert parts[2].stop == len(data.series.target)
    for name, part in zip(SPLITS, parts, strict=True):
        windows = data.split(name)
        seen: list[int] = []
        for index, (x, y) in enumerate(windows[i] for i in range(len(windows))):
            start = part.starts[index]
            assert part.start <= start and start + len(x) <= part.stop and len(x) == len(y) <= data.l_max
            np.testing.assert_array_equal(x, data.inputs[start : start + len(x)])
            rows = start + np.flatnonzero(np.isfinite(y[:, 0]))
            assert rows.min() >= start + data.context and rows.max() + data.series.reach < part.stop
            np.testing.assert_allclose(y[rows - start, 0], data.targets[rows], rtol=1e-6)
            seen += rows.tolist()
            assert x.dtype == y.dtype == np.float32 and x.shape[1] == data.d_input and np.isfinite(x).all()
        assert (sorted(set(seen)) if name == "train" else seen) == data.scored(name).tolist()
        with pytest.raises(IndexError):
            windows[len(windows)]
    # The first target after a border shares no values with the last target before it.
    assert data.scored("val")[0] - data.scored("train")[-1] > data.context
    assert data.scored("test")[0] - data.scored("val")[-1] > data.context


@each
def test_targets_are_the_future_and_inputs_the_past(kind):
    """Recompute both with the packages' own readers."""
    data = built(kind)
    series = data.series
    if kind in (SP500, Nasdaq, Oil):
        from arch.data import nasdaq, sp500, wti

        frame = {SP500: sp500, Nasdaq: nasdaq, Oil: wti}[kind].load().dropna()
        close = frame["DCOILWTICO" if kind is Oil else "Close"].to_numpy()
        for row in (0, 1, 700, len(close) - 7):
            change = 100 * np.log(close[row + 1] / close[row])
            assert series.measured[row, 0] == pytest.approx(change)
            if kind is Oil:
                future = sum((100 * np.log(close[row + k + 1] / close[row + k])) ** 2 for k in range(1, 6))
            else:
                high, low = frame["High"].iloc[row + 2], frame["Low"].iloc[row + 2]
                future = (100 * np.log(high / low)) ** 2 / (4 * np.log(2))
            assert series.target[row] == pytest.approx(np.log(future))
            assert data.variance()[row] == pytest.approx(future)
    elif kind is Pulse:
        assert len(series.target) == 1086 and np.isnan(series.measured).mean() < 0.05
        np.testing.assert_array_equal(series.target[:-1], series.measured[1:, 0])
    else:
        from statsmodels.datasets import co2, nile, sunspots

        frame = {Sunspots: sunspots, Nile: nile, CarbonDioxide: co2}[kind].load_pandas().data
        values = frame.iloc[:, -1].to_numpy()
        if kind is CarbonDioxide:
            last = frame.iloc[:, -1].ffill().to_numpy()
            np.testing.assert_allclose(series.target[:-1], values[1:] - last[:-1])
            np.testing.assert_allclose(series.measured[1:, 0], values[1:] - last[:-1])
            days = (frame.index[1:] - frame.index[0]).days.to_numpy()
            np.testing.assert_allclose(series.known[:-1, 0], np.sin(2 * np.pi * days / 365.2425), atol=1e-9)
        else:
            np.testing.assert_array_equal(series.target[:-1], values[1:])
            np.testing.assert_array_equal(series.measured[:, 0], values)
    assert np.isnan(series.target[-series.reach :]).all()


def test_missing_weeks_are_marked_and_not_scored():
    data = built(CarbonDioxide)
    missing = np.isnan(data.series.measured[:, 0])
    assert 59 <= missing.sum() <= 61
    np.testing.assert_array_equal(data.inputs[:, 1], ~missing)
    assert (data.inputs[missing, 0] == 0).all()
    np.testing.assert_array_equal(np.isnan(data.series.target[:-1]), missing[1:])
    assert set(data.scored("test")) == {row for row in data.part("test").rows if not missing[row + 1]}


@each
def test_units_are_those_of_the_training_part(kind):
    data = built(kind)
    n, reach = data.n_train, data.series.reach
    target = data.series.target[: n - reach]
    assert np.nanmean(data.targets[: n - reach]) == pytest.approx(0, abs=1e-9)
    assert np.nanstd(data.targets[: n - reach]) == pytest.approx(1)
    first = data.series.measured[:n, 0]
    scaled = data.inputs[:n, 0][np.isfinite(first)]
    assert scaled.mean() == pytest.approx(0, abs=1e-4) and scaled.std() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(data.in_unit(data.targets)[: n - reach], target)
    rows = data.scored("test")
    mean_row = np.mean(data.targets[rows] ** 2)
    assert data.reference()["mean of the training part"] == pytest.approx(mean_row)


def facts_until(data: ForecastData, rows: int) -> dict[str, np.ndarray]:
    """Everything that depends on the first rows alone: inputs, complete targets, units, classical forecasts."""
    facts = {
        "inputs": data.inputs[:rows],
        "targets": data.targets[: rows - data.series.reach],
        "scale": np.array(data.describe()["scale"]["mean"]) if data.n_train <= rows else np.zeros(()),
    }
    return facts | {name: forecast[:rows] for name, forecast in data.classical().items()}


def with_future(values: np.ndarray, cut: int, how: str) -> np.ndarray:
    """The same values before `cut`; from there on in another order, or replaced."""
    rng, changed = np.random.default_rng(0), values.copy()
    changed[cut:] = rng.permutation(changed[cut:]) if how == "shuffled" else rng.uniform(0.5, 2.0) * changed[cut:][::-1]
    assert not np.array_equal(changed, values, equal_nan=True)
    return changed


def assert_blind_to_the_future(kind: type[ForecastData], how: str, at: str) -> None:
    values = shortened(kind)
    data = built(kind, values, context=min(kind(None).context, 100), length=min(kind(None).l_max, 200))
    # The first row that may change: the first after training, or one in the middle of the test part.
    row = data.n_train if at == "border" else (data.part("test").start + len(data.series.target)) // 2
    if kind is Pulse:
        # Row t is known REFRACTORY after its last beat, and the slope reaches one sample further.
        known = data.series.time[row - 1] * len(values) + REFRACTORY * RATE
        cut = int(known) + 2
    else:
        cut = row + data.offset
    other = built(kind, with_future(values, cut, how), context=data.context, length=data.l_max)
    assert other.n_train == data.n_train
    before, after = facts_until(data, row), facts_until(other, row)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


@each
@pytest.mark.parametrize(("how", "at"), [("shuffled", "border"), ("replaced", "test")])
def test_the_future_changes_nothing_before_it(kind, how, at):
    assert_blind_to_the_future(kind, how, at)


class Leaking(Nile):
    """A dataset whose inputs include the next year's value."""

    def build(self, values):
        series = super().build(values)
        return Series(np.roll(values, -1, axis=0), series.known, series.target)


class ScaledByAll(Nile):
    """A dataset that divides by the standard deviation of all years."""

    def build(self, values):
        return super().build(values / values.std())


class FittedOnAll(Nile):
    """A dataset whose classical models are fitted to all years."""

    n_train = property(lambda self: len(self.series.target))


@pytest.mark.parametrize("kind", [Leaking, ScaledByAll, FittedOnAll])
def test_a_leak_is_found(kind, monkeypatch):
    monkeypatch.setitem(FIRST, kind, 100)
    with pytest.raises(AssertionError):
        assert_blind_to_the_future(kind, "replaced", "test")


def test_beats_of_a_made_up_pulse():
    rng = np.random.default_rng(1)
    times = 1.0 + np.cumsum(rng.uniform(0.55, 0.8, 300))
    clock = np.arange(int((times[-1] + 1) * RATE)) / RATE
    wave = np.zeros(len(clock))
    for time in times:
        # Each beat has two humps; the second, like the reflected wave, is lower and slower.
        wave += 100 * np.exp(-0.5 * ((clock - time) / 0.05) ** 2) + 35 * np.exp(
            -0.5 * ((clock - time - 0.28) / 0.07) ** 2
        )
    found = find_beats(wave)
    assert len(found) == len(times)
    np.testing.assert_allclose(np.diff(found), np.diff(times), atol=0.004)


def test_a_beat_that_was_missed_is_not_plausible():
    intervals = np.array([0.6, 0.62, 1.24, 0.6, 0.3, 0.31, 0.59, *[0.9] * 7, 0.85])
    kept = plausible(intervals)
    np.testing.assert_array_equal(kept[:7], [True, True, False, True, False, False, True])
    # A lasting change is accepted after five beats.
    np.testing.assert_array_equal(kept[7:], [False] * 5 + [True] * 3)
    assert plausible(np.array([])).shape == (0,)


def test_the_rate_is_that_of_the_time_stamps():
    heartpy = pytest.importorskip("heartpy")
    _, stamps = heartpy.load_exampledata(2)
    assert heartpy.get_samplerate_datetime(stamps, timeformat="%Y-%m-%d %H:%M:%S.%f") == pytest.approx(RATE, abs=0.01)


def test_the_season_turns_once_a_year():
    # 400 years are 20,871 weeks.
    np.testing.assert_allclose(season(20_872)[20_871], season(1)[0], atol=1e-6)


def test_fingerprint_and_facts_tell_the_splits_apart():
    data, same, other = built(Sunspots), built(Sunspots), built(Sunspots, train_share=0.5)
    assert data.describe() == same.describe()
    assert data.describe()["split_fingerprint"] != other.describe()["split_fingerprint"]
    facts = data.describe()
    assert facts["lra"] is False and facts["licence"] == "public domain" and len(facts["checksum"]) == 64
    assert facts["counts"] == {name: len(data.split(name)) for name in SPLITS}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SP500(None, context=0), "context >= 1"),
        (lambda: SP500(None, length=256), "length >= 257"),
        (lambda: Nile(None, train_share=1.0), "0 < train_share < 1"),
        (
            lambda: Nile(None, train_share=0.7, val_share=0.3),
            "train_share [+] dataset.val_share < 1, .* got 0.7 [+] 0.3. Lower",
        ),
        (lambda: Nile(None, stride=0), "stride >= 1"),
        (lambda: Nile(None).split("train"), "prepare"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_context_that_leaves_no_targets():
    with pytest.raises(UsageError, match=r"The val part has 20 rows.*dataset\.context"):
        built(Nile, np.ones((100, 1)), context=30, length=40)


@each
def test_a_missing_package_is_told_with_the_command(kind, monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"{kind.name} reads .*Run: pip install {kind.install}"):
        kind(None).prepare()


@pytest.mark.parametrize(
    "text", [b"", b"year\n1871", b"year,volume\n1871,many\n", b"year,volume\n1871,inf\n", b"\xff\xfe"]
)
def test_a_damaged_file_is_told(tmp_path, monkeypatch, text):
    path = tmp_path / "nile.csv"
    path.write_bytes(text)
    monkeypatch.setattr(Nile, "files", lambda self: [path])
    with pytest.raises(UsageError, match="damaged.*pip install --force-reinstall statsmodels"):
        Nile(None).prepare()


def test_columns_are_found_by_name(tmp_path):
    path = tmp_path / "file.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["b", "a"], ["", "1"], [".", "2"]])
    values = packages.numbers(path, packages.read_columns(path, ("a", "b"), "x"), "x")
    np.testing.assert_array_equal(values, [[1, np.nan], [2, np.nan]])


def test_the_packages_are_only_looked_for():
    """No package is imported, which would run its code and take seconds."""
    if find_spec("statsmodels") is None:
        pytest.skip("statsmodels is not installed")
    place = packages.package_file("x", "y", "nowhere_at_all/z", "statsmodels/datasets/nile/nile.csv")
    assert place.name == "nile.csv"
