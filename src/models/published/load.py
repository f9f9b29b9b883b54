"""`load_published`: recognise the code that weights come from, and set the parameters of a layer or model from them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import nn

from ...errors import UsageError, unknown
from ..backbone import SequenceModel
from ..options import check_flags
from .arrays import Part, as_real, flatten, listed, shaped
from .layers import Origins, load_layer
from .names import Names, example_names, layers_only, s4_names, s5_names

# Code -> last part of the name of an array that identifies it.
SOURCES = {"s4d-minimal": "log_A_real", "s5-pytorch": "Lambda", "s5": "Lambda_re", "s4": "A_real"}
# Parts of our model that `without` may name.
_PARTS = ("encoder", "head", "final_norm", "mixer", "norm")
# BatchNorm's batch counter, which the weights may lack.
_COUNTER = "num_batches_tracked"


def load_published(
    module: nn.Module,
    arrays: Mapping[str, Any],
    source: str | None = None,
    without: Sequence[str] = (),
    verbose: bool | None = None,
) -> nn.Module:
    """Set the parameters of a layer or a whole model from arrays named and shaped as in a published code.

    Arrays of one layer. Complex arrays have a complex dtype or a last axis (re, im). With P modes stored, c channels,
    d = 2 for a bidirectional layer, else 1:

        S4D  inv_dt (H, 1), A_real and A_imag (n_ssm, P), B (1, n_ssm, P, 2), C (d c, H, P, 2) with all forward channels
             before the backward ones; D (c, H) optional. From the minimal S4D: log_dt, log_A_real, A_imag, C, D
        S4   as S4D, and P (rank, n_ssm, P, 2); l_kernel optional: if above 0, C is folded at that length
        S5   Lambda_re, Lambda_im (P,), log_step (P, 1), B (P, H, 2), D (H,); C (H, P, 2), or C1 forward and C2
             backward (H, P, 2), or C (H, 2 P, 2) with the two side by side. From s5-pytorch: Lambda complex, and C,
             which is halved for conj_sym, as that code does not double its output

    Axes of size 1 and the prefixes `kernel.`, `layer.` and `seq.` may be absent. Conventions: Lambda = -exp(A_real) -
    i A_imag; dt = exp(inv_dt) or softplus(inv_dt), by the layer's dt_transform. The records of a reference file (u, y,
    loss, kernel, grad_*) are ignored; its `opts`, a mapping or its printed form, are compared with the layer's options.

    Arrays of a whole `SequenceModel`, built with the options of the published model (docs/layers.md lists them):

        S5   the flax tree, nested or flat with "/": params and, with batch norm, batch_stats
        S4   the state dict of the backbone (layers.0.layer.layer.kernel.C, ...), or of the whole model with `encoder.`
             and `decoder.`; a "layer" norm in the transposed form has one scale and one shift: norm="layer-scalar"
        example  the S4 code's example model: encoder, s4_layers, norms, decoder, with minimal or full layers

    Args:
        module: an S4, S4D or S5, or a SequenceModel of them.
        arrays: name -> array, tensor or nested list of finite numbers; a nested mapping; or a checkpoint with a
            `state_dict`. Of an `.npz` with several cases, pass the arrays of one case.
        source: "s5", "s5-pytorch", "s4" or "s4d-minimal"; None recognises it by the names.
        without: parts of our model that are not loaded and keep their values: "encoder", "head", "final_norm",
            "mixer", "norm"; or published parts without a counterpart here.
        verbose: print the source of every parameter; None prints it for a whole model.
    Returns:
        The same module.
    Raises:
        UsageError: another kind of module; a name that is missing, unknown or left over on either side; an array that
            is not numeric, or not finite in the layer's precision; a shape, length or option that does not match. The
            module is then unchanged.
    """
    check_flags("load_published", verbose=bool(verbose) if verbose is None else verbose)
    twin, origins = _loaded(module, arrays, source, without)
    module.load_state_dict(twin.state_dict())
    if verbose or (verbose is None and isinstance(module, SequenceModel)):
        print("\n".join(_lines(origins)))
    return module


def published_mapping(
    module: nn.Module, arrays: Mapping[str, Any], source: str | None = None, without: Sequence[str] = ()
) -> dict[str, str]:
    """Our parameter name -> the published name that `load_published` would read; does not change the module."""
    return {name: part.source for name, part in _loaded(module, arrays, source, without)[1].items()}


def _lines(origins: Origins) -> list[str]:
    width = max(map(len, origins))
    return [
        f"{name:{width}}  <-  {part.source}  {tuple(part.value.shape)}{f', {part.note}' if part.note else ''}"
        for name, part in origins.items()
    ]


def _loaded(module: Any, arrays: Any, source: str | None, without: Sequence[str]) -> tuple[nn.Module, Origins]:
    """Load the weights into a copy of the module, so that an error leaves the module unchanged."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"load_published takes a layer or a SequenceModel, got {type(module).__name__}.")
    names = isinstance(without, (Sequence, Set)) and not isinstance(without, str)
    if not names or not all(isinstance(part, str) for part in without):
        raise UsageError(f"without is a list of parts, without=['encoder', 'head'], got {without!r}.")
    whole = isinstance(module, SequenceModel)
    if not whole and without:
        raise UsageError("without names parts of a whole model; a single layer has none. Leave it out.")
    # The options record of a layer is a mapping too, but not a branch of the tree, so it is not flattened.
    opts = arrays.get("opts") if isinstance(arrays, Mapping) and not whole else None
    flat = flatten({key: value for key, value in arrays.items() if key != "opts"} if opts is not None else arrays)
    code = _code(flat, source)
    twin = copy.deepcopy(module)
    if not whole:
        return twin, load_layer(twin, flat if opts is None else {**flat, "opts": opts})
    if code is None:
        raise UsageError(
            f"These are the weights of no published code that is known: {listed(flat)}. Known: {', '.join(SOURCES)}. A "
            f"model saved here is loaded by SequenceModel.from_pretrained or load_model."
        )
    return twin, _load_model(twin, flat, code, without)


