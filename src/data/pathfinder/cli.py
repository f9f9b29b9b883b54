"""python -m fractal_ssm.data pathfinder: draw images, preview them, write them in the layout of the release."""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

from ...errors import UsageError
from ..options import MOST_SAMPLES, check_workers, shown
from .parameters import CONTOUR_LENGTHS, CONTRASTS, ROUNDS, SIZES, parameters

_PIECE = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    sizes = ", ".join(map(str, SIZES))
    parser.add_argument("--size", type=int, default=32, help=f"side of the images: {sizes} (default: 32)")
    parser.add_argument("--n", type=int, default=1000, help="number of images (default: 1000)")
    parser.add_argument("--difficulty", default="hard", help=f"{', '.join(CONTOUR_LENGTHS)} (default: hard)")
    parser.add_argument("--contrast", default="released", help=f"{', '.join(CONTRASTS)} (default: released)")
    parser.add_argument(
        "--rounds", default="first_level", help=f"of distractors: {', '.join(ROUNDS)} (default: first_level)"
    )
    parser.add_argument("--seed", type=int, default=0, help="image k of a seed is always the same (default: 0)")
    parser.add_argument("--preview", type=Path, metavar="FILE", help="save the images as a sheet with their labels")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the images in the layout of the release")
    parser.add_argument("--workers", type=int, help="threads (default: all cores); the images do not depend on it")


def run(options: argparse.Namespace) -> None:
    """Draw the images; print rate, statistics and checksum."""
    from .generate import Generator

    check_workers(options.workers)
    if not 1 <= options.n <= MOST_SAMPLES:
        raise UsageError(f"--n is a number of images in 1..{MOST_SAMPLES}, got {shown(options.n)}.")
    if options.preview and options.n > 400:
        raise UsageError(f"A sheet of {options.n} images is too large to look at; give --n 400 or less with --preview.")
    if options.preview and options.preview.suffix.lower() not in (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"):
        raise UsageError(f"--preview saves an image: give it a name like {options.preview.stem or 'sheet'}.png.")
    generator = Generator(parameters(options.size, options.difficulty, options.contrast, options.rounds), options.seed)
    generator.draw(0, 0)
    if options.preview:
        from .preview import write_sheet

        write_sheet(options.preview, generator.draw(0, options.n))
        print(f"Wrote {options.preview.resolve()}")
    if options.out:
        from .writer import write_release

        begun = time.perf_counter()
        target = write_release(options.out, generator, options.difficulty, options.n, options.workers)
        print(f"Wrote {target.resolve()} in {time.perf_counter() - begun:.1f} s")
    if not options.out:
        _summarise(generator, options.n, options.workers)


def _summarise(generator, n: int, workers: int | None) -> None:
    """Draw all images in memory, piece by piece, and print their statistics.

    The checksum is taken over the checksums of the pieces, so that only a few pieces are in memory at a time.
    """
    from ..progress import progress
    from .generate import checksum, run_shards

    def do(shard: range) -> tuple[str, float, float, float]:
        part = generator.draw(shard.start, len(shard))
        return checksum(part.images, part.labels), part.images.sum(), part.labels.sum(), part.placed.sum()

    shards = [range(first, min(first + _PIECE, n)) for first in range(0, n, _PIECE)]
    begun = time.perf_counter()
    with progress(f"Drawing Pathfinder {generator.setting.size}", n, "images") as advance:
        parts = {}
        for shard, part in run_shards(shards, do, workers):
            parts[shard.start] = part
            advance(len(shard))
    seconds = time.perf_counter() - begun
    digest = hashlib.sha256("".join(parts[first][0] for first in sorted(parts)).encode()).hexdigest()
    pixels, labels, placed = (sum(part[column] for part in parts.values()) for column in (1, 2, 3))
    print(f"{n:,} images of {generator.setting.size} px: {n / seconds:,.0f} images/s")
    mean = pixels / n / generator.setting.size**2
    print(f"mean {mean:.2f} of 255, label 1 {labels / n:.1%}, {placed / n:.1f} distractors")
    print(f"sha256 {digest}")
