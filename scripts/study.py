"""Writes the results of docs/study.md from the records of its comparisons.

    python -m scripts.study [RESULTS OF COMPARISONS ...]

Each folder is the output of `python -m fractal_ssm.compare` (with its plan.json). Its runs are added to
docs/results/study.csv; the tables of docs/study.md are written from that file, with or without folders. A comparison
without runs is shown as "not run".
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fractal_ssm import Fractal, load_model
from fractal_ssm.compare import plan as plans
from fractal_ssm.compare.results import collect, probability
from fractal_ssm.compare.runs import Run
from fractal_ssm.compare.statistics import Difference, corrected, difference
from fractal_ssm.compare.units import Units
from fractal_ssm.registry import layers

from . import records, tables

PAGE = records.ROOT / "docs" / "study.md"
SOURCE = records.RESULTS / "study.csv"
MATCHED, RECALL, ADDING = "proxy-pathfinder-matched", "proxy-recall", "proxy-adding"
# Question -> the comparisons that answer it, named <ablation>-<task>.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "a": (f"readings-{MATCHED}", f"long-{MATCHED}"),
    "b": (f"damping-{MATCHED}", f"spread-{MATCHED}"),
    "c": (
        *("readings-listops", "damping-listops"),
        *(f"damping-{task}" for task in (RECALL, ADDING)),
    ),
    "d": (f"random-B-{MATCHED}", "random-B-listops"),
    "e": (f"mixer-{MATCHED}", "mixer-listops"),
    "f": (f"block-order-{MATCHED}", "block-order-listops", f"filter-bank-{MATCHED}", "filter-bank-listops"),
    "g": (f"learn-damping-{MATCHED}", "learn-damping-listops"),
    "h": (f"mixed-bank-{MATCHED}", "mixed-bank-listops"),
}
# Ablation -> further pairs (arm, other arm) that an answer depends on, corrected together.
CONTRASTS: dict[str, tuple[tuple[str, str], ...]] = {
    "damping": (
        ("fractional-normal, bank", "fractional-normal, alpha 0.8"),
        ("s5", "published"),
    ),
    "spread": (
        ("fractional-normal, bank", "fractional-normal, alpha 0.8"),
        ("fractional-normal, geometric bank", "fractional-normal, alpha 0.8"),
    ),
    "mixer": (("s5, half_glu1", "fractal, half_glu1"),),
    "mixed-bank": (
        ("published + fractional-normal", "fractional-normal"),
        ("published + damping 0.1", "damping 0.1"),
        ("published + damping 0.1, flat B", "damping 0.1"),
    ),
}
# Validation accuracy from which a run has learned its task. On matched Pathfinder the positions of the discs alone give
# only 50 %.
LEARNED = {MATCHED: 0.7, RECALL: 0.9, ADDING: 0.9}
# Share of the planned steps over which the early loss averages the logged losses.
_EARLY = 0.2
COLUMNS = ("comparison", "baseline", "arm", "seed", "test", "val", "early_loss", "samples_to", "parameters")
COLUMNS += ("steps", "cpu_seconds", "tuning", "commit", "data_checksum", "alpha_start", "alpha_end")
HEADER = ("arm", "seeds", "test accuracy", "learned", "samples to it, median", "early loss", "parameters")
HEADER += ("difference, points", "95 % interval", "p corrected", "told apart")


def task_of(comparison: str) -> str:
    """The key of LEARNED that ends a comparison's name; the name itself if there is none."""
    return next((task for task in LEARNED if comparison.endswith(task)), comparison)


def run_row(comparison: str, plan: plans.Plan, run: Run) -> dict[str, Any]:
    """One finished run as a row of the file."""
    threshold = LEARNED.get(task_of(comparison))
    return {
        "comparison": comparison,
        "baseline": plan.baseline,
        "arm": run.arm,
        "seed": run.seed,
        "test": run.score(),
        "val": run.score("val"),
        "early_loss": early_loss(run),
        "samples_to": "" if threshold is None else run.samples_to(threshold) or "",
        "parameters": run.facts["parameters"],
        "steps": run.facts["steps"],
        "cpu_seconds": round(run.cpu_seconds, 1),
        "tuning": plan.tuning,
        "commit": run.facts["commit"],
        "data_checksum": run.facts["data"]["checksum"],
        **trained_alphas(run),
    }


def trained_alphas(run: Run) -> dict[str, float]:
    """Mean alpha over all layers and blocks (or modes), at the start and in the checkpoint; empty if not trained."""
    if not run.settings.get("model.layer.learn_alpha"):
        return {}
    model = yaml.safe_load((run.folder / "config.yaml").read_text())["model"]
    started = layers.build(model["layer"], d_model=model["d_model"]).alphas
    trained = load_model(run.folder / "checkpoints" / "best.ckpt")
    ended = [alpha for layer in trained.modules() if isinstance(layer, Fractal) for alpha in layer.alphas]
    return {"alpha_start": round(statistics.mean(started), 4), "alpha_end": round(statistics.mean(ended), 4)}


def early_loss(run: Run) -> float | str:
    """Mean training loss logged in the first fifth of the planned steps; empty if none was logged."""
    last = _EARLY * int(run.facts.get("planned_steps", run.facts["steps"]))
    losses = [row["loss"] for row in run.curve if row["split"] == "step" and row["step"] <= last]
    return round(statistics.mean(losses), 6) if losses else ""


