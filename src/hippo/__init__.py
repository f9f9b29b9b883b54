"""HiPPO measures: their operators, eigenvectors and projections. numpy only, no torch.

A = operator("fractional-tau", 64, alpha=0.5)       x' = -A x + B u
d = diagonalize(A)                                  Lambda (Re < 0), V, B_tilde, and their accuracy
x = project(u, t, "fractional-tau", 64, alpha=0.5)  the state along a signal
"""

from __future__ import annotations

from ..registry import list_measures, register_measure
from . import classic, fractional  # noqa: F401 (imported for the measures that they register)
from .derivative import alpha_derivative
from .diagonal import Diagonal, conjugate_half, diagonalize
from .imaginary import imaginary_parts
from .low_rank import Dplr, dplr
from .measure import NormalForm, Operator, operator
from .projection import project, reconstruct, scale_invariant_step, true_projection
from .timescale import calibrated_range, time_scale

__all__ = [
    "Diagonal",
    "Dplr",
    "NormalForm",
    "Operator",
    "alpha_derivative",
    "calibrated_range",
    "conjugate_half",
    "diagonalize",
    "dplr",
    "imaginary_parts",
    "list_measures",
    "operator",
    "project",
    "reconstruct",
    "register_measure",
    "scale_invariant_step",
    "time_scale",
    "true_projection",
]
