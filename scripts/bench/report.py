"""From the benchmark's CSV files to a table in docs/performance.md and to curves."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

BEGIN, END = "<!-- table written by `make bench` -->", "<!-- end of table -->"
HEADER = "| contender | forward ms | x copy | forward+backward ms | x copy | peak MB | error | gradient error | note |"


def write(source: Path, target: Path) -> None:
    """Replace what lies between the two markers of `target` by the tables of `source`."""
    text = target.read_text() if target.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    tables = f"{BEGIN}\n{tables_of(source)}\n{END}"
    if BEGIN not in text:
        text += f"\n{BEGIN}\n{END}\n"
    target.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: tables, text, flags=re.S))


def tables_of(source: Path) -> str:
    rows = list(csv.DictReader(source.open()))
    cases: dict[str, dict[str, dict[str, dict[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        cases[row["case"]][row["contender"]][row["what"]] = row
    parts = [f"torch {rows[0]['torch']}, {rows[0]['threads']} threads, CPU; medians; [the rows](results/bench/bench.csv)."]
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
    for row in csv.DictReader(source.open()):
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
