"""Docstrings as the site's parser wants them: a blank line before every section and every list."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SECTION = re.compile(r"(?<!\n)\n(?=(?:Args|Returns|Raises|Yields|Attributes|Examples?):\n)")
_ITEM = re.compile(r"^( *)- ", re.MULTILINE)


class Sections(Extension):
    """Our docstrings put the sections under each other without blank lines, and lists under their sentence."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called for every module, class, function and attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = separated(obj.docstring.value)


def separated(text: str) -> str:
    """The docstring with the blank lines.

    >>> separated("Sum.\\nReturns:\\n    x.")
    'Sum.\\n\\nReturns:\\n    x.'
    """
    lines: list[str] = []
    for line in _SECTION.sub("\n\n", text).split("\n"):
        starts_list = _ITEM.match(line) and lines and lines[-1].strip() and not _ITEM.match(lines[-1])
        if starts_list and not lines[-1].startswith(" " * (_indent(line) + 2)):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
