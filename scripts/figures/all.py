"""Draw every figure of docs/figures and the tables of docs/theory.md: python scripts/figures/all.py"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path

# When this file is run by its path, sys.path lacks the repository's root, where the package `scripts` is.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

NAMES = (
    "density",
    "structure",
    "spectra",
    "impulse_response",
    "frequency_response",
    "reconstruction",
    "conditioning",
    "time_scales",
)


def main() -> None:
    from scripts.figures import style

    for count, name in enumerate(NAMES, 1):
        start = time.perf_counter()
        print(f"[{count}/{len(NAMES)}] {name} ...", end=" ", flush=True)
        path = style.save(import_module(f"scripts.figures.{name}").draw(), name)
        print(f"{path.relative_to(style.ROOT)}, {path.stat().st_size // 1000} kB, {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
