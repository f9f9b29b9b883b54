"""The FRACTAL layer: a bank of fractional HiPPO blocks, diagonal, many inputs and many outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError, unknown
from ...ops.discretize import check_method, discretize
from ...registry import register_layer
from ..ssm import DiagonalSSM, real_parameter
from ..ssm_init import check_C_init, check_sizes, complex_normal, lecun_normal, log_steps, output_matrix
from .alpha import Node, initial_alphas
from .init import Block, Measure, parse_measure

# No mode may grow: Re Lambda is cut off here on every use, as S5's clip_eigs does.
_LARGEST_REAL_PART = -1e-4


@register_layer("fractal")
class Fractal(DiagonalSSM):
    """FRACTAL: x' = Lambda x + B_tilde u, y = 2 Re(C_tilde x) + D u, started from K power-law memories.

    The state is split into K blocks. Block k starts from the HiPPO operator of the measure
    (1 - alpha_k) t^(alpha_k - 1) (t - x)^(-alpha_k): alpha = 0 remembers the whole past alike (LegS), alpha towards 1
    stresses the present. With the defaults this is the paper's layer: eigenvalues -1 .. -R with S4D-Lin frequencies,
    alphas equally spaced in [0, 0.9], analytic B_tilde, zero-order hold. Everything is trained from there on.

    Args:
        d_model: H, features in and out.
        d_state: N, real order of the state over all blocks, as S5's. N / 2 complex modes are stored (some more where
            a measure has real eigenvalues of its own). A multiple of 2 n_alphas (of n_alphas where imag is own).
        n_alphas: K, number of blocks. More blocks are shorter ones: with the default 64 / 4 each has 8 modes. Block
            order matters as much as alpha; small blocks keep B_tilde well scaled.
        alpha: where the alphas start: a registered name, a node, one number, or a list of K numbers, all in [0, 1).
            None is linspace from 0 to 0.9 (from 0.05 for a measure that cannot be diagonalised at 0). A measure
            without alpha takes None only.
        measure: a registered measure, or a node with its options: "fractional" (the paper), "fractional-tau" (exact),
            "fractional-galerkin", "legs", "legt", "lagt", "fourier", "random", or one of your own.
        imag: frequencies. "lin", "inv", "inv2", "quad", "legs" or "none" put S4D's beside a real spectrum; "own" keeps
            the operator's, "normal" those of its normal part. "auto": lin for fractional, normal for legs and lagt,
            else own.
        B_init: "analytic": row p of B is B_tilde_p w_p with w_p a random real row of variance 1 / H, so every mode
            reads its own mixture of the H inputs with the weight that theory gives it. "random": complex Gaussian
            rows of the same mean square, the paper's ablation.
        C_init: "trunc_standard_normal", "lecun_normal" or "complex_normal", as in S5, drawn in the eigenbasis.
        discretization: "zoh" or "bilinear".
        dt: "range": steps log-uniform in [dt_min, dt_max]. "calibrated": the same times the block's own time scale, so
            that every measure's mean memory runs from 1 / dt_max to 1 / dt_min positions.
        dt_min, dt_max: see dt; in units of one sample.
        bidirectional: add a second scan over the reversed sequence with its own C.
    Parameters: Lambda_re, Lambda_im, log_dt (P,); B (P, H, 2); C and, if bidirectional, C_backward (H, P, 2), last axis
        (re, im); D (H,).
    Re Lambda is clipped at -1e-4 on every use, so training cannot make a mode grow.
    Raises:
        UsageError: any option that does not fit, when building.
    Source: arXiv 2605.08833; where we differ from it is in the README of this folder.
    """

    roles: ClassVar[dict[str, str]] = {**DiagonalSSM.roles, "Lambda_re": "A", "Lambda_im": "A", "log_dt": "dt"}

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        n_alphas: int = 4,
        alpha: Node | None = None,
        measure: str | Mapping[str, Any] = "fractional",
        imag: str = "auto",
        B_init: Literal["analytic", "random"] = "analytic",
        C_init: str = "trunc_standard_normal",
        discretization: str = "zoh",
        dt: Literal["range", "calibrated"] = "range",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        bidirectional: bool = False,
    ):
        check_sizes("Fractal", d_model=d_model, d_state=d_state, n_alphas=n_alphas)
        check_C_init(C_init)
        check_method(discretization)
        _check_choice("B_init", B_init, ("analytic", "random"))
        _check_choice("dt", dt, ("range", "calibrated"))
        parsed = parse_measure(measure, imag)
        bank = _filter_bank(parsed, parsed.block_order(d_state, n_alphas), n_alphas, alpha)
        Lambda = torch.from_numpy(np.concatenate([block.Lambda for block in bank]))
        n_modes = len(Lambda)
        C = [output_matrix(C_init, d_model, n_modes, d_state) for _ in range(2 if bidirectional else 1)]
        super().__init__(
            B=_input_matrix(B_init, bank, d_model),
            C=C[0],
            D=torch.randn(d_model, dtype=torch.float64),
            C_backward=C[1] if bidirectional else None,
        )
        self.measure = parsed
        self.alphas = tuple(block.alpha for block in bank)
        self.discretization = discretization
        self.Lambda_re = real_parameter(Lambda.real)
        self.Lambda_im = real_parameter(Lambda.imag)
        log_dt = log_steps(n_modes, dt_min, dt_max)
        if dt == "calibrated":
            log_dt += torch.cat([torch.full((len(b.Lambda),), math.log(b.time_scale)).double() for b in bank])
        self.log_dt = real_parameter(log_dt)

    @property
    def Lambda(self) -> Tensor:
        """(P,) complex eigenvalues as used, clipped."""
        return torch.complex(self.Lambda_re.clamp(max=_LARGEST_REAL_PART), self.Lambda_im)

    def _discretise(self, dt_scale: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return *discretize(self.Lambda, dt_scale * torch.exp(self.log_dt), self.discretization), self.B_tilde

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        alphas = "none" if self.alphas[0] is None else ", ".join(f"{alpha:.3g}" for alpha in self.alphas)
        return (
            f"d_model={self.d_model}, n_modes={self.n_modes}, measure={self.measure.name}, imag={self.measure.imag}, "
            f"alphas=({alphas}), bidirectional={self.bidirectional}, discretization={self.discretization}"
        )


def _filter_bank(measure: Measure, order: int, n_alphas: int, alpha: Node | None) -> list[Block]:
    """The K blocks, one an alpha; K equal blocks of a measure without alpha."""
    if not measure.takes_alpha:
        if alpha is not None:
            raise UsageError(f"The measure '{measure.name}' has no alpha, so alpha={alpha!r} would change nothing.")
        return [measure.block(order, None)] * n_alphas
    if alpha is None:
        alpha = {"name": "linspace", "low": measure.lowest_default_alpha(order)}
    return [measure.block(order, float(value)) for value in initial_alphas(alpha, n_alphas)]


def _input_matrix(B_init: str, bank: list[Block], d_model: int) -> Tensor:
    """(P, H) complex, of mean square 1 / H."""
    B_tilde = torch.from_numpy(np.concatenate([block.B_tilde for block in bank]))
    if B_init == "random":
        return complex_normal((len(B_tilde), d_model), variance=1 / d_model)
    return B_tilde[:, None] * lecun_normal((len(B_tilde), d_model), fan_in=d_model)


def _check_choice(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise unknown(option, given, allowed)
