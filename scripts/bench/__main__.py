"""Verify, then time, all of our backends and every installed peer on the same inputs in one run.

    python -m scripts.bench                    all cases and curves: CSV, table in docs/performance.md, PNG
    python -m scripts.bench --quick            tiny inputs, output only to --out: a test that everything runs
    python -m scripts.bench --only training    cases whose name contains the word, here the table of training steps

Columns: median, 20th and 80th percentile in ms, ratio to copying the largest input, peak memory over idle in MB, and
the relative error of the output and of the worst gradient against double precision. A contender whose gradients are
wrong is reported as such, not left out.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fractal_ssm.training.allocator import keep_freed_memory

from . import contenders as parts
from . import report, siso, stepping, steps
from .cases import CASES, CURVES, QUICK, QUICK_CURVES, WHOLE_LAYERS, Case
from .contenders import Contenders
from .timing import CLOCKS, Table, forget_peak, peak_mb, resident_mb, time_cpu

ROOT = Path(__file__).resolve().parents[2]
KINDS = parts.KINDS | siso.KINDS
# The CSV of each kind of case; all other kinds go to "bench".
GROUPS = {"training": "steps", "stepping": "stepping", **dict.fromkeys(WHOLE_LAYERS, "layers")}
# More bytes than any cache holds.
_BEYOND_CACHE = 1 << 29
COLUMNS = (
    "case", "contender", "what", "ms", "p20", "p80", "of_copy", "of_ours", "samples_s", "peak_mb", "error",
    "gradient_error", "clock", "threads", "torch", "note",
)  # fmt: skip


def tensors(case: Case) -> list[Tensor]:
    """The differentiable inputs of a case, identical on every call."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    def gates(*shape: int) -> Tensor:
        radius, phase = torch.rand(2, *shape, generator=generator).unbind()
        return torch.polar(0.95 + 0.0499 * radius, 3 * phase)

    if case.kind == "scan":
        batch, length, modes = case.shape
        shape = {"constant": (modes,), "shared": (length, modes), "full": (batch, length, modes)}[case.mode]
        found = [gates(*shape), normal(batch, length, modes)]
    elif case.kind == "layer":
        batch, length, features, modes = case.shape
        found = [normal(batch, length, features, dtype=torch.float32), gates(modes)]
        found += [normal(modes, features) / features, normal(features, modes) / modes]
    elif case.kind in WHOLE_LAYERS:
        found = siso.tensors(case.kind, case.shape, case.mode)
    else:
        features, _, modes = case.shape
        found = [normal(features, modes), gates(features, modes)]
    return [t.requires_grad_() for t in found]


def run(case: Case, contenders: Contenders, name: str, seed: Tensor, wide: bool = False) -> list[Tensor]:
    """[output, gradients...]; in double precision if `wide`."""
    given = tensors(case)
    if wide:
        given = [t.detach().to(torch.complex128 if t.is_complex() else torch.float64).requires_grad_() for t in given]
    out = contenders.run[name](*given)
    return [out.detach(), *torch.autograd.grad(out, given, seed.to(out.dtype))]


