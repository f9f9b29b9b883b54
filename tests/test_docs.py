"""What the documents show is what happens: code runs, commands compose, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("README.md")])
page_id = dict(ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


SNIPPETS = [(page, code) for page in PAGES for code in blocks(page, "python")]


@pytest.mark.parametrize("code", [code for _, code in SNIPPETS], ids=[str(p.relative_to(ROOT)) for p, _ in SNIPPETS])
def test_python_blocks_run(code, tmp_path):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def train_commands() -> list[str]:
    """Every `python -m train` line of the documents, continuation lines joined, comments dropped."""
    found = set()
    for page in PAGES:
        for block in blocks(page, "(?:bash|sh|console|text)?"):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.match(r"\s*\$?\s*python -m train (.*?)(?:\s+#.*)?$", line)
                # A line that names a package of the reader's own is run by the plug-in tests instead.
                if match and not re.search("my_pkg|my_configs", line) and not re.search(r"[<{…]|--help", match[1]):
                    found.add(match[1].strip())
    return sorted(found)


@pytest.mark.parametrize("arguments", train_commands())
def test_train_commands_compose(arguments):
    words = [word for word in arguments.split() if word != "-m"]
    # A sweep is checked by its first job: seed=0,1 becomes seed=0.
    words = [re.sub(r"=([^=\[\],]+),[^=\[\]]*$", r"=\1", word) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "train", *words, "--cfg", "job"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, **page_id)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if not re.match(r"https?:", t) and not (page.parent / t).exists()]
    assert not missing
