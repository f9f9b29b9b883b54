"""The Triton kernels compile for the GPUs we name, spill nothing and stay within their bounds; offsets are 64-bit."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest
from compiled import costs

KERNELS = sorted((Path(__file__).parent.parent.parent / "src/ops").rglob("triton*.py"))


def check(rows: list[dict]) -> None:
    assert len(rows) >= 6
    for row in rows:
        assert row["spills"] == 0, row
        assert row["shared"] < 100 * 1024, row
        assert row["registers"] <= 255 or row["target"].startswith("hip"), row


def test_sm_90():
    rows = costs("kernels", "cuda:90")
    check(rows)
    assert len(rows) == 6
    for row in rows:
        # One warp owns whole columns: nothing is exchanged, and every tile is read 16 bytes at a time.
        assert row["shuffles"] == 0 and row["shared"] == 0, row
        assert row["wide_loads"] == row["loads"] > 0, row


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_other_targets(target):
    check(costs("kernels", target))


def kernels() -> list[ast.FunctionDef]:
    nodes = [node for path in KERNELS for node in ast.parse(path.read_text()).body]
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and "program_id" in ast.unparse(node)]


def narrow_program_ids(function: ast.FunctionDef) -> list[str]:
    """Uses of tl.program_id that are not cast to 64 bits on the spot: their products wrap at 2**31."""
    calls = [ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Call)]
    ids = [call for call in calls if call.startswith("tl.program_id(") and call.endswith(")") and call.count("(") == 1]
    cast = [call for call in calls if call.startswith("tl.program_id(") and call.endswith(".to(tl.int64)")]
    return ids[len(cast) :]


def test_program_ids_are_widened_before_they_multiply():
    found = kernels()
    assert {function.name for function in found} >= {"scan_kernel", "shared_gate_kernel"}
    for function in found:
        assert not narrow_program_ids(function), function.name


def test_the_check_on_program_ids_can_fail():
    def bad(tl, x):
        return x + tl.program_id(0) * 4096

    def good(tl, x):
        return x + tl.program_id(0).to(tl.int64) * 4096

    bad, good = (ast.parse(textwrap.dedent(inspect.getsource(f))).body[0] for f in (bad, good))
    assert narrow_program_ids(bad) and not narrow_program_ids(good)
