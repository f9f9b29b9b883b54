"""Steps of the modes: one a mode, one a block, or one for the whole state.

    dt_per    log_dt
    mode      (P,), as in S5: drawn for every mode, so neighbours may differ by a factor of up to dt_max / dt_min
    block     (K,): the modes of a block keep the ratios of their eigenvalues
    scalar    (1,): one step for the layer
A step for each feature needs a state for each feature: use the layer `fractal-conv`, whose features do not share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import UsageError
from ..options import check_choice
from ..ssm_init import log_steps

DT_PER = ("mode", "block", "scalar")


def check_dt_per(dt_per: str, dt: str) -> None:
    """Check the dt_per option.

    Raises:
        UsageError: an unknown dt_per, or dt="calibrated", a factor for each block, with a single step.
    """
    if isinstance(dt_per, str) and dt_per == "feature":
        raise UsageError(
            "dt_per='feature' needs a state for each feature, and Fractal's is shared by all of them. Use the layer "
            "fractal-conv (model=fractal-conv), which has a step a feature, or dt_per='mode', 'block' or 'scalar'."
        )
    check_choice("dt_per", dt_per, DT_PER)
    if dt_per == "scalar" and dt == "calibrated":
        raise UsageError(
            "dt='calibrated' multiplies the step of each block by its own time scale, so dt_per='scalar', a single "
            "step, is not possible. Use dt_per='block', or dt='range'."
        )


def starting_steps(
    dt_per: str, counts: Sequence[int], dt_min: float, dt_max: float, scales: Sequence[float] | None
) -> Tensor:
    """Initial log_dt, float64: log-uniform draws, one for each mode, block or layer, plus log(scale) of the block.

    Args:
        counts: modes of each block.
        scales: time scale of each block, for dt="calibrated"; None adds nothing.
    """
    of_block = {"mode": counts, "block": [1] * len(counts), "scalar": [1]}[dt_per]
    log_dt = log_steps(sum(of_block), dt_min, dt_max)
    if scales is not None:
        logs = torch.tensor([math.log(scale) for scale in scales], dtype=torch.float64, device="cpu")
        log_dt += logs.repeat_interleave(torch.tensor(of_block, device="cpu"))
    return log_dt


def spread_steps(log_dt: Tensor, counts: Sequence[int]) -> Tensor:
    """log_dt of every mode, (P,), from the stored log_dt (P,), (K,) or (1,)."""
    if len(log_dt) == sum(counts):
        return log_dt
    if len(log_dt) == 1:
        return log_dt.expand(sum(counts))
    return torch.cat([step.expand(count) for step, count in zip(log_dt, counts, strict=True)])
