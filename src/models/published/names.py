"""Maps from the parameter names of a `SequenceModel` to those of the published models, from the model's structure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from ...errors import UsageError
from ..backbone import SequenceModel
from ..blocks import mixer as mixers
from ..blocks.decoder import ClassificationHead, RetrievalHead
from ..blocks.norm import BatchNorm, LayerNorm, ScalarLayerNorm


class Names(NamedTuple):
    """Our name -> (published name, "transposed" or ""), and the published prefix of each block's layer."""

    entries: dict[str, tuple[str, str]]
    layers: list[str]


def s5_names(model: SequenceModel) -> Names:
    """Names of the S5 in JAX: a flax tree, names joined by "/"; dense kernels are (in, out)."""
    entries: dict[str, tuple[str, str]] = {}

    def dense(ours: str, theirs: str) -> None:
        entries[f"{ours}.weight"] = (f"params/{theirs}/kernel", "transposed")
        entries[f"{ours}.bias"] = (f"params/{theirs}/bias", "")

    _check_epsilon(model, 1e-6, "S5", "framework='flax'")
    if model.encoder.n_tokens is None:
        dense("encoder.linear", "encoder/encoder")
    else:
        # One-hot input times the kernel is an embedding.
        entries["encoder.embedding.weight"] = ("params/encoder/encoder/kernel", "")
        entries["encoder.bias"] = ("params/encoder/encoder/bias", "")
    dense_parts = {mixers.FullGLU: ("value", "gate"), mixers.HalfGLU1: ("gate",), mixers.HalfGLU2: ("gate",)}
    dense_parts[mixers.GELU] = ()
    for index, block in enumerate(model.blocks):
        ours, theirs = f"blocks.{index}", f"encoder/layers_{index}"
        if type(block.mixer) not in dense_parts:
            raise _other_mixer(block, "S5", "full_glu, half_glu1, half_glu2 or gelu")
        for part in dense_parts[type(block.mixer)]:
            dense(f"{ours}.mixer.{part}", f"{theirs}/{'out1' if part == 'value' else 'out2'}")
        batch = isinstance(block.norm, BatchNorm)
        norm = f"{ours}.norm.statistics" if batch else f"{ours}.norm"
        entries[f"{norm}.weight"] = (f"params/{theirs}/norm/scale", "")
        entries[f"{norm}.bias"] = (f"params/{theirs}/norm/bias", "")
        if batch:
            entries[f"{norm}.running_mean"] = (f"batch_stats/{theirs}/norm/mean", "")
            entries[f"{norm}.running_var"] = (f"batch_stats/{theirs}/norm/var", "")
    if isinstance(model.head, RetrievalHead):
        dense("head.inner", "decoder/layer1")
        dense("head.outer", "decoder/layer2")
    elif isinstance(model.head, ClassificationHead):
        dense("head.linear", "decoder")
    return Names(entries, [f"params/encoder/layers_{index}/seq/" for index in range(len(model.blocks))])


def s4_names(model: SequenceModel, given: Iterable[str]) -> Names:
    """Names of the S4 code's backbone, `layers.0.layer.layer.kernel.C`, and of its encoder and decoder."""
    given = list(given)
    before = next((name.split("layers.")[0] for name in given if re.search(r"(^|\.)layers\.\d+\.", name)), "")
    entries: dict[str, tuple[str, str]] = {}
    for index, block in enumerate(model.blocks):
        ours, theirs = f"blocks.{index}", f"{before}layers.{index}"
        if not isinstance(block.mixer, mixers.GLU):
            raise _other_mixer(block, "S4", "glu")
        _pair(entries, f"{ours}.mixer.linear", f"{theirs}.layer.output_linear.0")
        _norm(entries, block.norm, f"{ours}.norm", f"{theirs}.norm.norm")
    if model.final_norm is not None:
        _norm(entries, model.final_norm, "final_norm", f"{before}norm.norm")
    # The encoder is a sequence of modules; one of them has parameters.
    places = {match[1] for name in given if (match := re.fullmatch(r"(encoder\.\d+)\.(?:weight|bias)", name))}
    place = min(places, default="encoder.0")
    if model.encoder.n_tokens is None:
        _pair(entries, "encoder.linear", place)
    else:
        entries["encoder.embedding.weight"] = (f"{place}.weight", "")
    _pair(entries, "head.linear", "decoder.0.output_transform")
    return Names(entries, [f"{before}layers.{index}.layer." for index in range(len(model.blocks))])


def example_names(model: SequenceModel) -> Names:
    """Names of the S4 code's example model: encoder, s4_layers, norms, decoder."""
    _check_epsilon(model, 1e-5, "S4", "framework='torch'")
    entries: dict[str, tuple[str, str]] = {}
    _pair(entries, "encoder.linear", "encoder")
    for index, block in enumerate(model.blocks):
        if not isinstance(block.mixer, mixers.GLU):
            raise _other_mixer(block, "S4", "glu")
        _pair(entries, f"blocks.{index}.mixer.linear", f"s4_layers.{index}.output_linear.0")
        _norm(entries, block.norm, f"blocks.{index}.norm", f"norms.{index}")
    _pair(entries, "head.linear", "decoder")
    return Names(entries, [f"s4_layers.{index}." for index in range(len(model.blocks))])


def layers_only(given: Iterable[str]) -> Names:
    """Names of a model of S5 layers in PyTorch: only its layers, in the order of their names."""
    found = {match[1] for name in given if (match := re.fullmatch(r"(.*seq\.)Lambda", name))}
    numbered = sorted(found, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")])
    return Names({}, numbered)


def _pair(entries: dict[str, tuple[str, str]], ours: str, theirs: str) -> None:
    for name in ("weight", "bias"):
        entries[f"{ours}.{name}"] = (f"{theirs}.{name}", "")


def _norm(entries: dict[str, tuple[str, str]], norm: nn.Module, ours: str, theirs: str) -> None:
    if isinstance(norm, ScalarLayerNorm):
        entries[f"{ours}.weight"], entries[f"{ours}.bias"] = (f"{theirs}.s", ""), (f"{theirs}.m", "")
        return
    if isinstance(norm, BatchNorm):
        ours = f"{ours}.statistics"
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            entries[f"{ours}.{name}"] = (f"{theirs}.{name}", "")
    _pair(entries, ours, theirs)


def _check_epsilon(model: SequenceModel, epsilon: float, code: str, remedy: str) -> None:
    for module in model.modules():
        if isinstance(module, LayerNorm) and module.eps != epsilon:
            raise UsageError(
                f"The layer norms of {code} have an epsilon of {epsilon:g}, those of this model {module.eps:g}. Build "
                f"it with {remedy}."
            )


def _other_mixer(block: nn.Module, code: str, allowed: str) -> UsageError:
    return UsageError(
        f"The model's mixer, {type(block.mixer).__name__}, is none of {code}. Build it with mixer={allowed}, as the "
        f"published model had it."
    )
