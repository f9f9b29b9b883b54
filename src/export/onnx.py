"""ONNX files of layers and models."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..errors import UsageError, did_you_mean, unknown
from ..files import atomic_write
from .programs import RealProgram, export_program, real_forward, real_step

FORMS = ("forward", "step")
_NEEDED = ("onnx", "onnxscript")


def export_onnx(
    module: nn.Module,
    path: str | Path,
    form: Literal["forward", "step"] = "forward",
    **options: Any,
) -> RealProgram:
    """Write a layer or a model as an ONNX file for every batch size and length from 1.

    Args:
        module: a layer or a `SequenceModel`, as for `real_forward` and `real_step`.
        path: path of the file.
        form: "forward" for sequences, "step" for one position and a state.
        options: options of `real_forward` (lengths, state, dt_scale) or `real_step` (dt_scale).
    Returns:
        The program that was written; its `input_names` and `output_names` are those of the file, and `initial_state`
        gives the state to start from.
    Raises:
        UsageError: a layer that cannot be exported, a package that is missing, or a path that cannot be written.
    """
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"ONNX files need {' and '.join(missing)}: pip install 'fractal-ssm[export]'.")
    path = Path(path)
    if not path.parent.is_dir():
        raise UsageError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}. Make it first.")
    make = {"forward": real_forward, "step": real_step}[form]
    check_known(form, options, [name for name in inspect.signature(make).parameters if name != "module"])
    program = make(module, **options)
    exported = export_program(program)
    with _quiet():
        written = torch.onnx.export(
            exported,
            dynamo=True,
            verbose=False,
            input_names=program.input_names,
            output_names=program.output_names,
        )
    try:
        with atomic_write(path) as file:
            file.write(written.model_proto.SerializeToString())
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}. Choose another path.") from error
    return program


def check_known(form: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an option that this form does not take."""
    for name in options:
        if name not in known:
            raise UsageError(
                f"The form '{form}' takes no option '{name}'; it takes {', '.join(known)}.{did_you_mean(name, known)}"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about packages that are not needed here and about its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
