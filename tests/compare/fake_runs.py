"""Run folders as the training loop leaves them, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def make_run(folder: Path, test: float, seed: int = 0, status: str = "finished", **changes: Any) -> Path:
    """A run with this test accuracy; `changes` replace facts of the record, or settings where the key has a dot.

    With metric={"name": "mse", ...} it is one of regression, which comes nearer to the score from above.
    """
    name = changes.get("metric", {"name": "accuracy"})["name"]
    others = {"majority": 0.2} if name == "accuracy" else {"r2": 0.3}
    facts = {
        "status": status,
        "started": f"2026-01-01T00:00:0{seed}",
        "layer": "s5",
        "dataset": "listops",
        "seed": seed,
        "choices": {"experiment": "lra/s5-listops", "budget": "cpu"},
        "overrides": [f"seed={seed}", "budget=cpu", "experiment=lra/s5-listops"],
        "commit": "abc",
        "versions": {"torch": "2.13.0"},
        "device": "a processor",
        "data": {"source": "generated", "lra": False, "checksum": "d1", "split_fingerprint": "s1"},
        "parameters": 1000,
        "planned_steps": 20,
        "steps": 20,
        "fit_seconds": 10.0,
        "fit_cpu_seconds": 9.0,
        "total_seconds": 12.0,
        "samples_per_second": 8.0,
        "peak_memory_bytes": 2**20,
        "metrics": {split: {name: test, "loss": 1.0, "samples": 1000, **others} for split in ("train", "val", "test")},
    }
    settings = {"seed": seed, "model": {"layer": {"name": "s5"}}, "training": {"batch_size": 4}, "trainer": {}}
    for key, value in changes.items():
        if "." in key:
            first, second = key.split(".")
            settings[first][second] = value
        else:
            facts[key] = value
    if status != "finished":
        facts.pop("metrics")
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(facts))
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    values = {step: test * (step / 20 if name == "accuracy" else 20 / step) for step in (5, 10, 15, 20)}
    rows = "".join(f"0,{step},{step / 2},val,1.0,{value},0.1\n" for step, value in values.items())
    (folder / "metrics.csv").write_text(f"epoch,step,seconds,split,loss,{name},lr\n{rows}")
    return folder
