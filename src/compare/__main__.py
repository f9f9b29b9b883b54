"""`python -m fractal_ssm.compare`: make the missing runs of a comparison, and write its report.

    compare ablation=measures budget=cpu seeds=5         a named comparison (--list shows them)
    compare ablation=measures task=proxy/adding          the same on another task
    compare experiments=lra/fractal-listops,lra/s5-listops budget=cpu seeds=0,1,2
    compare ... tune=8                                   first tune each arm: the best of 8 trials by validation
    compare ... --dry-run                                show the missing runs and an estimate of the time
    compare report FOLDER [FOLDERS ...]                  write the report of a comparison, or of any runs

Own keys: ablation, task, experiments, baseline, seeds (5 or 0,1,2), results, name, jobs, launcher, threshold, tune,
ranges (a file), mixed=allow, retry=true. Every other key=value is a setting of all runs, as for `python -m train`.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError, did_you_mean
from ..files import WriteFailed
from ..training.signals import Signals, Stop
from . import plan as plans
from .plan import Plan
from .runs import Run

_OWN = ("ablation", "task", "experiments", "baseline", "seeds", "results", "name", "jobs", "launcher", "threshold")
_OWN += ("mixed", "retry", "tune", "ranges")
# Settings that the comparison sets itself, with the advice for the error message.
_TAKEN = {
    "seed": "Say seeds=5 for five of them, or seeds=3, for seed 3 alone.",
    "resume": "Runs that were cut off go on by themselves.",
    "runs_dir": "Say results=FOLDER.",
    "hydra.run.dir": "Say results=FOLDER.",
    "hydra.sweep.dir": "Say results=FOLDER.",
    "hydra/launcher": "Say launcher=NAME.",
    "experiment": "Say experiments=NAME,NAME.",
}
_FLAGS = ("--dry-run", "--list", "--help", "-h")


@dataclass
class Options:
    """The command line, sorted: own keys, settings of the runs, folders, flags."""

    own: dict[str, str] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    config_dirs: list[Path] = field(default_factory=list)
    report: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status.

    0: all runs have a result; 1: a run has none, or a file could not be written; 2: a mistake of the user; 130 after
    Ctrl-C, 143 after SIGTERM.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse(words)
        if {"--help", "-h"} & options.flags or not words:
            print(__doc__)
            return 0
        if "--list" in options.flags:
            return _list(options)
        # On a signal, first end the runs, which save, and then this process; otherwise they would go on without it.
        with Signals():
            return _report(options, words) if options.report else _compare(options, words)
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Stop) as stop:
        print("Interrupted. The same command goes on where it stopped.", file=sys.stderr)
        return 128 + getattr(stop, "signum", signal.SIGINT)
    except WriteFailed as error:
        print(f"Stopped: {error.filename} could not be written: {error.strerror}.", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0


def parse(words: Sequence[str]) -> Options:
    """Sort the words of the command line.

    Raises:
        UsageError: an unknown option, or a word that is neither key=value nor, after `report`, a folder.
    """
    options, rest = Options(), list(words)
    if rest and rest[0] == "report":
        options.report = True
        rest.pop(0)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            if key == "--config-dir" and (value or rest):
                options.config_dirs.append(Path(value or rest.pop(0)))
                continue
            if word not in _FLAGS:
                known = (*_FLAGS, "--config-dir")
                raise UsageError(f"Unknown option '{word}'. Options: {', '.join(known)}.{did_you_mean(word, known)}")
            options.flags.add(word)
        elif equals and key in _OWN:
            options.own[key] = value
        elif equals and not options.report:
            options.settings.append(word)
        elif options.report and Path(word).is_dir():
            options.folders.append(Path(word))
        elif options.report:
            raise UsageError(f"'{word}' is not a folder. compare report takes folders with runs below them.")
        else:
            raise UsageError(f"'{word}' is not key=value.{did_you_mean(word, ('report', *_OWN))} See compare --help.")
    return options


def make_plan(options: Options) -> Plan:
    """Build the plan from the command line.

    Raises:
        UsageError: neither or both of ablation and experiments, an invalid value, or an unknown name.
    """
    own = options.own
    _flag(options, "mixed", "refuse", "allow"), _flag(options, "retry", "false", "true")
    for setting in options.settings:
        key = setting.lstrip("+~").partition("=")[0]
        if key in _TAKEN:
            raise UsageError(f"A comparison sets {key} of its runs itself, got {setting}. {_TAKEN[key]}")
    if ("ablation" in own) == ("experiments" in own):
        known = ", ".join(plans.known_ablations(options.config_dirs))
        raise UsageError(
            "A comparison takes one of ablation=NAME and experiments=NAME,NAME. "
            f"Ablations: {known}. Experiments: python -m train --help."
        )
    if "ablation" in own:
        node = plans.ablation(own["ablation"], own.get("task"), options.config_dirs)
        question, arms, baseline = node["question"], node["arms"], node["baseline"]
        settings, threshold = list(node.get("settings", [])), node.get("threshold")
        name = f"{Path(own['ablation']).stem}-{node['task'].replace('/', '-')}"
    else:
        names = [name for name in own["experiments"].split(",") if name]
        if len(set(names)) < len(names):
            raise UsageError(f"experiments names an arm twice: {own['experiments']}. Each is one arm; name it once.")
        question, settings, threshold = "Which of these layers is the better one here?", [], None
        arms, baseline = {name: [f"experiment={name}"] for name in names}, names[0] if names else ""
        name = "-".join(Path(experiment).stem for experiment in names)[:80]
    return Plan(
        own.get("name", name),
        question,
        arms,
        own.get("baseline", baseline),
        seeds_of(own.get("seeds", "5")),
        [*_searchpath(options), *settings, *options.settings],
        threshold=_number("threshold", own["threshold"]) if "threshold" in own else threshold,
    )


def _searchpath(options: Options) -> list[str]:
    """The user's configuration folders as a setting of every run."""
    places = [f"file://{folder.absolute()}" for folder in options.config_dirs]
    return [f"hydra.searchpath=[{','.join(places)}]"] if places else []


