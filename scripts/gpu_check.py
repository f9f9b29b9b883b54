"""Check every GPU kernel against double precision, then time it. One command, at most six minutes, CSV out.

    python scripts/gpu_check.py                    on a machine with a CUDA or ROCm device
    python scripts/gpu_check.py --dry-run          anywhere: the same code in Triton's interpreter on tiny inputs
    python scripts/gpu_check.py --only scan layer  some stages

Needs torch and triton; the package need not be installed. Each stage is guarded: one that fails is reported with its
traceback, the others still run, and the exit status is 1 at the end. Rows are written as they are measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "stage", "case", "what", "ok", "error", "limit", "ms", "p20", "p80", "copy_ms", "of_copy", "gb_per_s",
    "eager_ms", "peak_mb", "note",
)  # fmt: skip


def main() -> int:
    options = _parser().parse_args()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    _make_importable()
    sys.path.insert(0, str(ROOT))
    import torch

    from scripts import gpu_stages
    from scripts.bench.timing import Table

    if options.one_pass:
        from fractal_ssm.ops.scan import triton as triton_backend

        triton_backend.ONE_PASS = True

    device = "cpu" if options.dry_run else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("No CUDA or ROCm device here. Use --dry-run to try the script in Triton's interpreter.")
        return 2
    name = ("gpu_dry_run" if options.dry_run else "gpu") + ("_one_pass" if options.one_pass else "")
    table = Table(Path(options.out) / f"{name}.csv", COLUMNS)
    context = gpu_stages.Context(device, options.dry_run, table)
    stages = {name: stage for name, stage in gpu_stages.STAGES.items() if not options.only or name in options.only}
    failed = _run(stages, context, options.minutes * 60)
    failed += [f"{row['stage']} {row['case']} {row.get('what', '')}" for row in table.rows if row.get("ok") is False]
    table.close()
    print("FAILED: " + "; ".join(failed) if failed else "all checks passed", flush=True)
    return 1 if failed else 0


def _run(stages: dict[str, Callable[..., None]], context: object, seconds: float) -> list[str]:
    began, failed = time.monotonic(), []
    for name, stage in stages.items():
        if time.monotonic() - began > seconds:
            print(f"== {name}: left out, the time is up", flush=True)
            failed.append(f"{name} (no time left)")
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            stage(context)
        except Exception:
            # The next stages must still run; this one is reported here and in the exit status.
            traceback.print_exc()
            failed.append(name)
        print(f"== {name}: {time.monotonic() - start:.1f} s", flush=True)
    return failed


def _make_importable() -> None:
    """Register the checkout's src/ as `fractal_ssm` where the package is not installed."""
    if importlib.util.find_spec("fractal_ssm") is not None:
        return
    for name, folder in (("fractal_ssm", ROOT / "src"), ("fractal_ssm.configs", ROOT / "configs")):
        if not (folder / "__init__.py").exists():
            continue
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="Triton's interpreter on the CPU, tiny inputs, no clock")
    parser.add_argument("--out", default=str(ROOT / "docs/results/gpu"), help="folder of the CSV")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="stages to run, in the usual order")
    parser.add_argument("--one-pass", action="store_true", help="take the scan kernel whose programs wait for each "
                        "other (not yet seen on a GPU: run it under `timeout`)")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=5.5, help="start no further stage after this long")
    return parser


if __name__ == "__main__":
    sys.exit(main())
