"""docs/layers.md holds what scripts/layer_table.py writes today."""

import re

import pytest
import torch

from fractal_ssm.registry import layers
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


# Dynamo makes an instance of every autograd function that it traces, and torch warns of that.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_compiles_in_one_graph(built_in_layers):
    """The list of the page, and no other layer."""
    (named,) = re.findall(r"torch.compile takes in one graph: (.*?)\.", PAGE.read_text(), flags=re.S)
    compiled = []
    for name in built_in_layers:
        options = {"n_heads": 2} if name == "transformer" else {"d_state": 64}
        layer = layers.build({"name": name, **options}, d_model=4, l_max=32)
        torch._dynamo.reset()
        try:
            y, _ = torch.compile(layer, fullgraph=True, backend="aot_eager")(torch.randn(2, 32, 4))
            y.square().sum().backward()
        except torch._dynamo.exc.Unsupported:
            continue
        compiled.append(name)
    assert sorted(re.findall(r"`([\w-]+)`", named)) == compiled


@pytest.mark.parametrize("name", ["fractal", "s5", "lru", "s4", "s4d", "dss", "fractal-conv"])
def test_what_a_nan_spoils(name):
    """As the page says: positions from it on, or with a convolution its whole feature; never another sample."""
    layer = layers.build({"name": name, "d_state": 64}, d_model=4, l_max=32)
    u = torch.randn(2, 32, 4)
    u[0, 10, 1] = float("nan")
    spoilt = layer(u)[0].isnan()
    expected = torch.zeros_like(spoilt)
    if name in ("fractal", "s5", "lru"):
        expected[0, 10:] = True
    else:
        expected[0, :, 1] = True
    assert torch.equal(spoilt, expected)
