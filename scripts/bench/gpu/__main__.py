"""Time every GPU kernel and whole models on a CUDA or ROCm device; each CSV row is written when it is measured.

    python -m scripts.bench.gpu                    on a machine with a GPU, at most six minutes
    python -m scripts.bench.gpu --only scan        some stages
    python -m scripts.bench.gpu --dry-run --out X  anywhere: the same code in Triton's interpreter on tiny inputs

Run `pytest -m gpu tests/gpu` first, because the time of a wrong kernel is meaningless. A failing stage is reported with
its traceback; the others still run, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = (
    "stage", "case", "what", "ok", "ms", "p20", "p80", "copy_ms", "of_copy", "gb_per_s", "eager_ms", "peak_mb", "note",
)  # fmt: skip


def main() -> int:
    options = _parser().parse_args()
    if options.dry_run:
        # Triton reads this when it is first imported.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from ..timing import Table

    if not options.dry_run and not torch.cuda.is_available():
        print("No CUDA or ROCm device here. Use --dry-run to try the benchmarks in Triton's interpreter.")
        return 2
    table = Table(Path(options.out) / ("gpu_dry_run.csv" if options.dry_run else "gpu.csv"), COLUMNS)
    failed = _run(_stages(options, table), options.minutes * 60)
    failed += [f"{row['stage']} {row['case']}" for row in table.rows if row.get("ok") is False]
    table.close()
    print("FAILED: " + "; ".join(failed) if failed else "all stages ran", flush=True)
    return 1 if failed else 0


def _stages(options: argparse.Namespace, table: object) -> dict[str, Callable[[], None]]:
    from . import fused, models, scan, sums

    device = "cpu" if options.dry_run else "cuda"
    given = device, options.dry_run, table
    context = scan.Context(*given)
    stages = {
        "scan": lambda: scan.time_scan(context),
        "layer": lambda: scan.time_layer(context),
        "fused": lambda: fused.time_fused(*given),
        "sums": lambda: sums.time_sums(*given),
        "models": lambda: models.time_models(*given),
    }
    return {name: stage for name, stage in stages.items() if not options.only or name in options.only}


def _run(stages: dict[str, Callable[[], None]], seconds: float) -> list[str]:
    began, failed = time.monotonic(), []
    for name, stage in stages.items():
        if time.monotonic() - began > seconds:
            print(f"== {name}: left out, the time is up", flush=True)
            failed.append(f"{name} (no time left)")
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            stage()
        except Exception:
            # The next stages must still run; this one is reported here and in the exit status.
            traceback.print_exc()
            failed.append(name)
        print(f"== {name}: {time.monotonic() - start:.1f} s", flush=True)
    return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="Triton's interpreter on the CPU, tiny inputs, no clock")
    parser.add_argument("--out", default=str(ROOT / "docs/results/gpu"), help="folder of the CSV")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="stages to run, in the usual order")
    parser.add_argument("--minutes", type=float, default=5.5, help="start no further stage after this long")
    return parser


if __name__ == "__main__":
    sys.exit(main())
