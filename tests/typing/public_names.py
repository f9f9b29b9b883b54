"""What a user's type checker sees of the public names; `make lint` checks it, no test runs it."""

from __future__ import annotations

from typing import assert_type

import numpy as np
import torch

from fractal_ssm import S5, Fractal, SequenceLayer, SequenceModel, UsageError, hippo, list_layers, load_model, scan


def layers() -> list[SequenceLayer]:
    fractal = Fractal(16, d_state=32, measure="fractional-normal", bidirectional=True)
    assert_type(fractal, Fractal)
    assert_type(list_layers(), list[str])
    return [fractal, S5(16, d_state=32)]


def models(path: str) -> SequenceModel:
    try:
        return load_model(path, imports=["my_package.layers"])
    except UsageError:
        return SequenceModel({"name": "s5"}, n_classes=2, d_input=1)


def measures() -> np.ndarray:
    built = hippo.operator("legs", 8)
    assert_type(built, hippo.Operator)
    assert_type(hippo.diagonalize(built), hippo.Diagonal)
    return built.A


def functions() -> None:
    scan(torch.ones(2), torch.ones(1, 3, 2), reverse=True)
    Fractal("16")  # type: ignore[arg-type]
    Fractal(16, d_stat=32)  # type: ignore[call-arg]
