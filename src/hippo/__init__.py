"""HiPPO measures and what can be done with them: operators, eigenvectors, projections. numpy only, no torch.

    A = operator("fractional-tau", 64, alpha=0.5)      x' = -A x + B u
    d = diagonalize(A)                                 Lambda (Re < 0), V, B_tilde, and their accuracy
    x = project(u, t, "fractional-tau", 64, alpha=0.5) the state along a signal
"""

from __future__ import annotations

from ..registry import list_measures, register_measure
from . import classic, fractional
from .diagonal import Diagonal, conjugate_half, diagonalize
from .imaginary import imaginary_parts
from .low_rank import Dplr, dplr
from .measure import NormalForm, Operator, operator
from .timescale import calibrated_range, time_scale

__all__ = [
    "Diagonal",
    "Dplr",
    "NormalForm",
    "Operator",
    "calibrated_range",
    "conjugate_half",
    "diagonalize",
    "dplr",
    "imaginary_parts",
    "list_measures",
    "operator",
    "register_measure",
    "time_scale",
]
