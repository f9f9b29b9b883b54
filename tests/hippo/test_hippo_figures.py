"""The figures that the documents show are those that the scripts draw."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.figures import all as every  # noqa: E402
from scripts.figures import density, structure, style  # noqa: E402

SCRIPTS = {path.stem for path in (ROOT / "scripts" / "figures").glob("*.py")} - {"all", "style"}


def test_every_script_is_drawn_and_every_figure_is_there_and_shown():
    assert set(every.NAMES) == SCRIPTS
    shown = set(re.findall(r"\(figures/(\w+)\.png\)", style.THEORY.read_text()))
    assert shown == SCRIPTS
    for name in SCRIPTS:
        assert 10_000 < (style.FIGURES / f"{name}.png").stat().st_size < 300_000


def test_tables_are_filled():
    blocks = re.findall(r"<!-- table: .*? -->\n(.*?)<!-- end -->", style.THEORY.read_text(), flags=re.S)
    assert len(blocks) == 4 and all(block.count("\n") > 4 for block in blocks)


@pytest.mark.parametrize("module", (density, structure), ids=("density", "structure"))
def test_a_figure_draws(module, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "FIGURES", tmp_path)
    assert style.save(module.draw(), "drawn").stat().st_size > 10_000
