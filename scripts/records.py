"""The CSV files of docs/results, and the command line of the scripts that write them."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


def read(source: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, with strings as values."""
    with source.open(newline="") as file:
        return list(csv.DictReader(file))


def write(target: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to a CSV file; columns that a row lacks (as in older runs) stay empty."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, whose positional arguments are existing `folders`."""
    parser.add_argument("folders", nargs="*", type=Path, help="folders with runs below them")
    options = parser.parse_args()
    missing = [str(folder) for folder in options.folders if not folder.is_dir()]
    if missing:
        parser.error(f"no such folder: {', '.join(missing)}")
    return options
