"""Initial B: the scale of B_tilde = V^-1 B, which sets how strongly each mode is driven, and the rows of B.

The paper prints B_tilde for one input and says neither how the columns of V are scaled nor how B reads H inputs.

    B_scale     columns of V                                     weights of a block
    rms         unit diagonal where V is known in closed form    scaled to unit root-mean-square
                (`fractional`, `legs`), else unit 2-norm
    columns     unit 2-norm                                      scaled to unit root-mean-square
    diagonal    unit diagonal (closed forms only)                not scaled: 1 to 1.3e4 in a block of 8, alpha = 0
    none        unit 2-norm, as eigenvalue routines return them  not scaled: 8 to 6.5e4 in a block of 8, alpha = 0
    mode        any                                              each of modulus 1: all modes driven alike

    B_init      rows of B (P, H)
    analytic    B_tilde_p w_p, with w_p a random real row for each mode
    shared      B_tilde_p w_k, one random real row for each block: every mode of a block reads the same mixture
    random      complex Gaussian rows, independent of B_tilde: the paper's ablation
A third reading, a copy of the modes for each feature, is the layer `fractal-conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ..ssm_init import complex_normal, lecun_normal, unit_rms

# Within the range of float32, with room for products.
_LARGEST = 1e30


def _unit_modulus(weights: np.ndarray) -> np.ndarray:
    modulus = np.abs(weights)
    return np.where(modulus > 0, weights / np.where(modulus > 0, modulus, 1.0), 1.0)


def _same(weights: np.ndarray) -> np.ndarray:
    return weights


# name -> (columns of V, function applied to the weights of a block)
_SCALES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "rms": ("default", unit_rms),
    "columns": ("norm", unit_rms),
    "diagonal": ("diagonal", _same),
    "none": ("norm", _same),
    "mode": ("default", _unit_modulus),
}
B_SCALES = tuple(_SCALES)
B_INITS = ("analytic", "shared", "random")


def columns_of(B_scale: str) -> str:
    """How the columns of V are scaled: "default" (see the table), "norm" or "diagonal"."""
    return _SCALES[B_scale][0]


def scaled(weights: np.ndarray, B_scale: str, label: str) -> np.ndarray:
    """Scale the weights (p,) of one block by B_scale. A common factor matters only if `is_relative` is false.

    Raises:
        UsageError: weights that float32 cannot hold.
    """
    found = _SCALES[B_scale][1](weights)
    # `not <=` catches inf and nan as well.
    if not np.abs(found).max() <= _LARGEST:
        raise UsageError(
            f"B_scale='{B_scale}' leaves weights of {np.abs(found).max():.1e} in a block of {label}, beyond what "
            f"float32 trains with ({_LARGEST:g}). Use shorter blocks (a larger n_alphas), or B_scale='rms'."
        )
    return found


def is_relative(B_scale: str) -> bool:
    """Whether B_scale cancels a common factor of a block's weights."""
    return _SCALES[B_scale][1] is not _same


def input_matrix(B_init: str, weights: Sequence[np.ndarray], d_input: int, weighted: bool = True) -> Tensor:
    """(P, d_input) complex B of all blocks, before training.

    Args:
        B_init: see the table; rows have variance 1 / d_input.
        weights: B_tilde (p_k,) of each block.
        d_input: features that a mode reads.
        weighted: False omits the factor B_tilde, for a layer that multiplies by it at every use.
    """
    counts = [len(block) for block in weights]
    B_tilde = torch.from_numpy(np.concatenate(weights))
    if B_init == "random":
        return complex_normal((len(B_tilde), d_input), variance=1 / d_input)
    if B_init == "shared":
        rows = lecun_normal((len(counts), d_input), fan_in=d_input).repeat_interleave(torch.tensor(counts), dim=0)
    else:
        rows = lecun_normal((len(B_tilde), d_input), fan_in=d_input)
    return B_tilde[:, None] * rows if weighted else rows.to(B_tilde.dtype)