def errors(found: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    """Errors of the output and of the worst gradient: largest deviation divided by the largest entry."""
    each = [((one - other).abs().max() / other.abs().max()).item() for one, other in zip(found, exact, strict=True)]
    return each[0], max(each[1:])


def bench(case: Case, table: Table, seconds: float, only_ours: bool, memory: bool, clock: str = "wall") -> None:
    common = {"case": case.name, "clock": clock, "threads": torch.get_num_threads(), "torch": torch.__version__}
    if case.kind == "stepping":
        stepping.bench(case.shape, table, seconds, only_ours, CLOCKS[clock], common)
        return
    if case.kind == "training":
        peak_of = partial(_peak, case) if memory else None
        steps.bench(case.shape, table, seconds, only_ours, peak_of, clock, common)
        return
    contenders = KINDS[case.kind](case.shape, case.mode)
    names = [name for name in contenders.run if name not in case.without and (name.startswith("ours") or not only_ours)]
    given = tensors(case)
    oracle = next(iter(contenders.run))
    with torch.no_grad():
        out = contenders.run[oracle](*given)
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    exact = run(case, contenders, oracle, seed, wide=True)
    largest = max([out, *given], key=lambda t: t.numel() * t.element_size()).detach()
    copy = time_cpu(largest.clone, seconds, clock)
    table.add(contender="copy", what="forward", ms=copy.median, p20=copy.p20, p80=copy.p80, of_copy=1.0, **common)
    if case.kind == "scan" and not only_ours:
        far = time_cpu(_copy_from_memory(largest), seconds, clock)
        table.add(contender="copy from memory", what="forward", ms=far.median, p20=far.p20, p80=far.p80,
                  of_copy=far.median / copy.median, **common)  # fmt: skip
    for name in names:
        found = errors(run(case, contenders, name, seed), exact)
        note = "gradients are wrong" if not found[1] < 1e-2 else ""
        calls = {
            "forward": _forward(contenders, name, given),
            "forward+backward": _both(contenders, name, given, seed),
        }
        for what, call in calls.items():
            timing = time_cpu(call, seconds, clock, least=3)
            peak = _peak(case, name) if memory and what == "forward+backward" else ""
            table.add(contender=name, what=what, ms=timing.median, p20=timing.p20, p80=timing.p80, peak_mb=peak,
                      of_copy=timing.median / copy.median, error=found[0], gradient_error=found[1], note=note,
                      **common)  # fmt: skip
    if not only_ours:
        for name, reason in contenders.missing.items():
            table.add(contender=name, note=reason, **common)


def _copy_from_memory(tensor: Tensor) -> Callable[[], Tensor]:
    """A copy of the tensor between memory that is no longer in any cache, as for the tensors of a large model."""
    size = tensor.numel() * tensor.element_size()
    pairs = itertools.cycle([(tensor.clone(), tensor.clone()) for _ in range(max(1, _BEYOND_CACHE // (2 * size)))])

    def call() -> Tensor:
        source, target = next(pairs)
        return target.copy_(source)

    return call


def _forward(contenders: Contenders, name: str, given: list[Tensor]):
    def call() -> Tensor:
        with torch.no_grad():
            return contenders.run[name](*given)

    return call


def _both(contenders: Contenders, name: str, given: list[Tensor], seed: Tensor):
    return lambda: torch.autograd.grad(contenders.run[name](*given), given, seed)


def _peak(case: Case, name: str) -> float:
    """Peak memory of forward + backward (or of a training step) over idle, in MB, measured in a separate process."""
    command = [sys.executable, "-m", "scripts.bench", "--peak", repr(case), name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def _print_peak(text: str, name: str) -> None:
    case = eval(text, {"Case": Case})  # our own repr, passed by `_peak`
    if case.kind == "training":
        print(steps.peak_over_idle(case.shape, name))
        return
    contenders = KINDS[case.kind](case.shape, case.mode)
    small = Case(case.kind, tuple(min(n, 16) for n in case.shape), case.mode)
    # Run a small input first, so that compilers and thread pools count as idle.
    with torch.no_grad():
        seed = torch.ones_like(KINDS[small.kind](small.shape, small.mode).run[name](*tensors(small)))
    run(small, KINDS[small.kind](small.shape, small.mode), name, seed)
    given = tensors(case)
    out_shape = case.shape[:2] if case.kind == "kernel" else case.shape[:3]
    seed = torch.randn(out_shape, dtype=torch.complex64 if case.kind == "scan" else torch.float32)
    forget_peak()
    before = resident_mb()
    torch.autograd.grad(contenders.run[name](*given), given, seed)
    print(peak_mb() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny inputs, to test that everything runs")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name contains WORD; no curves")
    parser.add_argument("--seconds", type=float, default=2.0, help="clock per contender and direction")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads (default: as torch chooses)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor time on a busy machine, --threads 1")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out (a process for each row)")
    parser.add_argument("--out", default="", help="folder of the CSV and the PNG (default: docs/results/bench)")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        _print_peak(*options.peak)
        return
    # As in training: time the computation, not the operating system zeroing the same pages at every call.
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.quick and not options.out:
        parser.error("--quick needs --out, so that its numbers do not replace real ones")
    out = Path(options.out or ROOT / "docs/results/bench")
    seconds = 0.01 if options.quick else options.seconds
    groups: dict[str, list[Case]] = {"bench": [], "layers": [], "steps": [], "stepping": []}
    for case in QUICK if options.quick else CASES:
        groups[GROUPS.get(case.kind, "bench")].append(case)
    chosen = {group: [case for case in cases if options.only in case.name] for group, cases in groups.items()}
    whole = [group for group, cases in chosen.items() if cases == groups[group]]
    if not options.out and any(cases and group not in whole for group, cases in chosen.items()):
        parser.error("--only with some cases of a table needs --out, so that it does not lose the others")
    for group, cases in chosen.items():
        if not cases:
            continue
        table = Table(out / f"{group}.csv", COLUMNS)
        for case in cases:
            bench(case, table, seconds, only_ours=False, memory=not options.no_memory, clock=options.clock)
        table.close()
    if not options.only:
        _curves(out, QUICK_CURVES if options.quick else CURVES, seconds, options.clock)
    if not options.out:
        _document(out, whole)


def _curves(out: Path, curves: dict[str, list[Case]], seconds: float, clock: str) -> None:
    for axis, cases in curves.items():
        curve = Table(out / f"curve_{axis}.csv", COLUMNS)
        for case in cases:
            bench(case, curve, seconds / 2, only_ours=True, memory=False, clock=clock)
        curve.close()
        report.plot(out / f"curve_{axis}.csv", axis)


def _document(out: Path, groups: list[str]) -> None:
    """Write the tables of all groups that were measured completely, and those of results of other commands."""
    names = {"bench": "CPU", "layers": "S4D and S4 layers", "steps": "training step", "stepping": "one position"}
    tables = {names[group]: report.tables_of(out / f"{group}.csv") for group in groups}
    tables["profile"] = report.profile_tables(ROOT / "docs/results/steps")
    tables["GPU"] = report.gpu_table(sorted((ROOT / "docs/results/gpu").glob("*scan.csv")))
    report.write(tables, ROOT / "docs/performance.md")


if __name__ == "__main__":
    main()
