"""Writes tables in docs/performance.md and plots curves from the benchmark's CSV files."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

BEGIN, END = "<!-- {} table written by `make bench` -->", "<!-- end of the {} table -->"
STEP_HEADER = "| contender | ms a step | x ours | samples/s | peak MB | error of the loss | gradient error | note |"
POSITION_HEADER = "| contender | us a step | 20 % | 80 % | x ours | error | note |"
HEADER = "| contender | forward ms | x copy | forward+backward ms | x copy | peak MB | error | gradient error | note |"


def write(tables: dict[str, str], target: Path) -> None:
    """Put each table between the markers of its name in `target`; new markers go to its end."""
    text = target.read_text() if target.exists() else "# Performance\n"
    for name, table in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text:
            text += f"\n{begin}\n{end}\n"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text = re.sub(pattern, lambda _, t=f"{begin}\n{table}\n{end}": t, text, flags=re.S)
    target.write_text(text)


def gpu_table(sources: list[Path]) -> str:
    """The scan's rows of `scripts.bench.gpu`: time, the time of a device copy of b, and the share of its bandwidth."""
    parts = ["| case | direction | ms | copy ms | share of copy bandwidth | where |", "|---|---|---|---|---|---|"]
    for source in sources:
        with source.open() as file:
            for row in csv.DictReader(file):
                if row["stage"] == "time-scan" and row["of_copy"]:
                    cells = [row[key] for key in ("case", "what", "ms", "copy_ms", "of_copy", "note")]
                    parts.append("| " + " | ".join(cells) + " |")
    return "\n".join(parts)


def tables_of(source: Path) -> str:
    with source.open() as file:
        rows = list(csv.DictReader(file))
    cases: dict[str, dict[str, dict[str, dict[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        cases[row["case"]][row["contender"]][row["what"]] = row
    where = f"torch {rows[0]['torch']}, {rows[0]['threads']} thread(s), CPU; medians of {rows[0]['clock']} time"
    parts = [f"{where}; [the rows](results/bench/{source.name})."]
    for case, contenders in cases.items():
        parts += ["", f"**{case}**", ""]
        if any("training step" in found for found in contenders.values()):
            parts += _step_table(contenders)
            continue
        if case.startswith("one position"):
            parts += _position_table(contenders)
            continue
        parts += [HEADER, _rule(HEADER)]
        for name, found in contenders.items():
            forward, both = found.get("forward", {}), found.get("forward+backward", {})
            any_row = both or forward or found[""]
            cells = [forward.get("ms"), forward.get("of_copy"), both.get("ms"), both.get("of_copy")]
            cells += [both.get("peak_mb"), any_row["error"], any_row["gradient_error"], any_row["note"]]
            parts.append(f"| {name} | " + " | ".join(cell or "" for cell in cells) + " |")
    return "\n".join(parts)


def _step_table(contenders: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    lines = [STEP_HEADER, _rule(STEP_HEADER)]
    ours = float(contenders["ours"]["training step"]["ms"])
    for name, found in contenders.items():
        row = next(iter(found.values()))
        ratio = f"{float(row['ms']) / ours:.2f}" if row["ms"] else ""
        rest = ("samples_s", "peak_mb", "error", "gradient_error", "note")
        cells = [name, row["ms"], ratio, *(row[key] for key in rest)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _position_table(contenders: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    lines = [POSITION_HEADER, _rule(POSITION_HEADER)]
    for name, found in contenders.items():
        row = next(iter(found.values()))
        times = (f"{1e3 * float(row[key]):.1f}" if row[key] else "" for key in ("ms", "p20", "p80"))
        lines.append("| " + " | ".join([name, *times, row["of_ours"], row["error"], row["note"]]) + " |")
    return lines


def profile_tables(folder: Path) -> str:
    """One table for each file of `scripts.profile_step`, with the time of the parts of a training step."""
    parts = ["Milliseconds a step, and shares of it."]
    for source in sorted(folder.glob("*.csv")):
        with source.open() as file:
            whole, *rows = csv.DictReader(file)
        parts += [
            "",
            (
                f"**{source.stem}**, {whole['part']}: {whole['samples_s']} samples/s, peak {whole['peak_mb']} MB "
                f"over idle ({whole['step_ms']} ms a step, {whole['threads']} thread(s), torch {whole['torch']})"
            ),
            "",
            "| part | forward ms | backward ms | share |",
            "|---|---|---|---|",
        ]
        for row in rows:
            cells = [row["part"], row["forward_ms"], row["backward_ms"], f"{float(row['share']):.1%}"]
            parts.append("| " + " | ".join(cells) + " |")
    return "\n".join(parts)


def _rule(header: str) -> str:
    return "|---" * (header.count("|") - 1) + "|"


def plot(source: Path, axis: str) -> None:
    """Plot ms over the varying size, one line per contender and direction, to a PNG beside the CSV."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with source.open() as file:
        for row in csv.DictReader(file):
            shape = [int(n) for n in re.findall(r"\d+", row["case"].split("(")[1])]
            lines[f"{row['contender']}, {row['what']}"].append((shape["BLP".index(axis)], float(row["ms"])))
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, points in lines.items():
        axes.loglog(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
    axes.set(xlabel=axis, ylabel="ms", title=f"scan, constant gate, complex64, over {axis}")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3, which="both")
    figure.savefig(source.with_suffix(".png"), dpi=120)
    pyplot.close(figure)
