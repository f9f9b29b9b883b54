"""Markdown tables that scripts write into the documents, between `<!-- table: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text, without a newline after the last row."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def replaced(text: str, name: str, body: str) -> str:
    """The document `text` with the content between the marks of table `name` replaced by `body`.

    Raises:
        ValueError: the document does not contain the marks exactly once.
    """
    mark = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
    if len(mark.findall(text)) != 1:
        raise ValueError(f"The document must hold the marks of the table '{name}' exactly once.")
    return mark.sub(lambda found: f"{found[1]}{body}\n{found[2]}", text)


def write(page: Path, name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Put a table between its marks on a page. Raises ValueError, naming the page, if it lacks the marks."""
    try:
        page.write_text(replaced(page.read_text(), name, markdown(header, rows)))
    except ValueError as error:
        raise ValueError(f"{page}: {error}") from None
