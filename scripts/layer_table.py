"""Write the generated tables of docs/layers.md: parameter formulas, abilities of each layer, totals of the models.

    python -m scripts.layer_table           # rewrite the tables in place

No figure is entered by hand: formulas are compared with the parameters of built layers, abilities are tried out, and
the totals are counted on the models of the experiments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fractal_ssm.config import compose
from fractal_ssm.errors import UsageError
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.models.base import SequenceLayer
from fractal_ssm.registry import datasets, layers

from .tables import markdown, replaced

PAGE = Path(__file__).parent.parent / "docs" / "layers.md"
TASKS = ("listops", "imdb", "aan", "cifar", "pathfinder", "pathx")
# Sizes at which formulas are compared and printed.
H = 128
# Sizes in the published codes of vocabularies that are otherwise counted from the user's files.
VOCABULARY = {"imdb": 135, "aan": 98}


@dataclass
class Layer:
    """A row: the node to build, and its parameter count as a formula of H, d (directions) and `symbols`."""

    node: dict[str, Any]
    formula: str
    symbols: dict[str, int] = field(default_factory=dict)


LAYERS = {
    "fractal": Layer({"d_state": 64}, "3 P + 2 P H + 2 d P H + H", {"P": 32}),
    "fractal-conv": Layer({"d_state": 64, "n_alphas": 4}, "2 H + 4 K P + 2 d H P", {"P": 32, "K": 4}),
    "s5": Layer({"d_state": 64, "blocks": 4}, "3 P + 2 P H + 2 d P H + H", {"P": 32}),
    "lru": Layer({"d_state": 32}, "3 P + 2 P H + 2 d P H + H", {"P": 32}),
    "s4": Layer({"d_state": 64, "n_ssm": 2}, "(1 + c) H + 3 n N + d c H N", {"N": 64, "n": 2, "c": 1}),
    "s4d": Layer({"d_state": 64, "n_ssm": 2}, "(1 + c) H + 2 n N + d c H N", {"N": 64, "n": 2, "c": 1}),
    "dss": Layer({"d_state": 32}, "2 H + 2 P + 2 d H P", {"P": 32}),
    "transformer": Layer({"n_heads": 8, "d_qkv": 64}, "4 H Q + 3 Q + H", {"Q": 64}),
}


def evaluate(formula: str, symbols: dict[str, int]) -> int:
    """The value of a formula such as "2 d P H + H" (a space between factors is a product)."""
    python = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formula)
    return eval(python, {"__builtins__": {}}, dict(symbols))


def n_parameters(module: nn.Module) -> int:
    """Number of trainable parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def build(name: str, bidirectional: bool) -> SequenceLayer:
    """The layer of a row, with H features."""
    return layers.build({"name": name, **LAYERS[name].node, "bidirectional": bidirectional}, d_model=H, l_max=64)


def parameter_rows() -> list[list[str]]:
    """Formula and counts of each layer, one and both directions; AssertionError if a formula is wrong."""
    rows = []
    for name, row in LAYERS.items():
        counts = []
        for directions in (1, 2):
            count = n_parameters(build(name, bidirectional=directions == 2))
            if (said := evaluate(row.formula, {**row.symbols, "H": H, "d": directions})) != count:
                raise AssertionError(f"{name}, d = {directions}: the formula gives {said}, the layer has {count}")
            counts.append(f"{count:,}")
        sizes = ", ".join(f"{key} = {value}" for key, value in row.symbols.items())
        rows.append([f"`{name}`", row.formula, sizes, *counts])
    return rows


def can(call: Callable[[], object]) -> str:
    """ "yes" if the call works, "no" if the layer refuses it."""
    try:
        call()
    except UsageError:
        return "no"
    return "yes"


def ability_rows() -> list[list[str]]:
    """What each layer accepts, found by trying it out."""
    u = torch.randn(2, 5, H)
    rows = []
    for name in LAYERS:
        causal = build(name, bidirectional=False)
        rows.append(
            [
                f"`{name}`",
                can(lambda layer=causal: layer.step(u[:, 0], layer.initial_state(2))),
                can(lambda name=name: build(name, bidirectional=True)(u)),
                can(lambda layer=causal: layer(u, dt_scale=2.0)),
                can(lambda layer=causal: layer(u, dt_scale=torch.tensor([1.0, 2.0]))),
                can(lambda layer=causal: layer(u, dt_scale=torch.rand(2, 5) + 0.5)),
            ]
        )
    return rows


def experiment_model(name: str) -> SequenceModel:
    """The full-sized model of an experiment, `lra/<layer>-<task>`."""
    config = compose([f"experiment=lra/{name}"])
    data = datasets.build(config.dataset, data_dir=Path(config.data_dir))
    n_tokens = VOCABULARY.get(name.rsplit("-", 1)[1], data.n_tokens)
    return SequenceModel(
        **config.model,
        n_classes=data.n_classes,
        n_tokens=n_tokens,
        d_input=None if n_tokens else data.d_input,
        l_max=data.l_max,
        task=data.task,
    )


def total_rows() -> list[list[str]]:
    """Parameters of the models that the experiments build."""
    files = (PAGE.parent.parent / "configs/experiment/lra").glob("*-listops.yaml")
    names = sorted(path.stem.removesuffix("-listops") for path in files)
    totals = {name: [n_parameters(experiment_model(f"{name}-{task}")) for task in TASKS] for name in names}
    return [[f"`{name}`", *(f"{total:,}" for total in row)] for name, row in totals.items()]


TABLES: dict[str, Callable[[], str]] = {
    "parameters": lambda: markdown(
        ["layer", "parameters", "at H = 128", "one direction", "both directions"], parameter_rows()
    ),
    "abilities": lambda: markdown(
        ["layer", "stream (`step`)", "bidirectional", "`dt_scale`", "one a sample", "one a position"], ability_rows()
    ),
    "totals": lambda: markdown(["experiment", *TASKS], total_rows()),
}


def rewrite(page: str, tables: dict[str, Callable[[], str]] = TABLES) -> str:
    """The page with the text between `<!-- table: NAME -->` and `<!-- end -->` replaced."""
    for name, render in tables.items():
        page = replaced(page, name, render())
    return page


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text()))
    print(f"wrote {PAGE}")
