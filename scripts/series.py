"""Writes the tables of docs/series.md: layers and the field's established models on real series.

    python -m scripts.series runs/compare/series-series-sp500 [MORE FOLDERS ...]

Finished runs below the folders are added to docs/results/series.csv, the reference rows of their records to
docs/results/series-reference.csv; the tables are written from these two files, with or without folders. For volatility
the forecasts of each run's best checkpoint are recomputed and scored by QLIKE and by squared error of the variance.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy.stats import t as student

from fractal_ssm import load_model
from fractal_ssm.compare.runs import own_settings
from fractal_ssm.data.series.forecast import ForecastData
from fractal_ssm.data.series.packages import package_file
from fractal_ssm.data.series.volatility import VolatilityData
from fractal_ssm.errors import UsageError
from fractal_ssm.registry import datasets

from . import records, tables

PAGE = records.ROOT / "docs" / "series.md"
COLUMNS = (
    *("dataset", "layer", "seed", "started", "metric", "test", "qlike", "variance_error", "parameters", "cpu_seconds"),
    *("checksum", "split_fingerprint", "settings"),
)
REFERENCE = ("dataset", "model", "metric", "test", "qlike", "variance_error")
NAMES = [name for name in datasets.names() if name.startswith("series-")]
PUBLISHED = ("HC2", "InceptionTime", "WEASEL-2.0", "FreshPRINCE")


def qlike(variance: np.ndarray, forecasts: np.ndarray) -> float:
    """Mean of v / f - ln(v / f) - 1 over the days; 0 for a perfect forecast (Patton 2011).

    >>> qlike(np.array([2.0]), np.array([2.0]))
    0.0
    """
    ratio = variance / forecasts
    return float(np.mean(ratio - np.log(ratio) - 1.0))


def variance_scores(data: VolatilityData, forecasts: np.ndarray) -> dict[str, float]:
    """QLIKE and mean squared error on the test rows of positive forecasts (n,), calibrated on the training rows."""
    rows, variance = data.scored("test"), data.variance()
    calibrated = data.calibrated(forecasts)[1][rows]
    return {
        "qlike": qlike(variance[rows], calibrated),
        "variance_error": float(np.mean((variance[rows] - calibrated) ** 2)),
    }


@torch.no_grad()
def layer_forecasts(model: torch.nn.Module, data: ForecastData) -> np.ndarray:
    """(n,) forecasts of the target, in its unit, at the rows that windows score, NaN elsewhere. A row in several
    training windows gets the forecast of the last window, which has the shortest past."""
    forecasts = np.full(len(data.series.target), np.nan)
    model.eval()
    for name in ("train", "val", "test"):
        part, windows = data.part(name), data.split(name)
        # The windows of a part have one length.
        inputs = np.stack([windows[index][0] for index in range(len(part.starts))])
        outputs = model(torch.from_numpy(inputs))
        for index, start in enumerate(part.starts):
            scored = part.scored(index)
            forecasts[scored] = data.in_unit(outputs[index, scored - start, 0].double().numpy())
    return forecasts


@functools.cache
def fitted(node: str) -> tuple[object, dict[str, np.ndarray]]:
    """The dataset of a configuration (JSON), and the variance forecasts of its classical models where it has them.

    Cached: fitting FIGARCH takes seconds, and the runs of one dataset share it.
    """
    data = datasets.build(json.loads(node), data_dir=Path("data"))
    if not isinstance(data, VolatilityData):
        return data, {}
    data.prepare()
    return data, data.variance_forecasts()


def row_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run as a row, and the reference rows of its dataset."""
    record = json.loads(path.read_text())
    metric = record["metric"]["name"]
    experiment = record["choices"]["experiment"].removeprefix("series/")
    row = {
        "dataset": record["dataset"],
        "layer": experiment.rsplit("-", 1)[0],
        "seed": record["seed"],
        "started": record["started"],
        "metric": metric,
        "test": record["metrics"]["test"][metric],
        "parameters": record["parameters"],
        "cpu_seconds": round(record["fit_cpu_seconds"]),
        "checksum": record["data"]["checksum"],
        "split_fingerprint": record["data"]["split_fingerprint"],
        "settings": own_settings(record),
    }
    reference = [
        {"dataset": record["dataset"], "model": name, "metric": metric, "test": value}
        for name, value in record["reference"].items()
    ]
    node = yaml.safe_load(path.with_name("config.yaml").read_text())["dataset"]
    data, classical = fitted(json.dumps(node, sort_keys=True))
    if isinstance(data, VolatilityData):
        model = load_model(path.parent / "checkpoints" / "best.ckpt")
        row |= variance_scores(data, np.exp(layer_forecasts(model, data)))
        for line in reference:
            if line["model"] in classical:
                line |= variance_scores(data, classical[line["model"]])
    return row, reference


