"""Hooks of the documentation site: pages outside docs/, links to files outside docs/, formulas without JavaScript.

mkdocs reads only docs/. The README and the pages beside the code are added under the names in `PAGES`; a link to one of
them goes to its page, and a link to any other file of the repository becomes its path as text. Formulas between dollar
signs become MathML, which browsers render natively.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# File of the repository -> page of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "src/data/README.md": "data.md",
    "src/data/pathfinder/README.md": "pathfinder.md",
    "src/models/fractal/README.md": "fractal.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
# Comments that mark the place of generated tables.
_MARK = re.compile(r"<!-- (table: [\w-]+|end) -->\n")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page, which are relative to its file in the repository, as links between pages."""
    source = next((path for path, name in PAGES.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    return _MARK.sub("", _LINK.sub(lambda link: _relinked(link, source, page.file.src_uri), markdown))


def on_page_content(content: str, **_: Any) -> str:
    """Render formulas as MathML."""
    return _FORMULA.sub(_mathml, content)


def _relinked(link: re.Match[str], source: str, page: str) -> str:
    image, label, target = link.groups()
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return link[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / wanted).exists():
        raise ValueError(f"{source} links to {target}, but there is no {wanted} in the repository.")
    shown = PAGES.get(wanted)
    if wanted.startswith("docs/") and wanted.endswith((".md", ".png")):
        shown = wanted.removeprefix("docs/")
    if shown is None:
        return label if label == f"`{wanted}`" else f"{label} (`{wanted}`)"
    return f"{image}[{label}]({posixpath.relpath(shown, posixpath.dirname(page) or '.')}{hash_}{anchor})"


def _mathml(formula: re.Match[str]) -> str:
    display = "block" if formula[1] == "div" else "inline"
    return convert(html.unescape(formula[3]), display=display)
