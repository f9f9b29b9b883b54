"""Reformats docstrings for the site's parser: blank lines before sections and lists, examples as code blocks."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SECTION = re.compile(r"(?:Args|Returns|Raises|Yields|Attributes):$")
_ITEM = re.compile(r" *- ")


class Sections(Extension):
    """Adds the blank lines that our docstrings omit before sections, lists and examples."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = separated(obj.docstring.value)


def separated(text: str) -> str:
    """The docstring with blank lines before its sections and lists, and its doctests fenced.

    >>> separated("Sum.\\nReturns:\\n    x.")
    'Sum.\\n\\nReturns:\\n    x.'
    """
    lines: list[str] = []
    in_example = False
    for line in text.split("\n"):
        if in_example and not line.strip():
            lines.append("```")
            in_example = False
        starts_example = not in_example and line.startswith(">>>")
        if lines and lines[-1].strip() and (starts_example or _SECTION.match(line) or _starts_list(lines[-1], line)):
            lines.append("")
        if starts_example:
            lines.append("```python")
            in_example = True
        lines.append(line)
    return "\n".join([*lines, "```"] if in_example else lines)


def _starts_list(before: str, line: str) -> bool:
    """Whether `line` is the first item of a list, after the sentence `before`, rather than a later item."""
    if not _ITEM.match(line) or _ITEM.match(before):
        return False
    indent = len(line) - len(line.lstrip(" "))
    return not before.startswith(" " * (indent + 2))