def gather(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Add the finished runs of comparisons to the file; returns all its rows.

    Raises:
        SystemExit: a folder without a plan, or of a comparison that is not part of the study.
        UsageError: runs that cannot be compared with each other, see `collect`.
    """
    rows = records.read(SOURCE) if SOURCE.exists() else []
    known = {name for names in QUESTIONS.values() for name in names}
    for folder in folders:
        plan = plans.load(folder)
        if plan is None or plan.name not in known:
            raise SystemExit(f"{folder} is no comparison of the study. Known: {', '.join(sorted(known))}.")
        runs = [run for run in plan.runs(folder) if run.finished]
        # Raises if the runs differ in budget, data or revision.
        collect(plan, runs)
        rows = [row for row in rows if row["comparison"] != plan.name]
        rows += [run_row(plan.name, plan, run) for run in runs]
    if rows:
        records.write(SOURCE, COLUMNS, [{column: row.get(column, "") for column in COLUMNS} for row in rows])
    return [{key: str(value) for key, value in row.items()} for row in rows]


def differences(
    rows: Sequence[Mapping[str, str]], pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], Difference]:
    """(arm, other arm) -> the paired difference arm - other, corrected over all pairs that have runs."""
    scores = {(row["arm"], row["seed"]): float(row["test"]) for row in rows}
    found = {}
    for arm, other in pairs:
        seeds = [seed for name, seed in scores if name == arm and (other, seed) in scores]
        if seeds:
            found[arm, other] = difference([(scores[other, seed], scores[arm, seed]) for seed in seeds])
    return corrected(found)


def lines(comparison: str, rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The table of one comparison: one line per arm, in the order of its runs."""
    arms: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        arms[row["arm"]].append(row)
    baseline, threshold = rows[0]["baseline"], LEARNED.get(task_of(comparison))
    found = differences(rows, [(arm, baseline) for arm in arms if arm != baseline])
    return [line(arm, runs, found.get((arm, baseline)), threshold) for arm, runs in arms.items()]


def contrast_lines(comparison: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence for each further pair of arms that an answer depends on."""
    pairs = next((pairs for name, pairs in CONTRASTS.items() if comparison.startswith(f"{name}-")), ())
    return [
        f"{arm} against {other}: {told[0]} points ({told[1]}), p = {told[2]} corrected; told apart: {told[3]}."
        for (arm, other), found in differences(rows, pairs).items()
        if (told := telling(found))
    ]


def line(arm: str, runs: Sequence[Mapping[str, str]], found: Difference | None, threshold: float | None) -> list[str]:
    """One arm over its seeds."""
    tests = [100 * float(run["test"]) for run in runs]
    samples = sorted(int(run["samples_to"]) for run in runs if run["samples_to"])
    early = [float(run["early_loss"]) for run in runs if run["early_loss"]]
    told = ["-"] * 4 if found is None else telling(found)
    return [
        arm,
        str(len(runs)),
        f"{statistics.mean(tests):.1f}" + (f" ± {statistics.stdev(tests):.1f} %" if len(tests) > 1 else " %"),
        "-" if threshold is None else f"{len(samples)} of {len(runs)}",
        f"{statistics.median_low(samples):,}" if samples else "-",
        f"{statistics.mean(early):.3f}" if early else "-",
        f"{int(runs[0]['parameters']):,}",
        *told,
    ]


def telling(found: Difference) -> list[str]:
    """The last four cells: difference, interval, p, verdict."""
    numbers = [f"{100 * found.mean:+.1f}", Units().interval(found.low, found.high), probability(found.corrected_p)]
    return [*numbers, verdict(found)]


def verdict(found: Difference) -> str:
    """Whether an arm is better or worse than the baseline; if neither, the difference that would have been detected."""
    if found.claimed:
        return "above" if found.mean > 0 else "below"
    return "no" if math.isnan(found.detectable) else f"no ({100 * found.detectable:.1f} would have been)"


def section(question: str, rows: Sequence[Mapping[str, str]]) -> str:
    """The text between the marks of one question: a table for each of its comparisons, or "not run"."""
    parts = []
    for comparison in QUESTIONS[question]:
        own = [row for row in rows if row["comparison"] == comparison]
        if not own:
            parts.append(f"`{comparison}`: not run.")
            continue
        head = f"`{comparison}`, against {own[0]['baseline']}. Tuning: {own[0]['tuning']}."
        parts.append(f"{head}\n\n{tables.markdown(HEADER, lines(comparison, own))}")
        parts += contrast_lines(comparison, own) + alpha_lines(own)
    return "\n\n".join(parts)


def alpha_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence for each arm whose alpha was trained: its mean at the start, and at the end for each seed."""
    moves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.get("alpha_end"):
            moves[row["arm"]].append((float(row["alpha_start"]), float(row["alpha_end"])))
    return [
        f"{arm}: mean alpha from {statistics.mean(start for start, _ in moved):.2f} to "
        + ", ".join(f"{end:.2f}" for _, end in moved)
        + "."
        for arm, moved in moves.items()
    ]


def page(text: str, rows: Sequence[Mapping[str, str]]) -> str:
    """docs/study.md with all its results replaced."""
    for question in QUESTIONS:
        text = tables.replaced(text, f"study-{question}", section(question, rows))
    return text


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="results folders of comparisons")
    rows = gather(parser.parse_args().folders)
    PAGE.write_text(page(PAGE.read_text(), rows))
    print(f"{len(rows)} runs in {SOURCE.name}; {PAGE.relative_to(records.ROOT)} written.")


if __name__ == "__main__":
    main()
