"""Tables that a run prints: its settings and parameter groups at the start, its results at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..config import Config
from .metric import Metric, recorded_metric
from .record import seconds

# Headings of columns that differ from their keys, and names of the scored targets of a task.
_HEADINGS = {"majority": "majority class"}
_TARGETS = {"tokens": "positions", "regression": "values"}


def summary(config: Config, choices: Mapping[str, Any], overrides: Sequence[str], folder: Path) -> str:
    """The main settings of a run in about ten lines; config.yaml holds all."""
    optimizer, scheduler, trainer, training = config.optimizer, config.scheduler, config.trainer, config.training
    model = {key: value for key, value in config.model.items() if key != "layer"}
    warmup = {key: getattr(scheduler, key) for key in ("warmup_steps", "warmup_epochs", "warmup_fraction")}
    ends = {key: getattr(training, key) for key in ("max_epochs", "max_steps", "max_minutes", "loss", "target")}
    rates = {"lr": optimizer.lr, "ssm_lr": optimizer.ssm_lr, "weight_decay": optimizer.weight_decay}
    budget = choices.get("budget")
    rows = {
        "layer": _options(config.model["layer"]),
        "model": _options(model),
        "dataset": _options(config.dataset),
        "optimizer": _options({"name": _optimizer_name(config, choices)} | rates | optimizer.options),
        "schedule": _options({"name": scheduler.name} | warmup | {"total_steps": scheduler.total_steps}),
        "training": _options(
            ({"name": f"budget {budget}"} if budget else {}) | {"batch_size": training.batch_size} | ends
        ),
        "device": f"{trainer.accelerator}, devices {trainer.devices}, {trainer.precision}, seed {config.seed}",
        "set here": " ".join(overrides) or "nothing",
        "folder": f"{folder} (every setting: config.yaml)",
    }
    return "\n".join(f"{name:<10} {text}" for name, text in rows.items())


def _optimizer_name(config: Config, choices: Mapping[str, Any]) -> str:
    """Name of the optimizer, with the configuration file that chose it: `nadam (s5-standard)`."""
    name, chosen = config.optimizer.name, choices.get("optimizer") or config.optimizer.name
    return name if chosen == name else f"{name} ({chosen})"


def _options(node: Mapping[str, Any]) -> str:
    """Options as `s5: d_state=64, bidirectional=True`; options that are not set are left out."""
    rest = ", ".join(f"{key}={value}" for key, value in node.items() if key != "name" and value is not None)
    return ": ".join(part for part in (node.get("name"), rest) if part)


def group_table(groups: list[Mapping[str, Any]]) -> Table:
    """Learning rate and weight decay of each parameter group."""
    table = Table(title="Parameter groups", title_justify="left")
    for column in ("group", "lr", "weight decay", "roles", "tensors", "parameters"):
        table.add_column(column, justify="left" if column in ("group", "roles") else "right")
    for group in groups:
        table.add_row(
            group["name"],
            f"{group['lr']:g}",
            f"{group['weight_decay']:g}",
            " ".join(group["roles"]) or "-",
            str(group["tensors"]),
            f"{group['parameters']:,}",
        )
    return table


def result_table(facts: Mapping[str, Any]) -> Table:
    """The final table, from the facts of the record: a row per split, then reference scores in the main metric."""
    title = f"{facts['layer']} on {facts['dataset']} ({_standing(facts['data'])}), {facts['selected']}"
    table, metric = Table(title=title, title_justify="left"), recorded_metric(facts)
    keys = list(facts["metrics"]["test"])
    headings = _HEADINGS | {"samples": _TARGETS.get(facts.get("task"), "samples")}
    for column in ("split", *keys):
        table.add_column(headings.get(column, column), justify="left" if column == "split" else "right")
    for split, result in facts["metrics"].items():
        table.add_row(split, *(_cell(result[key], metric) for key in keys))
    for name, value in facts.get("reference", {}).items():
        table.add_row(name, _cell(value, metric), style="dim")
    table.caption = (
        f"{facts['parameters']:,} parameters, {facts['steps']:,} steps in {duration(seconds(facts)[0])}, "
        f"{facts['samples_per_second']:.1f} training samples/s, "
        f"peak memory {facts['peak_memory_bytes'] / 2**20:,.0f} MiB, "
        f"{facts['device']}"
    )
    table.caption_justify = "left"
    return table


def _cell(value: float, metric: Metric) -> str:
    return f"{value:,}" if isinstance(value, int) else metric.shown(value)


def _standing(data: Mapping[str, Any]) -> str:
    """The source of the data, and whether results compare with published ones."""
    # A plug-in's dataset without the key "lra" is not the benchmark.
    source = data.get("source", "source not given")
    return f"{source}, the LRA set" if data.get("lra", False) else f"{source}: not the LRA set"


def duration(length: float) -> str:
    """Seconds in words.

    >>> duration(75), duration(4000)
    ('1 min 15 s', '1 h 6 min')
    """
    minutes, rest = divmod(round(length), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
