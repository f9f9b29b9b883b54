"""What the documents show is what happens: code runs, commands compose, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("README.md")])
page_id = dict(ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    # Every block is matched, whatever its language: a closing fence looks like an opening one.
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    return [text for tag, text in found if re.fullmatch(language, tag)]


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


def run(arguments: str, cwd: Path, *more: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": f"{cwd}{os.pathsep}{ROOT}"}
    words = [sys.executable, *arguments.split()[1:], *more]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)


def readme_commands() -> list[str]:
    lines = "".join(blocks(ROOT / "README.md", "console")).splitlines()
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def test_the_plug_in_of_the_readme(tmp_path):
    """Its Python file under the name in its first line, then the commands that name it."""
    for code in blocks(ROOT / "README.md", "python"):
        if named := re.match(r"# (\S+\.py)\n", code):
            (tmp_path / named[1]).parent.mkdir(exist_ok=True)
            (tmp_path / named[1]).write_text(code)
    commands = [command for command in readme_commands() if "my_pkg.alphas" in command]
    assert len(commands) == 2
    for command in commands:
        done = run(command, tmp_path, *(["budget=smoke"] if "-m train" in command else []))
        assert done.returncode == 0, done.stderr


def test_every_command_of_the_readme_is_accounted_for():
    """make targets exist; train commands are composed above; commands of a plug-in are run; the rest is listed."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    listed = {
        "python -m fractal_ssm.compare ablation=measures budget=cpu seeds=5": "hours; its dry run is tested below",
        "python -m fractal_ssm.data status": "tests/data",
        "python -m fractal_ssm.doctor": "tests/test_doctor.py",
        # With an EMA layer that the page leaves to the reader: tests/test_plugins.py.
        "python -m train --config-dir my_configs experiment=ema-listops budget=smoke": "a layer of the reader's own",
    }
    composed = {f"python -m train {arguments}" for arguments in train_commands()}
    for command in readme_commands():
        command = re.sub(r"\s+", " ", command).strip()
        if command.startswith("make "):
            assert command.split()[1] in targets
        else:
            assert command in composed or command in listed or "my_pkg.alphas" in command, command


def test_the_comparison_of_the_readme_is_planned(tmp_path):
    (command,) = [command for command in readme_commands() if "fractal_ssm.compare" in command]
    done = run(command.strip(), tmp_path, "--dry-run")
    assert done.returncode == 0 and "measures" in done.stdout, done.stderr


@pytest.mark.parametrize("page", PAGES, **page_id)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if not re.match(r"https?:", t) and not (page.parent / t).exists()]
    assert not missing
