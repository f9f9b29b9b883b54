"""Writes the tables of comparisons in the documents from the records in docs/results.

    python -m scripts.comparisons

Between the marks `<!-- table: NAME -->` and `<!-- end -->` of a page goes the table of the comparison in
docs/results/NAME, as `python -m fractal_ssm.compare report docs/results/NAME` wrote it: every arm with its paired
difference from the baseline.
"""

from __future__ import annotations

import re
from pathlib import Path

from . import records, tables

PAGES = (records.ROOT / "README.md", records.ROOT / "docs" / "proxies.md")
# Columns of arms.csv and differences.csv that a page shows; the report has all columns.
ARMS = ("n", "majority class", "left chance (95 % interval)", "samples to", "parameters", "CPU minutes")
DIFFERENCES = ("95 % interval (t)", "p corrected (Holm)", "would have been seen")


def names(text: str) -> list[str]:
    """Names of the tables on a page that are comparisons of docs/results."""
    marks = re.findall(r"<!-- table: (\S+) -->", text)
    return [name for name in marks if (records.RESULTS / name / "arms.csv").is_file()]


def table(folder: Path) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one per arm: score, difference from the baseline with interval, facts."""
    arms = records.read(folder / "arms.csv")
    found = records.read(folder / "differences.csv")
    baseline, difference = list(found[0])[:2]
    by_arm = {row[baseline]: row for row in found}
    score = list(arms[0])[1]
    facts = [key for key in arms[0] if key.startswith(ARMS)]
    shown = (difference, *DIFFERENCES)
    lines = [
        [arm["arm"], arm[score], *(by_arm.get(arm["arm"], {}).get(key, "") for key in shown), *(arm[k] for k in facts)]
        for arm in arms
    ]
    return ["arm", score, f"{baseline}, {difference.partition(', ')[2]}", *DIFFERENCES, *facts], lines


def rewritten(text: str) -> str:
    """The page with the table of every comparison that it names rewritten."""
    for name in names(text):
        text = tables.replaced(text, name, tables.markdown(*table(records.RESULTS / name)))
    return text


def main() -> None:
    """Command line of the module."""
    for page in PAGES:
        text = page.read_text()
        page.write_text(rewritten(text))
        print(f"{page.relative_to(records.ROOT)}: {', '.join(names(text)) or 'no comparison'}")


if __name__ == "__main__":
    main()
