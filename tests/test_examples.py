"""Every script of examples/ runs, and gives what it is meant to show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from fractal_ssm import registry

EXAMPLES = Path(__file__).parent.parent / "examples"

# What `main` of each example returns, and whether it is what the example promises.
PROMISES = {
    "layer": lambda accuracy: accuracy > 0.95,
    "streaming": lambda difference: difference < 1e-5,
    "streaming_irregular": lambda difference: difference < 1e-5,
    "irregular_sampling": lambda errors: errors[0] < 0.02 < errors[1],
    "own_measure": lambda slowest: slowest == pytest.approx([1.0, 2.0, 5.0]),
    "own_dataset": lambda accuracy: accuracy > 0.9,
    "forecast": lambda error: error < 0.2,
}


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    """What an example registers is gone after it."""
    for parts in (registry.layers, registry.measures, registry.datasets):
        parts.names()
        monkeypatch.setattr(parts, "_parts", dict(parts._parts))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_promise():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_keeps_its_promise(name, capsys):
    assert PROMISES[name](load(name).main())
    assert capsys.readouterr().out
