"""ListOps in the layout of the Long Range Arena release: basic_{train,val,test}.tsv with columns Source and Target.

A tree is printed as nested pairs, `( L R )`: an operator with arguments a1..ak is the chain
`(((op, a1), a2) ..., ak), "]"`.
Lines end in CRLF, as Python's csv writer leaves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ...errors import UsageError
from .. import mega
from ..options import parsed_label
from .generator import evaluate
from .symbols import SYMBOLS

_HEADER = "Source\tTarget"
_CODES = {token.encode(): code for code, token in enumerate(SYMBOLS)} | {b"]": SYMBOLS.index("X")}
_CLOSE = SYMBOLS.index("X")


def to_text(symbols: np.ndarray) -> str:
    """Printed form of one tree given as symbol codes.

    >>> to_text(np.array([11, 1, 10, 3, 4, 14, 5, 14]))
    '( ( ( ( [MAX 1 ) ( ( ( [MIN 3 ) 4 ) ] ) ) 5 ) ] )'
    """
    pieces: list[str] = []
    opened: list[int] = []
    arguments: list[int] = []
    for code in symbols.tolist():
        if 10 <= code < _CLOSE:
            opened.append(len(pieces))
            arguments.append(0)
            pieces.append(SYMBOLS[code])
            continue
        if code == _CLOSE:
            # As many pairs open before the operator as it has arguments, and one more for the bracket.
            start = opened.pop()
            pieces[start] = "( " * (arguments.pop() + 1) + pieces[start]
            pieces.append("] )")
        else:
            pieces.append(SYMBOLS[code])
        if opened:
            pieces.append(")")
            arguments[-1] += 1
    return " ".join(pieces)


def from_text(source: bytes) -> np.ndarray:
    """Symbol codes, uint8, of a printed tree; parentheses and spaces are ignored.

    Raises:
        UsageError: a token that ListOps does not have.
    """
    try:
        return np.array([_CODES[token] for token in source.translate(None, b"()").split()], dtype=np.uint8)
    except KeyError as error:
        known = " ".join((*SYMBOLS[:-1], "]"))
        raise UsageError(f"{error.args[0].decode(errors='replace')!r} is not a ListOps token ({known}).") from None


def write_tsv(path: Path, trees: Iterable[tuple[np.ndarray, int]]) -> None:
    """Write pairs (symbol codes, value) to one file of the release's layout."""
    with open(path, "w", encoding="ascii", newline="") as file:
        file.write(_HEADER + "\r\n")
        for symbols, value in trees:
            file.write(f"{to_text(symbols)}\t{int(value)}\r\n")


def read_tsv(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Read pairs (symbol codes, value) from a file of the release's layout, checking every row.

    Raises:
        UsageError: another header, a row cut short, an unknown token, or a target that the tree does not evaluate to;
            names the file and the line.
    """
    with open(path, "rb") as file:
        header = file.readline(1000).decode("utf-8-sig", errors="replace").strip()
        if header != _HEADER:
            raise UsageError(
                f"{path} should begin with the header 'Source<TAB>Target', got {header[:60]!r}. Copy or download it "
                f"again."
            )
        for number, line in enumerate(file, start=2):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if fields == [b""]:
                continue
            if len(fields) != 2 or not fields[1].strip().isdigit():
                raise UsageError(
                    f"{path}, line {number}: expected a tree, a tab and a digit, got {line[-40:]!r} at its end. "
                    f"The file may have been cut short: copy or download it again."
                )
            place = f"{path}, line {number}"
            yield _checked(fields[0], parsed_label(fields[1], 10, place), place)


def read_mega(folder: Path, split: str) -> Iterator[tuple[np.ndarray, int]]:
    """Read pairs (symbol codes, value) from the Mega repository's form, checking every row as `read_tsv` does."""
    for place, source, label in mega.read_lines(folder, split):
        yield _checked(source, label, place)


def _checked(source: bytes, label: int, place: str) -> tuple[np.ndarray, int]:
    try:
        symbols = from_text(source)
        value = evaluate(symbols)
    except UsageError as error:
        raise UsageError(f"{place}: {error} Copy or download the file again.") from None
    if value != label:
        raise UsageError(
            f"{place}: the target is {label}, but the tree has the value {value}. These are not the ListOps of the "
            f"release, or they are damaged."
        )
    return symbols, value
