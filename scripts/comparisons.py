"""Writes the tables of comparisons in the documents from the records in docs/results.

    python -m scripts.comparisons

Between the marks `<!-- table: NAME -->` and `<!-- end -->` of a page goes the table of the comparison in
docs/results/NAME, as `python -m fractal_ssm.compare report docs/results/NAME` wrote it: every arm with its paired
difference from the baseline. The table `fractal-against-s5` has one line for each of these comparisons that holds both.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fractal_ssm.compare import plan as plans
from fractal_ssm.compare.results import Results, collect, probability
from fractal_ssm.compare.statistics import corrected, difference

from . import records, tables

PAGES = (records.ROOT / "README.md", records.ROOT / "docs" / "proxies.md")
# Columns of arms.csv and differences.csv that a page shows; the report has all columns.
ARMS = ("n", "majority class", "left chance (95 % interval)", "samples to", "parameters", "CPU minutes")
DIFFERENCES = ("95 % interval (t)", "p corrected (Holm)", "would have been seen")

# The table of all comparisons between the layer of the paper, by its names in the plans, and S5.
SUMMARY, FRACTAL, S5 = "fractal-against-s5", ("fractal", "published"), "s5"
SUMMARY_HEADER = (
    "comparison",
    "metric",
    "S5",
    "FRACTAL",
    "FRACTAL - S5",
    "95 % interval",
    "p corrected",
    "seeds",
    "ahead",
)


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


def summary(results: Path, page: Path) -> list[list[str]]:
    """Lines of SUMMARY: one for each comparison below `results` that has both as arms; links are relative to the page.

    p is corrected over all arms of the comparison, and over this pair as well where neither is its baseline.
    """
    lines = []
    for path in sorted(results.glob("*/plan.json")):
        plan = plans.load(path.parent)
        fractal = next((name for name in FRACTAL if name in plan.arms), None)
        if fractal and S5 in plan.arms:
            report = Path(os.path.relpath(path.with_name("report.md"), page.parent)).as_posix()
            found = collect(plan, plan.runs(path.parent))
            lines.append([f"[{_task(plan, fractal)}]({report})", *_against(found, fractal)])
    return sorted(lines)


def _task(plan: plans.Plan, arm: str) -> str:
    """Suite and task of a comparison with what it changes: "series/co2", "lra/listops budget=cpu"."""
    overrides = [line.split("=", 1) for line in [*plan.arms[arm], *plan.common]]
    suite, _, name = dict(overrides)["experiment"].partition("/")
    changed = [f"{key}={value}" for key, value in overrides if key.startswith("dataset.") or key == "budget"]
    return " ".join([f"{suite}/{name.partition('-')[2]}", *(text for text in changed if text != "budget=full")])


def _against(results: Results, fractal: str) -> list[str]:
    """FRACTAL's difference from S5, and who is ahead."""
    units, arms = results.units, {arm.name: arm for arm in results.arms}
    scores_of = {name: {run.seed: run.score() for run in arms[name].finished} for name in (S5, fractal)}
    pair = difference([(score, scores_of[fractal][seed]) for seed, score in scores_of[S5].items()])
    others = {name: one for name, one in results.differences.items() if {name, results.plan.baseline} != {S5, fractal}}
    found = corrected({**others, SUMMARY: pair})[SUMMARY]
    better = (found.mean > 0) == units.metric.higher_is_better
    scores = [units.mean(arms[name].summary.mean, arms[name].summary.deviation) for name in (S5, fractal)]
    return [
        units.metric.name,
        *scores,
        units.signed(found.mean),
        units.interval(found.low, found.high),
        probability(found.corrected_p),
        str(found.n),
        ("FRACTAL" if better else "S5") if found.claimed else "not told apart",
    ]


def rewritten(page: Path) -> str:
    """The page with the table of every comparison that it names rewritten."""
    text = page.read_text()
    for name in names(text):
        text = tables.replaced(text, name, tables.markdown(*table(records.RESULTS / name)))
    if f"<!-- table: {SUMMARY} -->" in text:
        text = tables.replaced(text, SUMMARY, tables.markdown(SUMMARY_HEADER, summary(records.RESULTS, page)))
    return text


def main() -> None:
    """Command line of the module."""
    for page in PAGES:
        text = rewritten(page)
        page.write_text(text)
        print(f"{page.relative_to(records.ROOT)}: {', '.join(names(text)) or 'no comparison'}")


if __name__ == "__main__":
    main()
