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
    "s4_registry": lambda accuracy: accuracy > 0.9,
    "lightning_module": lambda accuracy: accuracy > 0.9,
    "accelerate_loop": lambda accuracy: accuracy > 0.9,
    "hf_trainer": lambda accuracy: accuracy > 0.8,
    "darts_forecast": lambda error: error < 0.5,
}

# Libraries that an example is about, where they are not dependencies of the package.
NEEDS = {"accelerate_loop": "accelerate", "hf_trainer": "transformers", "darts_forecast": "darts"}


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


@pytest.mark.parametrize("name", [name for name in PROMISES if name not in NEEDS])
def test_an_example_keeps_its_promise(name, capsys):
    assert PROMISES[name](load(name).main())
    assert capsys.readouterr().out


# Their libraries warn of themselves; nothing of ours can change it.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_in_the_code_of_others(name, capsys):
    pytest.importorskip(NEEDS[name])
    assert PROMISES[name](load(name).main())
    assert capsys.readouterr().out