def published() -> list[dict[str, Any]]:
    """Accuracies on the archive's original split, from results that the package aeon ships for its tests."""
    place = "aeon/testing/example_results_files/classification/accuracy/{}_accuracy.csv"
    names = {"ACSF1": "series-acsf1", "OSULeaf": "series-osuleaf", "PLAID": "series-plaid"}
    rows = []
    for model in PUBLISHED:
        try:
            path = package_file("docs/series.md", "--no-deps aeon", place.format(model))
        except UsageError as error:
            print(error)
            return []
        for line in path.read_text().splitlines():
            # The first number is for the archive's split, the others for resamples.
            name, first = line.split(",")[:2]
            if name in names:
                rows.append(
                    {"dataset": names[name], "model": f"{model}, published", "metric": "accuracy", "test": first}
                )
    return rows


def without_runs(data: Any, metric: str) -> list[dict[str, Any]]:
    """The reference rows of a dataset on which no layer has been run; empty if its package is missing."""
    try:
        data.prepare()
        models = [
            {"dataset": data.name, "model": name, "metric": metric, "test": value}
            for name, value in data.reference().items()
        ]
        classical = data.variance_forecasts() if isinstance(data, VolatilityData) else {}
    except UsageError as error:
        print(error)
        return []
    for row in models:
        row |= variance_scores(data, classical[row["model"]]) if row["model"] in classical else {}
    return models


def gather(folders: Iterable[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Add the finished runs below the folders to the two files; returns all their rows, sorted, without duplicates."""
    targets = records.RESULTS / "series.csv", records.RESULTS / "series-reference.csv"
    runs, models = (records.read(target) if target.exists() else [] for target in targets)
    for path in sorted(path for folder in folders for path in folder.rglob("record.json")):
        if json.loads(path.read_text())["status"] == "finished":
            row, reference = row_of(path)
            runs.append(row)
            models += reference
    models += published()
    for name in NAMES:
        if not any(row["dataset"] == name for row in runs):
            data = datasets.build({"name": name}, data_dir=Path("data"))
            models += without_runs(data, "mse" if isinstance(data, ForecastData) else "accuracy")
    unique = {(row["dataset"], row["layer"], int(row["seed"]), row["started"]): row for row in runs}
    runs = [unique[key] for key in sorted(unique)]
    named = {(row["dataset"], row["model"]): row for row in models}
    models = [named[key] for key in sorted(named)]
    records.write(targets[0], COLUMNS, runs)
    records.write(targets[1], REFERENCE, models)
    return runs, models


def mean_and_interval(values: list[float]) -> str:
    """Mean and the half width of Student's 95 % interval of the mean over seeds.

    >>> mean_and_interval([1.0, 2.0, 3.0])
    '2.000 ± 2.484'
    """
    half = ""
    if len(values) > 1:
        width = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        half = f" ± {width:.3f}"
    return f"{statistics.mean(values):.3f}{half}"


def lines(dataset: str, runs: list[dict[str, Any]], models: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of one dataset, the best first."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in runs:
        if row["dataset"] == dataset and not row["settings"]:
            groups[row["layer"]].append(row)
    fixed = {row["model"]: [row] for row in models if row["dataset"] == dataset}
    metric = next((rows[0]["metric"] for rows in [*groups.values(), *fixed.values()]), "")
    told = [row for rows in (groups | fixed).values() for row in rows]
    scores = ["test", *(key for key in ("qlike", "variance_error") if any(row.get(key) for row in told))]
    body = []
    for name, rows in {**groups, **fixed}.items():
        values = [[float(row[key]) for row in rows if row.get(key)] for key in scores]
        cells = [mean_and_interval(column) if column else "" for column in values]
        about = [str(len(rows)), f"{int(rows[0]['parameters']):,}"] if name in groups else ["", ""]
        label = f"**{name}**" if name in groups else name
        body.append((statistics.mean(values[0]), [label, *cells, *about]))
    body.sort(key=lambda pair: pair[0], reverse=metric == "accuracy")
    titles = {"test": metric, "qlike": "QLIKE", "variance_error": "squared error of the variance"}
    return ["model", *(titles[key] for key in scores), "seeds", "parameters"], [line for _, line in body]


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs, models = gather(records.parse(parser).folders)
    for dataset in NAMES:
        header, body = lines(dataset, runs, models)
        tables.write(PAGE, dataset, header, body)
        print(f"{dataset}\n{tables.markdown(header, body)}\n")


if __name__ == "__main__":
    main()
