"""Models by name: `create_model`, `list_models`. Their settings come from the packaged configs/model."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from .errors import UsageError, did_you_mean, unknown
from .models.backbone import SequenceModel
from .models.build import DATA_FACTS, build_model
from .registry import layers


def list_models(pattern: str = "*") -> list[str]:
    """Names that `create_model` takes and that match a shell pattern, sorted.

    A name is a model of configs/model ("fractal", "s5"), an experiment ("lra/s5-listops"), or any other registered
    layer, such as your own.

    >>> list_models("fractal*")
    ['fractal', 'fractal-conv', 'fractal-normal', 'fractal-tau']
    """
    if not isinstance(pattern, str):
        raise UsageError(f"list_models takes a pattern such as 'lra/s5-*', got {pattern!r}.")
    names = {*_configured("model"), *_configured("experiment"), *layers.names()}
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))


def create_model(name: str, *, layer: Mapping[str, Any] | None = None, **facts: Any) -> SequenceModel:
    """A freshly initialised model by its name, with your options overriding those of the named model.

    Args:
        name: one of `list_models()`. A model of configs/model is the published block of that layer at the default
            size of `SequenceModel`; an experiment is the model of that experiment, at its published size.
        layer: options of the sequence layer, such as d_state=32.
        **facts: facts of the data (n_classes; n_tokens or d_input; l_max, task) and options of `SequenceModel`
            (d_model, n_layers, dropout, ...). Names and values are checked.
    Returns:
        the model in training mode, on the default device. Seed torch first for reproducible weights.
    Raises:
        UsageError: an unknown name or option (with the nearest known one), or a value out of range.
    >>> model = create_model("fractal", n_classes=10, d_input=1, d_model=64, n_layers=2, layer={"d_state": 32})
    >>> sum(parameter.numel() for parameter in model.parameters())
    30186
    """
    node = model_node(name, layer)
    _check_names(name, facts)
    if facts.get("n_classes") is None and facts.get("task", "classification") in ("classification", "retrieval"):
        raise UsageError(
            f"create_model({name!r}) needs the number of classes, n_classes=10, and what the input is: n_tokens=256 "
            f"for token ids or d_input=1 for real channels."
        )
    known = {key: value for key, value in facts.items() if key in DATA_FACTS}
    return build_model({**node, **{key: value for key, value in facts.items() if key not in known}}, known)


def model_node(name: str, layer: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The `model` node of a name, overridden by options of the layer.

    Raises:
        UsageError: an unknown name, or options that are not a mapping or belong to another layer.
    """
    node = _node(name)
    if layer is not None:
        node["layer"] = _with_options(name, node["layer"], layer)
    return node


def _node(name: str) -> dict[str, Any]:
    # Imported here so that importing the package does not import Hydra.
    from .config import compose

    if not isinstance(name, str):
        raise UsageError(f"Unknown model '{name}': create_model takes a name as a string; list_models() lists them.")
    if name in _configured("model"):
        return compose([f"model={name}"]).model
    if name in _configured("experiment"):
        return compose([f"experiment={name}"]).model
    if name in layers.names():
        return {"layer": {"name": name}}
    raise unknown(
        "model", name, list_models(), "list_models() has them all; a layer of your own is found once it is registered."
    )


def _with_options(name: str, node: Mapping[str, Any], layer: Any) -> dict[str, Any]:
    if not isinstance(layer, Mapping):
        raise UsageError(f"layer is a mapping of options of the layer, layer={{'d_state': 32}}, got {layer!r}.")
    if layer.get("name", node["name"]) != node["name"]:
        raise UsageError(
            f"The model {name!r} is built from the layer '{node['name']}', and layer names '{layer['name']}'. Create "
            f"the model of that layer: create_model({layer['name']!r}, ...)."
        )
    return {**node, **layer}


def _check_names(name: str, facts: Mapping[str, Any]) -> None:
    allowed = [key for key in inspect.signature(SequenceModel).parameters if key != "layer"]
    for key in facts:
        if key not in allowed:
            near = did_you_mean(key, allowed)
            raise UsageError(
                f"create_model({name!r}) has no option '{key}'. Options: {', '.join(allowed)}.{near} Options of the "
                f"layer go into layer={{...}}; trained weights are loaded by SequenceModel.from_pretrained or "
                f"load_published."
            )


def _configured(group: str) -> list[str]:
    """Names of the packaged files of a group of configurations, 'lra/s5-listops'."""

    def walk(folder: Any, prefix: str) -> list[str]:
        found = []
        for entry in folder.iterdir():
            if entry.is_dir():
                found += walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                found.append(prefix + entry.name.removesuffix(".yaml"))
        return found

    return walk(files("fractal_ssm.configs") / group, "")
