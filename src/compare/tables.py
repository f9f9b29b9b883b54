"""Tables of arms, differences, settings and runs, as rows of text, and their Markdown and CSV forms."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from ..training.metric import number
from .results import Results, probability, sentences
from .runs import conditions, differing, own_settings

Table = tuple[Sequence[str], list[list[str]]]


def arms(results: Results) -> Table:
    """One row for each arm with main metric, seeds and cost; then one row for each reference score."""
    units, threshold = results.units, results.plan.threshold
    classes = units.metric.is_share
    header = ["arm", f"test {units.metric.name}", "n"]
    header += ["left chance (95 % interval)", "majority class"] if classes else ["r2 > 0 (95 % interval)", "r2"]
    header += ["published", "parameters", "steps/s", "CPU minutes", "peak MiB"]
    if threshold is not None:
        header.append(f"samples to {units.value(threshold, 0)}")
    rows = []
    for arm in results.arms:
        if arm.summary is None:
            rows.append([arm.name, "no result", f"0 of {arm.planned}"] + ["-"] * (len(header) - 3))
            continue
        low, high = arm.chance_interval
        row = [
            arm.name,
            units.mean(arm.summary.mean, arm.summary.deviation),
            str(arm.summary.n) if arm.summary.n == arm.planned else f"{arm.summary.n} of {arm.planned}",
            f"{arm.left_chance} of {arm.ended} ({100 * low:.0f} to {100 * high:.0f} %)",
            units.value(arm.majority) if classes else _digits(arm.r2),
            published(arm.finished[0].experiment),
            f"{arm.parameters:,}",
            f"{arm.steps_per_second:.2f}",
            f"{arm.cpu_minutes:.1f}",
            f"{arm.peak_mib:,.0f}",
        ]
        if threshold is not None:
            reached = arm.samples_to
            row.append(f"{reached[0]:,} ({reached[1]} of {arm.summary.n})" if reached else "not reached")
        rows.append(row)
    for name, value in results.reference.items():
        rows.append([f"{name} (reference)", units.value(value)] + ["-"] * (len(header) - 2))
    return header, rows


def _digits(value: float) -> str:
    return "-" if math.isnan(value) else number(value, 3)


def differences(results: Results) -> Table:
    """One row for each arm: its paired difference from the baseline, in points of accuracy or units of the metric."""
    units = results.units
    header = [
        f"against {results.plan.baseline}",
        units.difference,
        "95 % interval (t)",
        "95 % interval (bootstrap)",
    ]
    header += ["p (t)", "p corrected (Holm)", "p (permutation)", "would have been seen", "pairs"]
    rows = [
        [
            name,
            units.signed(found.mean),
            units.interval(found.low, found.high),
            units.interval(found.bootstrap_low, found.bootstrap_high),
            probability(found.p),
            probability(found.corrected_p),
            probability(found.permutation_p),
            "-" if math.isnan(found.detectable) else units.size(found.detectable).removesuffix(" points"),
            str(found.n),
        ]
        for name, found in results.differences.items()
    ]
    return header, rows


def settings(results: Results) -> Table:
    """One row for each setting that is not the same in all arms."""
    finished = [run for run in results.runs if run.finished]
    names = list(dict.fromkeys(run.arm for run in finished))
    rows = [[key, *(str(row.get(arm, "-")) for arm in names)] for key, row in differing(finished).items()]
    return ["setting", *names], rows


def shared(results: Results) -> Table:
    """Conditions that all runs share: data, split, budget, revision; several values if mixed=allow let them differ."""
    finished = [run for run in results.runs if run.finished]
    keys = conditions(finished[0]) if finished else {}
    rows = [[key, ", ".join(dict.fromkeys(str(conditions(run)[key]) for run in finished))] for key in keys]
    return ["condition", "value"], rows


def runs(results: Results) -> Table:
    """One row for each run, including failed ones."""
    header = ["arm", "seed", "status", "train", "val", "test", "majority", "steps", "fit seconds", "CPU seconds"]
    header += ["parameters", "peak MiB", "device", "torch", "commit", "data", "split", "settings", "reason"]
    rows, form = [], "f" if results.units.metric.is_share else "g"
    for run in results.runs:
        facts, data = run.facts, run.facts.get("data", {})
        scores = [f"{run.score(split):.6{form}}" for split in ("train", "val", "test")] if run.finished else [""] * 3
        rows.append(
            [
                *(run.arm, str(run.seed), run.status, *scores),
                "" if not run.finished or math.isnan(run.majority) else f"{run.majority:.6f}",
                *(str(facts.get(key, "")) for key in ("steps", "fit_seconds", "fit_cpu_seconds", "parameters")),
                f"{facts['peak_memory_bytes'] / 2**20:.0f}" if run.finished else "",
                *(str(facts.get("device", "")), str(facts.get("versions", {}).get("torch", ""))),
                *(str(facts.get("commit", "")), str(data.get("checksum", "")), str(data.get("split_fingerprint", ""))),
                own_settings(facts),
                "" if run.finished else run.reason,
            ]
        )
    return header, rows


def markdown(table: Table) -> str:
    """The table as Markdown; bars inside a cell are escaped."""
    header, rows = table
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [header, ["---"] * len(header), *rows]]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def as_csv(table: Table) -> str:
    """The table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([table[0], *table[1]])
    return text.getvalue()


def page(results: Results) -> str:
    """The report as Markdown."""
    plan = results.plan
    parts = [f"# {plan.name}", plan.question, "\n".join(f"* {said}" for said in sentences(results))]
    if results.notes:
        parts.append("Note:\n\n" + "\n".join(f"* {note}" for note in results.notes))
    parts += [markdown(arms(results)), markdown(differences(results))]
    parts.append(f"Tuning: {plan.tuning}. Seeds: {', '.join(map(str, plan.seeds))}.")
    parts += ["Settings that differ:", markdown(settings(results)), "Shared by all runs:", markdown(shared(results))]
    return "\n\n".join(part for part in parts if part) + "\n"


def published(experiment: str) -> str:
    """The published score quoted in the header of an experiment's file, or a dash."""
    import re
    from importlib import resources

    path = resources.files("fractal_ssm.configs") / "experiment" / f"{experiment}.yaml"
    if not path.is_file():
        return "-"
    found = re.search(r"^# Published: (.*)$", path.read_text(), flags=re.M)
    if found is None or not re.search(r"\d", found[1]):
        return "-"
    return found[1].split(" test accuracy")[0].strip()
