"""The FRACTAL layer: a bank of fractional HiPPO blocks, diagonal, many inputs and many outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...ops.discretize import check_method
from ...ops.step import AT_TIME_BATCH, MIMOStep, NativeStep
from ...registry import register_layer
from ..base import broadcast_dt_scale
from ..options import (
    check_bank,
    check_C_init,
    check_choice,
    check_flags,
    check_parameter,
    check_sizes,
    check_steps,
)
from ..ssm import Continuous, DiagonalSSM, StepMatrices
from ..ssm_init import (
    complex_normal,
    feedthrough,
    lecun_normal,
    log_steps,
    output_matrix,
)
from ..stateful import Scale, full_precision, real_parameter
from .alpha import Node
from .bank import filter_bank, starting_alphas
from .init import Block, Measure, parse_measure
from .learned import AlphaFamily
from .scaled_time import ScaledState, discretize_scaled, durations

# No mode may grow: Re Lambda is cut off here on every use, as S5's clip_eigs does.
_LARGEST_REAL_PART = -1e-4
_DT_MIN, _DT_MAX = 0.001, 0.1
# How long the input of a native step of the 1 / t system lasts as a rule.
_ONE_SAMPLE = torch.ones(1, dtype=torch.float64, device="cpu")


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
            "fractional-galerkin", "fractional-normal" (alpha sets the damping), "legs", "legt", "lagt", "fourier",
            "random", or one of your own.
        imag: frequencies. "lin", "inv", "inv2", "quad", "legs" or "none" put S4D's beside a real spectrum; "own" keeps
            the operator's, "normal" those of its normal part. "auto": lin for fractional, normal for legs and lagt,
            else own.
        B_init: "analytic": row p of B is B_tilde_p w_p with w_p a random real row of variance 1 / H, so every mode
            reads its own mixture of the H inputs with the weight that theory gives it: little for slow modes (in a
            block of 8 the slowest starts with 1 / 13,000 of the fastest's). "random": complex Gaussian rows of the
            same mean square, the paper's ablation.
        C_init: "trunc_standard_normal", "lecun_normal" or "complex_normal", as in S5, drawn in the eigenbasis.
        discretization: "zoh" or "bilinear".
        dt: "range": steps log-uniform in [dt_min, dt_max]. "calibrated": the same times the block's own time scale, so
            that every measure's mean memory runs from 1 / dt_max to 1 / dt_min positions.
        dt_min, dt_max: see dt; in units of one sample.
        bidirectional: add a second scan over the reversed sequence with its own C.
        learn_alpha: train alpha, and let B_tilde (and for the tau and galerkin measures Lambda) follow it; see
            `AlphaFamily`, also for the interval that a start must lie in. B then holds the rows w_p.
        time: "lti": the 1 / t of the HiPPO system is replaced by a learned step, as in the paper. "ltv": the 1 / t
            system itself, whose memory stretches with the time since the start: u(c t) gives at c t the state that
            u(t) gives at t. No step is learned; dt_scale says how long each input lasts. Causal only.
        checkpoint: recompute the states in the backward instead of keeping them: less memory, more time.
    Parameters: Lambda_re, Lambda_im, log_dt (P,); B (P, H, 2); C and, if bidirectional, C_backward (H, P, 2), last axis
        (re, im); D (H,). log_dt only with time="lti"; alpha_logit (K,) only with learn_alpha, which has no Lambda_re
        and Lambda_im where Lambda follows alpha.
    Re Lambda is clipped at -1e-4 on every use, so training cannot make a mode grow.
    Raises:
        UsageError: any option that does not fit, when building.
    Source: arXiv 2605.08833; where we differ from it is in the README of this folder.
    """

    roles: ClassVar[dict[str, str]] = {
        **DiagonalSSM.roles,
        "Lambda_re": "A",
        "Lambda_im": "A",
        "alpha_logit": "A",
        "log_dt": "dt",
    }
    read_in_place: ClassVar[tuple[str, ...]] = ("B", "C", "D")

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
        dt_min: float = _DT_MIN,
        dt_max: float = _DT_MAX,
        bidirectional: bool = False,
        learn_alpha: bool = False,
        time: Literal["lti", "ltv"] = "lti",
        checkpoint: bool = False,
    ):
        check_sizes("Fractal", d_model=d_model, d_state=d_state)
        check_bank("Fractal", n_alphas)
        check_parameter("Fractal", d_model=d_model, d_state=d_state)
        check_flags("Fractal", bidirectional=bidirectional, learn_alpha=learn_alpha, checkpoint=checkpoint)
        check_C_init(C_init)
        check_method(discretization)
        check_steps(dt_min, dt_max)
        check_choice("B_init", B_init, ("analytic", "random"))
        check_choice("dt", dt, ("range", "calibrated"))
        check_choice("time", time, ("lti", "ltv"))
        if time == "ltv":
            _check_ltv(bidirectional, discretization, dt, dt_min, dt_max)
        parsed = parse_measure(measure, imag)
        order = parsed.block_order(d_state, n_alphas)
        alphas = starting_alphas(parsed, order, n_alphas, alpha)
        family = _family(parsed, order, B_init) if learn_alpha else None
        if family is not None:
            alphas = family.inside(alphas)
        bank = filter_bank(parsed, order, n_alphas, alphas)
        n_modes = sum(len(block.Lambda) for block in bank)
        C = [output_matrix(C_init, d_model, n_modes, d_state) for _ in range(2 if bidirectional else 1)]
        super().__init__(
            B=_input_matrix(B_init, bank, d_model, weighted=family is None),
            C=C[0],
            D=feedthrough(d_model),
            C_backward=C[1] if bidirectional else None,
            checkpoint=checkpoint,
        )
        self.measure, self.time, self.discretization = parsed, time, discretization
        self._alphas, self._family, self._analytic = alphas, family, B_init == "analytic"
        if family is not None:
            self.alpha_logit = real_parameter(family.logit(alphas))
        if family is None or not parsed.follows_alpha:
            Lambda = torch.from_numpy(np.concatenate([block.Lambda for block in bank]))
            self.Lambda_re = real_parameter(Lambda.real)
            self.Lambda_im = real_parameter(Lambda.imag)
        if time == "lti":
            log_dt = log_steps(n_modes, dt_min, dt_max)
            if dt == "calibrated":
                scales = np.repeat([math.log(b.time_scale) for b in bank], [len(b.Lambda) for b in bank])
                log_dt += torch.from_numpy(scales)
            self.log_dt = real_parameter(log_dt)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The K alphas; empty for a measure that has none.

        With learn_alpha the current ones. Otherwise those that this layer was built from: its modes have been trained
        away from them since, and weights that were loaded may have started from others.
        """
        if self._family is not None:
            return tuple(self._family.alpha(self.alpha_logit).tolist())
        return () if self._alphas is None else tuple(self._alphas.tolist())

    @property
    def Lambda(self) -> Tensor:
        """(P,) complex eigenvalues as used, clipped."""
        return self._modes()[0]

    @property
    def B_tilde(self) -> Tensor:
        """(P, H) complex input matrix in the eigenbasis."""
        return self._modes()[1]

    def _modes(self) -> tuple[Tensor, Tensor]:
        """Lambda (P,) and B_tilde (P, H)."""
        B = torch.view_as_complex(self.B)
        if self._family is None:
            return self._free_Lambda(), B
        Lambda, weight = self._family.modes(self.alpha_logit)
        return (
            Lambda if self.measure.follows_alpha else self._free_Lambda(),
            weight[:, None] * B if self._analytic else B,
        )

    def _free_Lambda(self) -> Tensor:
        return torch.complex(self.Lambda_re.clamp(max=_LARGEST_REAL_PART), self.Lambda_im)

    def _continuous(self) -> Continuous:
        return Continuous(*self._modes(), torch.exp(self.log_dt), self.discretization)

    def forward(
        self,
        u: Tensor,
        state: Tensor | ScaledState | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | ScaledState | None]:
        """The layer over a sequence; see `SequenceLayer.forward`. The state is x: (B, P), or a ScaledState for ltv."""
        if self.time == "lti":
            return super().forward(u, state, lengths, dt_scale, return_state)
        self._check_input(u, state, lengths, return_state)
        x0, elapsed = (None, self.D.new_zeros(1, dtype=torch.float64)) if state is None else (state.x, state.time())
        with full_precision(u.device):
            lasting = durations(broadcast_dt_scale(dt_scale, u), u.shape[1], u.device)
            until = elapsed[:, None] + lasting.cumsum(dim=1)
            Lambda, B_tilde = self._modes()
            step = discretize_scaled(Lambda, until - lasting, lasting)
            y, x_last = self._run(self._as_computed(u), *step, B_tilde, x0, lengths)
        if not return_state:
            return y.to(u.dtype), None
        if lengths is None:
            return y.to(u.dtype), ScaledState.shared(x_last, until[:, -1])
        until = until.expand(u.shape[0], -1)
        return y.to(u.dtype), ScaledState(x_last, until.gather(1, lengths[:, None].long() - 1)[:, 0])

    def forward_packed(
        self,
        u: Tensor,
        cu_seqlens: Tensor,
        state: Any = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Any]:
        """See `SequenceLayer.forward_packed`; for ltv, whose gates follow each sequence's own time, by padding."""
        way = super() if self.time == "lti" else super(DiagonalSSM, self)
        return way.forward_packed(u, cu_seqlens, state, dt_scale, return_state)

    def _build_step(self, scale: Scale) -> StepMatrices:
        # The 1 / t system has another step at every position; what stays is Lambda and B_tilde themselves.
        return super()._build_step(scale) if self.time == "lti" else self._products(*self._modes())

    def _advance(self, parts: StepMatrices, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        if self.time == "lti":
            return super()._advance(parts, u, state, scale)
        elapsed, lasting = state.time(), self._lasting(scale)
        Lambda_bar, gamma = discretize_scaled(parts.Lambda, elapsed, lasting)
        y, x = self._advance_by(StepMatrices(Lambda_bar, parts.input, parts.output, gamma), u, state.x)
        return y, ScaledState.shared(x, elapsed + lasting)

    def _lasting(self, scale: Scale) -> Tensor:
        """(B,) or (1,) float64, how long the input of a step lasts in samples."""
        return self._rows(1.0 if scale is None else scale).double()

    def _native_batch(self, scale: Scale) -> int:
        return super()._native_batch(scale) if self.time == "lti" else AT_TIME_BATCH

    def _build_native(self, scale: Scale) -> NativeStep | None:
        if self.time == "lti":
            return super()._build_native(scale)
        Lambda, B_tilde = self._modes()
        return self._mimo_step(Lambda, None, B_tilde, rule="scaled time")

    def _advance_natively(self, step: MIMOStep, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        if self.time == "lti":
            return super()._advance_natively(step, u, state, scale)
        y, x, elapsed = step.at_time(u, *state, _ONE_SAMPLE if scale is None else self._lasting(scale))
        return y, ScaledState.shared(x, elapsed)

    def initial_state(self, batch_size: int) -> Tensor | ScaledState:
        """The state of rest, at time 0."""
        x = super().initial_state(batch_size)
        return x if self.time == "lti" else ScaledState.shared(x, x.real.new_zeros(1, dtype=torch.float64))

    def _check_state(self, state: Any, batch_size: int) -> None:
        if self.time == "lti" or state is None:
            return super()._check_state(state, batch_size)
        elapsed = state.elapsed if isinstance(state, ScaledState) else None
        fits = isinstance(elapsed, Tensor) and tuple(elapsed.shape) == (batch_size,)
        if not fits or elapsed.dtype != torch.float64 or elapsed.device != self.D.device:
            raise UsageError(
                f"Fractal with time='ltv' takes the ScaledState that initial_state({batch_size}) or the last call "
                f"returned, got {type(state).__name__}."
            )
        if state.x is None:
            raise UsageError(f"The ScaledState has no x. Start with initial_state({batch_size}).")
        return super()._check_state(state.x, batch_size)

    def extra_repr(self) -> str:
        """Sizes and options in the module's printed form."""
        alphas = ", ".join(f"{alpha:.3g}" for alpha in self.alphas)
        return (
            f"d_model={self.d_model}, n_modes={self.n_modes}, measure={self.measure.name}, imag={self.measure.imag}, "
            f"{'alphas' if self._family else 'initial_alphas'}=({alphas}), time={self.time}, "
            f"bidirectional={self.bidirectional}, discretization={self.discretization}"
        )


def _family(measure: Measure, order: int, B_init: str) -> AlphaFamily:
    family = AlphaFamily(measure, order)
    if B_init == "random" and not measure.follows_alpha:
        raise UsageError(
            f"With B_init='random' nothing of {measure.name} depends on alpha, so there is nothing to learn. "
            f"Use B_init='analytic' or measure='fractional-tau'."
        )
    return family


def _input_matrix(B_init: str, bank: list[Block], d_model: int, weighted: bool) -> Tensor:
    """(P, H) complex, of mean square 1 / H; the rows w_p alone when not weighted by B_tilde."""
    B_tilde = torch.from_numpy(np.concatenate([block.B_tilde for block in bank]))
    if B_init == "random":
        return complex_normal((len(B_tilde), d_model), variance=1 / d_model)
    rows = lecun_normal((len(B_tilde), d_model), fan_in=d_model)
    return B_tilde[:, None] * rows if weighted else rows.to(B_tilde.dtype)


def _check_ltv(bidirectional: bool, discretization: str, dt: str, dt_min: float, dt_max: float) -> None:
    """Refuse what the 1 / t system cannot use."""
    if bidirectional:
        raise UsageError(
            "Fractal with time='ltv' counts time from the start of the sequence and cannot run backward. "
            "Use bidirectional=False, or time='lti'."
        )
    if discretization != "zoh":
        raise UsageError(
            f"Fractal with time='ltv' is evaluated exactly, as a zoh; got discretization={discretization}."
        )
    if dt != "range" or (dt_min, dt_max) != (_DT_MIN, _DT_MAX):
        raise UsageError(
            f"Fractal with time='ltv' has no step, so dt={dt}, dt_min={dt_min}, dt_max={dt_max} would change nothing."
        )
