"""A trainable alpha for every mode of `fractional-normal`: a damping (1 - alpha) / 2 that stays between two bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from .init import Measure

# Bounds of alpha: -Re Lambda lies between 0.005 and 1/2, the damping that S5 starts with.
LOW, HIGH = 0.0, 0.99
# A start at a bound would have no gradient, so it is moved inside by this share of the interval.
_MARGIN = 0.01


class ModeDamping:
    """alpha and the real part of every mode as functions of one trainable number a mode.

        alpha_p = 0.99 sigmoid(alpha_logit_p),    Re Lambda_p = -(1 - alpha_p) / 2

    The frequencies (`Lambda_im`) and B start from the block's alpha and are trained freely: with one alpha a mode there
    is no operator whose eigenvectors could follow. The damping of every mode stays between 1/200 and 1/2.

    Raises:
        UsageError: a measure other than `fractional-normal` with its own frequencies.
    """

    def __init__(self, measures: Sequence[Measure]):
        for measure in measures:
            if measure.name == "fractional-normal" and measure.imag == "own":
                continue
            raise UsageError(
                f"learn_alpha='mode' trains the damping (1 - alpha) / 2 of measure=fractional-normal with imag=own; "
                f"got measure {measure.name} with imag {measure.imag}. Use learn_alpha=true for one alpha a block."
            )

    def logit(self, Lambda: np.ndarray) -> Tensor:
        """(P,) float64, the parameter that gives the real parts of these modes.

        An alpha within 0.0099 of a bound starts at that distance from it.

        Raises:
            UsageError: a real part that no alpha in the interval has.
        """
        alpha = 1.0 + 2.0 * Lambda.real
        # The tolerance allows for rounding.
        outside = alpha[(alpha < LOW - 1e-9) | (alpha > HIGH + 1e-9)]
        if len(outside):
            raise UsageError(
                f"learn_alpha='mode' keeps alpha in [{LOW:g}, {HIGH:g}], so a damping from {0.5 * (1 - HIGH):g} to "
                f"{0.5 * (1 - LOW):g}; got a start at alpha = {outside[0]:.4g}. Start inside, or use learn_alpha=false."
            )
        margin = _MARGIN * (HIGH - LOW)
        alpha = np.clip(alpha, LOW + margin, HIGH - margin)
        return torch.from_numpy(np.log((alpha - LOW) / (HIGH - alpha)))

    def alpha(self, logit: Tensor) -> Tensor:
        """(P,) alphas for the values of the parameter."""
        return LOW + (HIGH - LOW) * torch.sigmoid(logit)

    def real_parts(self, logit: Tensor) -> Tensor:
        """(P,) Re Lambda for the values of the parameter."""
        return -0.5 * (1.0 - self.alpha(logit))