def seeds_of(text: str) -> list[int]:
    """Read a seeds option: "5" means seeds 0 to 4, "0,3" means seeds 0 and 3.

    >>> seeds_of("3"), seeds_of("7,")
    ([0, 1, 2], [7])
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and len(word) < 10 for word in words):
        raise UsageError(f"seeds is a number of seeds or a list of them, seeds=5 or seeds=0,1,2, got {text!r}.")
    if "," not in text:
        if not 1 <= int(text) <= 1000:
            raise UsageError(f"seeds takes 1 to 1000 seeds, got {text}. One seed by its number: seeds={text},")
        return list(range(int(text)))
    return [int(word) for word in words]


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise UsageError(f"{key} is a positive value of the main metric, such as the accuracy 0.9, got {text!r}.")
    return value


def _compare(options: Options, words: Sequence[str]) -> int:
    from . import progress

    plan = make_plan(options)
    progress.check(plan)
    results = _results(options, Path(f"runs/compare/{plan.name}"))
    if "tune" in options.own:
        tuned = _tune(plan, results, options)
        if tuned is None:
            return 0
        plan = tuned
    if not _make(plan, results, options):
        return 0
    return _write(plan, plan.runs(results), results, options, words)


def _make(plan: Plan, results: Path, options: Options) -> bool:
    """Show the plan and make its missing runs; False after a dry run."""
    from . import launch, progress

    # Check first, so that runs of another plan are not counted for this one.
    plan.check_folder(results)
    jobs = launch.missing(plan, results, retry=_flag(options, "retry", "false", "true"))
    at_once = _jobs(options.own.get("jobs"))
    print(progress.outline(plan, results, jobs, at_once), flush=True)
    if "--dry-run" in options.flags:
        return False
    plan.save(results)
    if "launcher" in options.own:
        launch.hand_over(plan, jobs, options.own["launcher"])
    elif jobs:
        with progress.Display(plan, results, jobs, at_once) as display:
            launch.Pool(jobs, at_once, display.update).run()
    return True


def _tune(plan: Plan, results: Path, options: Options) -> Plan | None:
    """Make the missing trials and return the plan with each arm at its best trial, or None after a dry run."""
    from ..files import write_text
    from . import tables, tuning

    text = options.own["tune"]
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise UsageError(f"tune is a number of trials for each arm, tune=8, got {text!r}.")
    n, ranges = int(text), tuning.read_ranges(options.own.get("ranges"))
    trials, folder = tuning.trial_plan(plan, ranges, n), results / "tuning"
    if not _make(trials, folder, options):
        return None
    runs = trials.runs(folder)
    write_text(results / "tuning.csv", tables.as_csv(tuning.table(plan, runs, n)))
    return tuning.tuned(plan, trials, runs, ranges, n)


def _flag(options: Options, key: str, off: str, on: str) -> bool:
    value = options.own.get(key, off)
    if value not in (off, on):
        raise UsageError(f"{key} is {off} or {on}, got {value!r}.")
    return value == on


def _report(options: Options, words: Sequence[str]) -> int:
    if not options.folders:
        raise UsageError("compare report takes folders with runs below them: compare report runs/compare/NAME.")
    first = options.folders[0]
    plan = plans.load(first)
    if plan is None:
        plan, runs = plans.from_runs(options.own.get("name", first.name), options.folders, options.own.get("baseline"))
    else:
        runs = _joined(plan, options.folders)
    return _write(plan, runs, _results(options, first), options, words)


def _results(options: Options, default: Path) -> Path:
    text = options.own.get("results")
    if text is not None and not text.strip():
        raise UsageError(f"results is empty: name a folder, or leave it out for {default}.")
    return default if text is None else Path(text)


def _joined(plan: Plan, folders: Sequence[Path]) -> list[Run]:
    """The runs of one plan from several folders; of two runs of one arm and seed, the first finished one counts."""
    chosen: dict[tuple[str, int], Run] = {}
    for folder in folders:
        for run in plan.runs(folder):
            key = (run.arm, run.seed)
            if key not in chosen or (run.finished and not chosen[key].finished):
                chosen[key] = run
    return list(chosen.values())


def _write(plan: Plan, runs: list[Run], results: Path, options: Options, words: Sequence[str]) -> int:
    """Write report.html, report.md, the forest plot and the CSV files, print the table; 1 if a run has no result."""
    from ..files import write_text
    from ..run_folder import make_writable
    from . import figures, page, tables
    from .results import collect

    make_writable("results", str(results))
    found = collect(plan, runs, allow_mixed=_flag(options, "mixed", "refuse", "allow"))
    command = "python -m fractal_ssm.compare " + shlex.join(words)
    write_text(results / "report.html", page.html(found, command))
    write_text(results / "report.md", tables.page(found))
    write_text(results / "differences.svg", figures.forest(found))
    for name in ("arms", "differences", "runs", "settings"):
        write_text(results / f"{name}.csv", tables.as_csv(getattr(tables, name)(found)))
    print(tables.page(found))
    print(f"Report: {results / 'report.html'}")
    return 0 if all(run.finished for run in runs) and runs else 1


def _jobs(text: str | None) -> int:
    import os

    cores = len(os.sched_getaffinity(0))
    if text is None:
        return cores
    if not text.isdecimal() or not 1 <= int(text) <= 64 * cores:
        raise UsageError(f"jobs is a number of runs at a time, 1 to {64 * cores} on this machine, got {text!r}.")
    return int(text)


def _list(options: Options) -> int:
    for name in plans.known_ablations(options.config_dirs):
        print(f"{name:15} {plans.ablation(name, folders=options.config_dirs)['question']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
