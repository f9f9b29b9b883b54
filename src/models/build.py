"""Models from a configuration or a checkpoint: `build_model`, `load_model`, and `check_model` for early errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import check_entries, read_checkpoint
from ..errors import UsageError
from ..registry import check_options, import_plugins, layers
from .backbone import SequenceModel, check_depth
from .weights import check_sizes_named, check_weights

# Arguments of a model that come from the dataset, not from the configuration.
DATA_FACTS = ("n_classes", "n_tokens", "d_input", "l_max", "task", "d_target", "per_position", "causal")
# Facts that checkpoints of version 0.1 lack, with the values that applied then.
_LATER_FACTS = {"d_target": None, "per_position": False, "causal": False}
_PREFIX = "model."
# Required entries of a checkpoint.
_ENTRIES = {"run.config": Mapping, "run.config.model": Mapping, "run.data": Mapping, "state_dict": Mapping}


def data_facts(data: Any) -> dict[str, Any]:
    """The arguments of a model that the data determine, as plain values for a checkpoint."""
    return {name: getattr(data, name) for name in DATA_FACTS}


def build_model(node: Mapping[str, Any], facts: Mapping[str, Any]) -> SequenceModel:
    """Build the model of a `model` node for a dataset with these facts (`data_facts`).

    Raises:
        UsageError: an unknown layer or option, or an invalid value.
    """
    if not isinstance(node, Mapping) or "layer" not in node:
        raise UsageError(
            f"A model is built from a mapping with a 'layer', such as {{'layer': {{'name': 's5'}}}}, got {node!r}. "
            f"Known layers: {', '.join(layers.names())}."
        )
    check_options("model", SequenceModel, node, DATA_FACTS)
    layer = node["layer"]
    runtime = ["d_model", "l_max"]
    layers.check(layer, runtime)
    options = {key: value for key, value in layer.items() if key != "name"}
    check_options(f"The layer '{layer['name']}'", layers.get(layer["name"]), options, runtime)
    return SequenceModel(**node, **facts)


def check_model(node: Mapping[str, Any], facts: Mapping[str, Any], dt_scales: Sequence[float] = ()) -> SequenceModel:
    """Build and return a one-block model, so that a wrong name, option or value fails before data is made.

    Args:
        node: the `model` node of a configuration.
        facts: those of the dataset, as far as they are known.
        dt_scales: time steps at which the data will be scored; each is tried, because a layer without a step raises.
    """
    if not (facts["n_tokens"] or facts["d_input"]):
        facts = {**facts, "n_tokens": 2}
    # Check n_layers before building the one-block probe.
    check_options("model", SequenceModel, node, DATA_FACTS)
    check_depth(node.get("n_layers", 1))
    model = build_model({**node, "n_layers": min(1, node.get("n_layers", 1))}, facts).eval()
    for dt_scale in set(dt_scales) - {1.0}:
        _try_step(model, dt_scale, facts["d_input"])
    return model


def _try_step(model: SequenceModel, dt_scale: float, d_input: int | None) -> None:
    """Run the model on two sequences of two zeros (one pair, for retrieval) at this time step."""
    zeros = torch.zeros(2, 2, dtype=torch.int64) if d_input is None else torch.zeros(2, 2, d_input)
    with torch.no_grad():
        model(zeros, dt_scale=dt_scale)


def load_model(path: str | Path, imports: Sequence[str] = ()) -> SequenceModel:
    """Load the trained model of a checkpoint, in eval mode on the CPU.

    A checkpoint lists the modules that its run imported (for example with layers of your own). Importing a module runs
    its code, so a listed module is imported only if the caller names it too. Nothing else in the file is executed.

    Args:
        path: a checkpoint that `python -m train` wrote.
        imports: modules that this checkpoint may import, as in `imports=[...]` of its run.
    Raises:
        UsageError: a file that cannot be read or is not such a checkpoint; an import that the caller did not name;
            weights that are missing, unknown, of another shape, or not finite.
    >>> model = load_model("runs/lra/fractal-listops/.../checkpoints/best.ckpt")  # doctest: +SKIP
    """
    if not isinstance(imports, (list, tuple)) or not all(isinstance(name, str) for name in imports):
        raise UsageError(f"imports is a list of names of modules, imports=['my_package.layers'], got {imports!r}.")
    stored = read_checkpoint(path)
    check_entries(path, stored, _ENTRIES)
    config, facts = stored["run"]["config"], stored["run"]["data"]
    facts = {**_LATER_FACTS, **facts}
    if set(facts) != set(DATA_FACTS):
        raise UsageError(
            f"{str(path)!r} describes its data by {', '.join(sorted(map(str, facts))) or 'nothing'}, but must give "
            f"{', '.join(DATA_FACTS)}. Load it with the version of this program that wrote it."
        )
    _check_imports(path, config.get("imports") or [], imports)
    weights = {
        str(key).removeprefix(_PREFIX): value
        for key, value in stored["state_dict"].items()
        if str(key).startswith(_PREFIX)
    }
    check_sizes_named(path, config["model"], facts, weights)
    import_plugins(imports)
    model = build_model(config["model"], facts)
    check_weights(path, weights, model)
    model.load_state_dict(weights)
    return model.eval()


def _check_imports(path: str | Path, named: Any, allowed: Sequence[str]) -> None:
    """Refuse a checkpoint whose run imported modules that the caller did not name."""
    if not isinstance(named, (list, tuple)):
        raise UsageError(
            f"{str(path)!r} has imports that are not a list: {named!r}. Take a checkpoint that `python -m train` wrote."
        )
    missing = [name for name in map(str, named) if name not in allowed]
    if missing:
        raise UsageError(
            f"{str(path)!r} was trained with imports of {', '.join(missing)}. Loading it would import them, which "
            f"runs their code; allowed here: {', '.join(allowed) or 'no import'}. If you trust them: "
            f"load_model(path, imports={[*map(str, named)]!r})."
        )
