"""python -m fractal_ssm.data: list the data that are there, and make or unpack data without training."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 2 for a user's mistake, 130 for Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if any("\0" in argument for argument in arguments or ()):
            raise UsageError("An argument holds a NUL character, which file names cannot contain.")
        options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe; the interpreter's final flush would fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # A path that cannot be read or written: /nowhere/sheet.png, a file in place of a folder, a full disk.
        if error.errno is None:
            raise
        print(f"{parser.prog}: {error.strerror}: {error.filename}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing half-done is left behind.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    from .pathfinder import cli

    parser = argparse.ArgumentParser(prog="python -m fractal_ssm.data", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    status = commands.add_parser("status", help="per task: found, prepared or missing, and what to do")
    status.add_argument("--data-dir", type=Path, default=Path("data"), help="root of all data (default: data)")
    status.add_argument("--thorough", action="store_true", help="read every byte and compare checksums")
    status.add_argument("--json", action="store_true", help="print a JSON list")
    status.set_defaults(run=_status)

    listops = commands.add_parser("listops", help="write ListOps in the layout of the release")
    _add_listops_arguments(listops)
    listops.set_defaults(run=_listops)

    pathfinder = commands.add_parser("pathfinder", help="draw Pathfinder images, write or preview them")
    cli.add_arguments(pathfinder)
    pathfinder.set_defaults(run=cli.run)

    extract = commands.add_parser("extract", help="unpack a tar archive, compressed or not, safely")
    extract.add_argument("archive", type=Path)
    extract.add_argument("--to", type=Path, required=True, metavar="DIR", help="folder to make")
    extract.set_defaults(run=_extract)
    return parser


def _status(options: argparse.Namespace) -> None:
    from .status import as_page, status

    entries = status(options.data_dir, options.thorough)
    if options.json:
        print(json.dumps([entry.as_dict() for entry in entries], indent=1))
        return
    print(as_page(options.data_dir, entries))


def _add_listops_arguments(parser: argparse.ArgumentParser) -> None:
    from .listops.dataset import RECIPE

    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for basic_{train,val,test}.tsv")
    parser.add_argument("--n", type=int, help="number of trees, split 96 : 2 : 2")
    parser.add_argument("--n-train", type=int, default=96_000)
    parser.add_argument("--n-val", type=int, default=2_000)
    parser.add_argument("--n-test", type=int, default=2_000)
    for name, default in RECIPE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--workers", type=int, help="threads (default: all cores); the trees do not depend on it")


def _listops(options: argparse.Namespace) -> None:
    from .listops.dataset import FILES, RECIPE, draw
    from .options import check_workers, checked_data_dir

    checked_data_dir(options.out, "--out")
    check_workers(options.workers)
    counts = {"train": options.n_train, "val": options.n_val, "test": options.n_test}
    if options.n is not None:
        held_out = max(1, round(options.n * 0.02))
        counts = {"train": options.n - 2 * held_out, "val": held_out, "test": held_out}
    if min(counts.values()) < 1:
        raise UsageError(f"Every split needs at least one tree, got {counts}.")
    recipe = {name: getattr(options, name) for name in RECIPE}
    _check_listops(counts, recipe)
    there = [name for name in FILES.values() if (options.out / name).exists()]
    if there:
        raise UsageError(f"{options.out} already holds {there[0]}; nothing is overwritten. Name another folder.")
    new = [folder for folder in (options.out, *options.out.parents) if not folder.exists()]
    options.out.mkdir(parents=True, exist_ok=True)
    partial = options.out / f".tmp-{uuid.uuid4().hex[:8]}"
    partial.mkdir()
    try:
        _write_listops(partial, draw(counts, recipe, options.workers), counts)
        for name in FILES.values():
            (partial / name).rename(options.out / name)
        new = []
    finally:
        shutil.rmtree(partial)
        for folder in new:
            folder.rmdir()
    written = ", ".join(f"{name} ({counts[split]:,})" for split, name in FILES.items())
    print(f"Wrote {written} to {options.out.resolve()}")


def _check_listops(counts: dict[str, int], recipe: dict[str, int]) -> None:
    """Run the dataset's own checks; their messages name the options of the command."""
    from .listops.dataset import ListOps

    try:
        ListOps(Path(), "generated", **{f"n_{split}": count for split, count in counts.items()}, **recipe)
    except UsageError as error:
        told = re.sub(r"dataset\.(\w+)", lambda match: "--" + match[1].replace("_", "-"), str(error))
        raise UsageError(told) from None


def _write_listops(folder: Path, trees, counts: dict[str, int]) -> None:
    from itertools import islice

    from .listops.dataset import FILES
    from .listops.text import write_tsv

    for split, name in FILES.items():
        write_tsv(folder / name, islice(trees, counts[split]))


def _extract(options: argparse.Namespace) -> None:
    from .safe import extract_tar

    print(f"Unpacked {options.archive} to {extract_tar(options.archive, options.to).resolve()}")


if __name__ == "__main__":
    sys.exit(main())
