"""From the benchmark's CSV files to a table in docs/performance.md and to curves."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

BEGIN, END = "<!-- {} table written by `make bench` -->", "<!-- end of the {} table -->"
HEADER = "| contender | forward ms | x copy | forward+backward ms | x copy | peak MB | error | gradient error | note |"


def write(cpu: Path, gpu: list[Path], target: Path) -> None:
    """Replace what lies between the markers of `target` by the tables of the CPU's rows and of the GPU's."""
    text = target.read_text() if target.exists() else "# Performance\n"
    for name, table in (("CPU", tables_of(cpu)), ("GPU", gpu_table(gpu))):
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text:
            text += f"\n{begin}\n{end}\n"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text = re.sub(pattern, lambda _, t=f"{begin}\n{table}\n{end}": t, text, flags=re.S)
    target.write_text(text)


def gpu_table(sources: list[Path]) -> str:
    """The scan's rows of `gpu_check`: time, the time of a device copy of b, and the share of its bandwidth."""
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
    parts = [f"{where}; [the rows](results/bench/bench.csv)."]
    for case, contenders in cases.items():
        parts += ["", f"**{case}**", "", HEADER, "|---" * (HEADER.count("|") - 1) + "|"]
        for name, found in contenders.items():
            forward, both = found.get("forward", {}), found.get("forward+backward", {})
            any_row = both or forward or found[""]
            cells = [forward.get("ms"), forward.get("of_copy"), both.get("ms"), both.get("of_copy")]
            cells += [both.get("peak_mb"), any_row["error"], any_row["gradient_error"], any_row["note"]]
            parts.append(f"| {name} | " + " | ".join(cell or "" for cell in cells) + " |")
    return "\n".join(parts)


def plot(source: Path, axis: str) -> None:
    """ms over the varying size, one line per contender and direction, beside the CSV as PNG."""
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
