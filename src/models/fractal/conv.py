"""FRACTAL as a convolution: one measure and one alpha for each group of features, each feature with its own state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from ...errors import UsageError
from ...registry import register_layer
from ..options import check_bank, check_choice, check_flags, check_parameter, check_sizes, check_steps
from ..siso import DiagonalSISO, initial_steps
from .alpha import Node
from .bank import alphas_of_blocks, build_bank
from .init import Block, parse_measure


@register_layer("fractal-conv")
class FractalConv(DiagonalSISO):
    """The filter bank of FRACTAL in S4D's form; the equations are in `DiagonalSISO`.

    Feature h belongs to group h mod K. Its system of order `d_state` starts from the measure with alpha_(h mod K).
    Fractal splits one state into K blocks that all features share; here every feature has one whole block to itself.
    The kernels are the same, but features do not mix inside the SSM.

    Args:
        d_model: H, features in and out, a multiple of n_alphas.
        d_state: N, real order of each feature's system; N / 2 complex modes are stored (some more where a measure has
            real eigenvalues of its own).
        n_alphas: K, number of groups.
        alpha, measure, imag: initialisation of the modes, as for `Fractal`, with one block per group.
        B_init: "analytic": B starts as the measure's B_tilde, of unit root-mean-square. "ones": B = 1, as in S4D.
        discretization: "zoh" or "bilinear".
        dt: "range" or "calibrated", as for `Fractal`.
        dt_min, dt_max: range of the initial steps, log-uniform, one a feature.
        bidirectional: add a kernel over future inputs, with a C of its own.
        backward_lag: smallest lag of that kernel: 1, as published, or 0, which includes the present input.
    Parameters: inv_dt (H,) = log dt, A_real and A_imag (K, P), B (K, P, 2), C (directions, H, P, 2), D (H,).
    Raises:
        UsageError: any option that does not fit, when building.
    Source: measures of arXiv 2605.08833 in the layer of arXiv 2206.11893.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        n_alphas: int = 4,
        alpha: Node | None = None,
        measure: str | Mapping[str, Any] = "fractional",
        imag: str = "auto",
        B_init: Literal["analytic", "ones"] = "analytic",
        discretization: Literal["zoh", "bilinear"] = "zoh",
        dt: Literal["range", "calibrated"] = "range",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        bidirectional: bool = False,
        backward_lag: int = 1,
    ):
        check_sizes("FractalConv", d_model=d_model, d_state=d_state)
        check_bank("FractalConv", n_alphas)
        check_parameter("FractalConv", d_model=d_model, d_state=d_state)
        check_flags("FractalConv", bidirectional=bidirectional)
        if d_model % n_alphas:
            raise UsageError(
                f"FractalConv needs equal groups of features: n_alphas={n_alphas} does not divide d_model={d_model}."
            )
        check_choice("B_init", B_init, ("analytic", "ones"))
        check_choice("discretization", discretization, ("zoh", "bilinear"))
        check_choice("dt", dt, ("range", "calibrated"))
        check_steps(dt_min, dt_max)
        parsed = parse_measure(measure, imag)
        order = parsed.block_order(d_state, 1)
        measures, orders = (parsed,) * n_alphas, (order,) * n_alphas
        alphas = alphas_of_blocks(measures, orders, alpha)
        bank = build_bank(measures, orders, alphas)
        Lambda, B = _rows(bank)
        inv_dt = initial_steps(d_model, dt_min, dt_max, "exp")
        if dt == "calibrated":
            scales = np.array([math.log(block.time_scale) for block in bank])
            inv_dt += torch.from_numpy(np.tile(scales, d_model // n_alphas))
        super().__init__(
            d_model,
            torch.from_numpy(Lambda),
            torch.from_numpy(B if B_init == "analytic" else np.ones_like(B)),
            bidirectional=bidirectional,
            discretization=discretization,
            inv_dt=inv_dt,
            dt_transform="exp",
            l_max=None,
            backend="auto",
            backward_lag=backward_lag,
        )
        self.measure = parsed
        # Starting values of this build; loaded weights may have started from others.
        self.alphas: tuple[float, ...] = tuple(value for value in alphas if value is not None)

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        alphas = ", ".join(f"{alpha:.3g}" for alpha in self.alphas)
        return (
            f"{super().extra_repr()}, measure={self.measure.name}, imag={self.measure.imag}, initial_alphas=({alphas})"
        )


def _rows(bank: list[Block]) -> tuple[np.ndarray, np.ndarray]:
    """Lambda and B (K, P) of the blocks; a block with fewer modes (more eigenvalues in pairs) repeats its last mode.

    The copies of that mode divide its B among them, so the block's response to a common C is unchanged.
    """
    size = max(len(block.Lambda) for block in bank)
    Lambda, B = np.empty((2, len(bank), size), dtype=np.complex128)
    for row, block in enumerate(bank):
        count = len(block.Lambda)
        Lambda[row, :count], B[row, :count] = block.Lambda, block.B_tilde
        extra = size - count
        Lambda[row, count:] = block.Lambda[-1]
        B[row, count - 1 :] = block.B_tilde[-1] / (extra + 1)
    return Lambda, B
