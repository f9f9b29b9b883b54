"""Read the Retrieval tsv files, of many gigabytes, in pieces that survive an interruption.

First pass: each 5,000 rows go into one file, which holds the kept beginnings of their documents as UTF-8, the counts of
their characters, and the position in the tsv at which to resume. Second pass: the vocabulary is known, and the pieces
become the two packed arrays of ids. Memory: one piece, about 40 MB at 4,000 characters a document.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ..errors import UsageError
from .characters import CharacterEncoder
from .options import parsed_label
from .packed import PackedWriter
from .progress import progress
from .vocabulary import CharacterCounter, Vocabulary, code_points

_ROWS_PER_SHARD = 5_000
_LONGEST_LINE = 64 << 20


def read_shards(path: Path, folder: Path, split: str, limit: int, wanted: int | None) -> int:
    """Read one tsv into `folder/<split>-00000.npz`, ...; pieces that already exist are not read again.

    Args:
        path: rows of label, id, id, text, text, split by tabs, no header, no quoting.
        folder: where the pieces go.
        split: name of the split, with which their names begin.
        limit: characters kept of each document.
        wanted: rows to read; None reads to the end.
    Returns:
        Number of rows read, including those of earlier calls.
    Raises:
        UsageError: a row without five fields or with a label that is not 0 or 1; names file and row.
    """
    shards = _shards(folder, split)
    rows, position = 0, 0
    for shard in shards:
        try:
            # Open the file here: np.load does not close a file that is not an archive.
            with open(shard, "rb") as piece, np.load(piece) as content:
                rows += len(content["labels"])
                position = int(content["position"])
        except (ValueError, EOFError, KeyError, BadZipFile) as error:
            raise UsageError(
                f"{shard}, a piece of an interrupted reading of {path.name}, is damaged ({error}). Nothing was "
                f"changed. Delete the folder {folder} to read the file from its beginning."
            ) from error
    size = path.stat().st_size
    with progress(f"Reading {path.name}", size, "bytes") as advance, open(path, "rb") as file:
        advance(position)
        file.seek(position)
        index = len(shards)
        while wanted is None or rows < wanted:
            room = _ROWS_PER_SHARD if wanted is None else min(_ROWS_PER_SHARD, wanted - rows)
            count = _read_shard(file, path, folder / f"{split}-{index:05d}.npz", rows, room, limit)
            if count == 0:
                break
            rows, index = rows + count, index + 1
            advance(file.tell() - position)
            position = file.tell()
    return rows


def assemble(folder: Path, splits: Sequence[str], l_max: int) -> list[str]:
    """Turn the pieces into `tokens1`, `tokens2` (packed) and `labels.npy`, and remove them.

    Args:
        folder: where the pieces are.
        splits: in the order in which the samples are stored; the characters of "train" make the vocabulary.
        l_max: longest document, `<eos>` included.
    Returns:
        Tokens of the vocabulary, in the order of their ids.
    """
    counts = CharacterCounter()
    for shard in _shards(folder, "train"):
        with np.load(shard) as content:
            counts.add_counts(content["points"], content["counts"])
    vocabulary = Vocabulary.from_counts(counts.counts())
    encode = CharacterEncoder(vocabulary, l_max)
    labels = []
    shards = [shard for split in splits for shard in _shards(folder, split)]
    with (
        progress("Numbering characters", len(shards), "pieces") as advance,
        PackedWriter(folder, "tokens1", encode.dtype) as first,
        PackedWriter(folder, "tokens2", encode.dtype) as second,
    ):
        for shard in shards:
            with np.load(shard) as content:
                labels.append(content["labels"])
                ends, text = np.cumsum(content["bytes"]), content["text"].tobytes()
            documents = [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
            for place, document in enumerate(documents):
                (second if place % 2 else first).append(encode(document.decode("utf-8")))
            advance(1)
    np.save(folder / "labels.npy", np.concatenate(labels))
    for shard in shards:
        shard.unlink()
    return list(vocabulary.tokens)


def _shards(folder: Path, split: str) -> list[Path]:
    return sorted(folder.glob(f"{split}-[0-9]*.npz"))


def _read_shard(file, path: Path, target: Path, first_row: int, room: int, limit: int) -> int:
    """Read up to `room` rows, store them and return their number."""
    labels, texts, counter = [], [], CharacterCounter()
    while len(labels) < room:
        line = file.readline(_LONGEST_LINE)
        if not line:
            break
        label, documents = _parse(line, path, first_row + len(labels) + 1, limit)
        labels.append(label)
        for document in documents:
            counter.add(code_points(document, limit))
            texts.append(document.encode("utf-8"))
    if not labels:
        return 0
    seen = counter.counts()
    partial = target.with_suffix(".tmp")
    with open(partial, "wb") as sink:
        np.savez(
            sink,
            labels=np.array(labels, dtype=np.uint8),
            bytes=np.array([len(text) for text in texts], dtype=np.int64),
            text=np.frombuffer(b"".join(texts), dtype=np.uint8),
            points=np.array([ord(character) for character in seen], dtype=np.int64),
            counts=np.array(list(seen.values()), dtype=np.int64),
            position=np.array(file.tell()),
        )
    os.replace(partial, target)
    return len(labels)


def _parse(line: bytes, path: Path, row: int, limit: int) -> tuple[int, list[str]]:
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != 5:
        raise UsageError(
            f"{path}, row {row}: expected 5 fields (label, id, id, text, text) with tabs between them, got "
            f"{len(fields)}. The file may have been cut short: copy or download it again."
        )
    label = parsed_label(fields[0], 2, f"{path}, row {row}")
    # UTF-8 takes at most four bytes a character, so a character that is cut in two lies beyond the limit.
    return label, [text[: 4 * limit].decode("utf-8", "replace")[:limit] for text in fields[3:]]