def _code(flat: Mapping[str, Any], source: str | None) -> str | None:
    """The code that the arrays come from; None if it is not recognised."""
    if source is not None and not (isinstance(source, str) and source in SOURCES):
        raise unknown("source", source, SOURCES, "None tells it from the names.")
    last = {re.split(r"[./]", name)[-1] for name in flat}
    found = next((code for code, name in SOURCES.items() if name in last), None)
    if source is not None and found not in (None, source):
        raise UsageError(
            f"The arrays are named as in {found!r} ({SOURCES[found]}), not as in {source!r} ({SOURCES[source]}). Leave "
            f"out source, or pass the weights of that code."
        )
    return found


def _load_model(model: SequenceModel, flat: dict[str, Any], code: str, without: Sequence[str]) -> Origins:
    if code == "s5":
        # A tree saved without its root (state.params) gets the missing prefix.
        flat = {name if re.match("(params|batch_stats)/", name) else f"params/{name}": v for name, v in flat.items()}
    names = _names(model, flat, code)
    _check_blocks(model, names, flat)
    state = model.state_dict()
    entries, flat = _kept(state, names, flat, without)
    sources = {theirs for theirs, _ in entries.values()}
    of_layers = {name for name in flat if name.startswith(tuple(names.layers))} - sources
    _refuse_leftovers(
        flat.keys() - sources - of_layers,
        {theirs for theirs in sources - flat.keys() if not theirs.endswith(_COUNTER)},
        {name for name in _wanted(state, without) - entries.keys() if ".layer." not in name},
    )
    origins: Origins = {}
    for name, (theirs, how) in entries.items():
        if theirs in flat:
            value = as_real(theirs, flat[theirs])
            part = Part(value.t() if how and value.dim() == 2 else value, theirs, how)
            with torch.no_grad():
                state[name].copy_(shaped(model, part, name, state[name]))
            origins[name] = part
    for index, prefix in enumerate(names.layers):
        arrays = {name.removeprefix(prefix): flat[name] for name in sorted(of_layers) if name.startswith(prefix)}
        found = load_layer(model.blocks[index].layer, arrays, prefix)
        origins |= {f"blocks.{index}.layer.{name}": part for name, part in found.items()}
    return origins


def _names(model: SequenceModel, flat: Mapping[str, Any], code: str) -> Names:
    if any(name.startswith("s4_layers.") for name in flat):
        return example_names(model)
    if code == "s5":
        return s5_names(model)
    return layers_only(flat) if code == "s5-pytorch" else s4_names(model, flat)


def _left_out(name: str, without: Sequence[str]) -> bool:
    return any(part in _PARTS and part in name.split(".") for part in without)


def _wanted(state: Mapping[str, Any], without: Sequence[str]) -> set[str]:
    """Our names that the weights must set."""
    return {name for name in state if not _left_out(name, without) and not name.endswith(_COUNTER)}


def _kept(
    state: Mapping[str, Any], names: Names, flat: Mapping[str, Any], without: Sequence[str]
) -> tuple[dict[str, tuple[str, str]], dict[str, Any]]:
    """Remove the parts named in `without`: the remaining entries for names of the model, and the remaining arrays."""
    dropped = {theirs for ours, (theirs, _) in names.entries.items() if _left_out(ours, without)}
    foreign = set(without) - set(_PARTS)
    entries = {ours: entry for ours, entry in names.entries.items() if ours in state and entry[0] not in dropped}
    arrays = {
        name: value
        for name, value in flat.items()
        if name not in dropped and not foreign & set(re.split(r"[./]", name))
    }
    return entries, arrays


def _check_blocks(model: SequenceModel, names: Names, flat: Mapping[str, Any]) -> None:
    """Refuse a model of another depth, with a clearer message than a list of missing names."""
    numbers = {int(n) for name in flat for n in re.findall(r"(?:^|[./])(?:s4_)?layers[._](\d+)[./]", name)}
    depth = max(numbers) + 1 if numbers else len(names.layers)
    if depth != len(model.blocks):
        raise UsageError(
            f"The weights are of {depth} layers, the model has n_layers={len(model.blocks)}. Build it with "
            f"n_layers={depth}."
        )


def _refuse_leftovers(unknown_there: set[str], missing_there: set[str], missing_here: set[str]) -> None:
    told = [
        (unknown_there, "the weights hold arrays that have no place in this model"),
        (missing_there, "the model has parts that the weights do not hold"),
        (missing_here, "the model has parameters that the published model does not have"),
    ]
    said = [f"{what} ({len(names)}): {listed(names)}" for names, what in told if names]
    if said:
        raise UsageError(
            f"Something is left over: {'; '.join(said)}. Build the model with the options of the published one (norm, "
            f"prenorm, final_norm, mixer, encoder_bias, bidirectional); weights of a backbone alone take "
            f"without=['encoder', 'head']."
        )
