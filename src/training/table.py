"""What a run prints: its parameter groups before, its results after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from .record import seconds


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
    """The final table, from the facts of the record."""
    title = f"{facts['layer']} on {facts['dataset']} ({_standing(facts['data'])}), {facts['selected']}"
    table = Table(title=title, title_justify="left")
    for column in ("split", "accuracy", "majority class", "loss", "samples"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split, result in facts["metrics"].items():
        table.add_row(
            split,
            f"{result['accuracy']:.4f}",
            f"{result['majority']:.4f}",
            f"{result['loss']:.4f}",
            f"{result['samples']:,}",
        )
    table.caption = (
        f"{facts['parameters']:,} parameters, {facts['steps']:,} steps in {_duration(seconds(facts)[0])}, "
        f"{facts['samples_per_second']:.1f} training samples/s, "
        f"peak memory {facts['peak_memory_bytes'] / 2**20:,.0f} MiB, "
        f"{facts['device']}"
    )
    table.caption_justify = "left"
    return table


def _standing(data: Mapping[str, Any]) -> str:
    """Where the data came from, and whether the numbers may stand beside published ones."""
    # A dataset of somebody else's that claims nothing is not the benchmark.
    source = data.get("source", "source not told")
    return f"{source}, the LRA set" if data.get("lra", False) else f"{source}: not the LRA set"


def _duration(length: float) -> str:
    minutes, rest = divmod(round(length), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
