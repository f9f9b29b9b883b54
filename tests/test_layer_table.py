"""docs/layers.md holds what scripts/layer_table.py writes today."""

import re

import pytest

from scripts.layer_table import LAYERS, PAGE, TABLES, evaluate, rewrite


SLOW = {"totals": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in TABLES])
def test_tables_are_up_to_date(name):
    page = PAGE.read_text()
    assert rewrite(page, {name: TABLES[name]}) == page, "run python -m scripts.layer_table"


def test_every_layer_has_a_row(built_in_layers):
    assert set(LAYERS) == set(built_in_layers)
    page = PAGE.read_text()
    assert all(re.search(rf"^\| `{name}`", page, flags=re.M) for name in built_in_layers)


def test_formulas_are_products_and_sums():
    assert evaluate("3 P + 2 d P H + H", {"P": 2, "d": 3, "H": 5}) == 6 + 60 + 5


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="marks of the table 'parameters'"):
        rewrite("a page without tables", TABLES)
