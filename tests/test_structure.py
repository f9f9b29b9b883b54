"""The shape of the source tree: who may import whom, file sizes, one package name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
SOURCES = sorted(SRC.rglob("*.py"))

# What each room may import; a room not named here may import anything.
ALLOWED = {
    "errors": set(),
    "files": set(),
    "registry": {"errors", "ranges"},
    "arguments": {"errors"},
    "ranges": {"errors"},
    "checkpoint": {"errors"},
    "config": {"errors", "ranges", "registry"},
    "run_folder": {"errors"},
    "state": {"errors"},
    "jit_cache": set(),
    "ops": {"errors", "jit_cache", "ops"},
    "sweep": {"errors", "files"},
    "hippo": {"errors", "registry", "hippo"},
    "models": {"__version__", "errors", "files", "registry", "checkpoint", "ops", "hippo", "models"},
    "export": {"errors", "files", "models", "ops", "export"},
    "processes": {"errors", "processes"},
    "data": {"errors", "jit_cache", "registry", "processes", "data"},
    "compare": {
        *("errors", "config", "config_errors", "registry", "train", "data.base", "models.build", "compare"),
        *("files", "run_folder", "training.record", "training.resume", "training.lock", "training.signals"),
        *("training.metric", "training.table"),
    },
    "interop": {"errors", "create", "registry", "models", "interop"},
    "create": {"errors", "config", "registry", "models"},
    "training": {
        *("errors", "files", "ranges", "registry", "checkpoint", "config", "training"),
        *("data.base", "data.contract", "models.base", "models.backbone", "models.marks", "ops"),
    },
}


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere, dotted from the package root ("ops.scan")."""
    package = ("fractal_ssm", *path.relative_to(SRC).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            found |= {".".join((*module, alias.name)) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("fractal_ssm.") for name in found if name.startswith("fractal_ssm.")}


def may_import(room: str, module: str) -> bool:
    return any(module == allowed or module.startswith(allowed + ".") for allowed in ALLOWED[room])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_arrows_point_one_way(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    room = parts[0]
    if room in ALLOWED:
        wrong = {module for module in imports_of(path) if not may_import(room, module)}
        assert not wrong, f"{room} must not import {sorted(wrong)}"


def test_the_walker_sees_a_forbidden_import(tmp_path, monkeypatch):
    (tmp_path / "ops").mkdir()
    bad = tmp_path / "ops" / "bad.py"
    bad.write_text("def f():\n    from ..models.base import SequenceLayer\n")
    monkeypatch.setitem(globals(), "SRC", tmp_path)
    assert imports_of(bad) == {"models.base.SequenceLayer"}
    assert not may_import("ops", "models.base.SequenceLayer")


def python_files() -> list[Path]:
    return [
        path for folder in ("src", "scripts", "tests", "configs") for path in sorted((ROOT / folder).rglob("*.py"))
    ] + [ROOT / "train.py", ROOT / "setup.py"]


def test_files_stay_readable():
    long = {str(p.relative_to(ROOT)): n for p in python_files() if (n := len(p.read_text().splitlines())) > 400}
    assert not long, f"files over 400 lines: {long}"


def test_lines_stay_within_120_columns():
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert not long, f"lines over 120 columns: {long}"


def test_the_package_has_one_name():
    # `import src...` from the root works too, and makes a second, different copy of every class.
    guilty = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name == "src" or name.startswith("src.") for name in names):
                guilty.append(str(path.relative_to(ROOT)))
    assert not guilty


def test_every_file_of_the_interpreter_is_run():
    ops = ROOT / "tests" / "ops"
    runners = {path.name.removeprefix("test_interpreted_") for path in ops.glob("test_interpreted_*.py")}
    assert runners == {path.name.removeprefix("test_") for path in (ops / "interpreter").glob("test_*.py")} != set()


def test_names_of_test_files_differ():
    """pytest imports test files by their bare names; two of one name end the collection."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("__init__.py", "conftest.py")]
    assert sorted(names) == sorted(set(names))
