"""Heads that predict real numbers: a point, a Gaussian, or quantiles that do not cross."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError, unknown
from .dense import dense

OUTPUTS = ("point", "gaussian", "quantiles")
# Smallest variance of a Gaussian output. Without a bound, a constant target would send the likelihood to infinity.
VARIANCE_FLOOR = 1e-6
_MOST_LEVELS = 999


class RegressionHead(nn.Module):
    """Predictions of d_target values from features (..., H), computed from r = W x + b.

    point: (..., d_target), r itself.
    gaussian: (..., d_target, 2), mean r_0 and variance softplus(r_1) + 1e-6 (standard deviation >= 0.001, so targets
        with smaller errors must be scaled up).
    quantiles: (..., d_target, n_quantiles) in the order of the levels. The level nearest to 0.5 is r_c. Each level
        above it adds softplus(r_k) to the level before, each below it subtracts from the level after, so that the
        quantiles never cross.

    Computed in the dtype of the weights, also under autocast: bfloat16 would round predictions to three digits.

    Args:
        d_model: H.
        d_target: values to predict.
        output: "point", "gaussian" or "quantiles".
        quantiles: rising levels in (0, 1), for output="quantiles".
        framework: framework whose default initialisation is used.
    Raises:
        UsageError: an unknown output, quantiles missing or out of range, or quantiles given for another output.
    """

    # As in the encoder.
    decay_norm_and_bias = True

    def __init__(self, d_model: int, d_target: int, output: str, quantiles: Sequence[float] | None, framework: str):
        super().__init__()
        if output not in OUTPUTS:
            raise unknown("output", output, OUTPUTS)
        self.d_target, self.output = d_target, output
        self.quantiles = _levels(output, quantiles)
        self.numbers = {"point": 1, "gaussian": 2, "quantiles": len(self.quantiles)}[output]
        self._centre = min(range(len(self.quantiles)), key=lambda k: abs(self.quantiles[k] - 0.5), default=0)
        self.linear = dense(d_model, d_target * self.numbers, framework)

    def forward(self, x: Tensor) -> Tensor:
        raw = self._linear(x)
        if self.output == "point":
            return raw
        raw = raw.unflatten(-1, (self.d_target, self.numbers))
        if self.output == "gaussian":
            mean, spread = raw.unbind(-1)
            return torch.stack([mean, F.softplus(spread) + VARIANCE_FLOOR], dim=-1)
        c = self._centre
        centre, steps = raw[..., c : c + 1], F.softplus(raw)
        above = centre + steps[..., c + 1 :].cumsum(-1)
        below = centre - steps[..., :c].flip(-1).cumsum(-1).flip(-1)
        return torch.cat([below, centre, above], dim=-1)

    def _linear(self, x: Tensor) -> Tensor:
        # Checked first: exporters cannot handle the autocast context, even where it has no effect.
        if not torch.is_autocast_enabled(x.device.type):
            return self.linear(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.linear(x.to(self.linear.weight.dtype))


def _levels(output: str, quantiles: Sequence[float] | None) -> tuple[float, ...]:
    """Check and return the levels; () for outputs other than "quantiles"."""
    remedy = "Give rising levels between 0 and 1: quantiles=[0.1, 0.5, 0.9]."
    if output != "quantiles":
        if quantiles is not None:
            raise UsageError(
                f"quantiles={quantiles!r} needs output='quantiles', but the output is '{output}'. Set it, or leave the "
                f"levels out."
            )
        return ()
    if quantiles is None:
        raise UsageError(f"output='quantiles' needs levels, but quantiles is not set. {remedy}")
    if not isinstance(quantiles, (list, tuple)) or not 1 <= len(quantiles) <= _MOST_LEVELS:
        raise UsageError(f"quantiles takes a list of 1 to {_MOST_LEVELS} levels, got {quantiles!r}. {remedy}")
    for level in quantiles:
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
            raise UsageError(f"A level of quantiles lies between 0 and 1, got {level!r}. {remedy}")
    if any(later <= earlier for earlier, later in pairwise(quantiles)):
        raise UsageError(f"The levels of quantiles rise, each given once, got {list(quantiles)!r}. {remedy}")
    return tuple(float(level) for level in quantiles)
