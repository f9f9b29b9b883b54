"""The FRACTAL layer: a bank of fractional HiPPO blocks, diagonal, many inputs and many outputs."""

from __future__ import annotations

from collections.abc import Sequence
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
from ..ssm_init import feedthrough, output_matrix
from ..stateful import Scale, full_precision, real_parameter
from .alpha import Node
from .bank import MeasureNode, alphas_of_blocks, build_bank, parse_measures
from .damping import ModeDamping
from .drive import B_INITS, B_SCALES, input_matrix
from .groups import BANKS, FeatureGroups
from .init import OWN, Measure
from .learned import alpha_family
from .real_parts import SLOWEST, Real
from .scaled_time import ScaledState, discretize_scaled, durations
from .steps import check_dt_per, spread_steps, starting_steps

_DT_MIN, _DT_MAX = 0.001, 0.1
# Default duration of the input of a native step of the 1 / t system.
_ONE_SAMPLE = torch.ones(1, dtype=torch.float64, device="cpu")
_ROLES = ("A", "B", "C", "D", "dt")


@register_layer("fractal")
class Fractal(DiagonalSSM):
    """FRACTAL: x' = Lambda x + B_tilde u, y = 2 Re(C_tilde x) + D u, started from K power-law memories.

    The state is split into K blocks. Block k starts from the HiPPO operator of the measure
    (1 - alpha_k) t^(alpha_k - 1) (t - x)^(-alpha_k): alpha = 0 weights the whole past equally (LegS), alpha towards 1
    stresses the present. With the defaults this is the paper's layer: eigenvalues -1 .. -R with S4D-Lin frequencies,
    alphas equally spaced in [0, 0.9], analytic B_tilde, zero-order hold. All of these values are then trained.
    The options from `real` on cover choices that the paper leaves open; their defaults are the project's reading of it.

    Args:
        d_model: H, features in and out.
        d_state: N, real order of the state over all blocks, as S5's. N / 2 complex modes are stored (some more where
            a measure has real eigenvalues of its own). A multiple of 2 n_alphas (of n_alphas where imag is own).
        n_alphas: K, number of blocks. More blocks are shorter ones: with the default 64 / 4 each has 8 modes. Block
            order matters as much as alpha; small blocks keep B_tilde well scaled.
        alpha: starting alphas: a registered name, a node, one number, or a list of K numbers, all in [0, 1). None is
            linspace from 0 to 0.9 (from 0.05 for a measure that cannot be diagonalised at 0). A measure without alpha
            takes None only.
        measure: a registered measure, or a node with its options: "fractional" (the paper), "fractional-tau" (exact),
            "fractional-galerkin", "fractional-normal" (alpha sets the damping), "legs", "legt", "lagt", "fourier",
            "random", or one of your own. A list of these is a mixed bank, repeated over the blocks; a list of alphas
            then has one entry for each block whose measure takes an alpha.
        imag: frequencies. "lin", "inv", "inv2", "quad", "legs" or "none" add S4D's to a real spectrum; "own" keeps
            the operator's; "normal" takes those of its normal part. "auto": lin for fractional, normal for legs and
            lagt, else own.
        B_init: rows of B. "analytic": row p is B_tilde_p w_p with w_p a random real row of variance 1 / H, so every
            mode reads its own mixture of the H inputs with its weight in the theory: small for slow modes (in a block
            of 8 the slowest mode starts with 1 / 13,000 of the fastest mode's weight). "shared": one w for all modes
            of a block. "random": complex Gaussian rows of the same mean square, the paper's ablation.
        C_init: "trunc_standard_normal", "lecun_normal" or "complex_normal", as in S5, drawn in the eigenbasis.
        discretization: "zoh" or "bilinear".
        dt: "range": steps log-uniform in [dt_min, dt_max]. "calibrated": these steps multiplied by the block's time
            scale, so that every measure's mean memory runs from 1 / dt_max to 1 / dt_min positions.
        dt_min, dt_max: see dt; in units of one sample.
        bidirectional: add a second scan over the reversed sequence with its own C.
        learn_alpha: True trains one alpha a block, which determines B_tilde (and for the tau, galerkin and normal
            measures Lambda); see `AlphaFamily`, also for the interval of starting values. B then holds the rows w_p.
            "mode" trains one alpha a mode as the damping of fractional-normal; see `ModeDamping`.
        time: "lti": the 1 / t of the HiPPO system is replaced by a learned step, as in the paper. "ltv": the 1 / t
            system itself, whose memory grows with the time since the start: an input stretched in time by c gives at
            c t the state that the original gives at t. No step is learned; dt_scale is the duration of each input.
            Causal only.
        checkpoint: recompute the states in the backward pass instead of keeping them: less memory, more time.
        real: decay rates -Re Lambda; "own" keeps the measure's. A number, a name or node of `real_parts`, or a list of
            these that is repeated over the blocks, replaces the rates and keeps the measure's frequencies.
        B_scale: how B_tilde is scaled: "rms" (each block to unit root-mean-square), "columns", "diagonal", "none", or
            "mode" (every mode alike); the table is in `drive`.
        D_init: "normal" (trained from N(0, 1)), "zero" (trained from 0, which the paper calls typical) or "fixed"
            (always 0, no parameter).
        dt_per: one step a "mode", a "block" or for all ("scalar"); see `steps`.
        conj_sym: True: each stored mode stands for itself and its conjugate. False: all d_state modes are stored, a
            block with added frequencies has the order d_state / K instead of half of it, and y = Re(C_tilde x) + D u.
        bank: "state": every block reads and feeds all features. "features": block k reads and feeds only the features
            h with h mod K = k; n_alphas must divide d_model.
        frozen: a role, or a list of roles, that is not trained: "A" (Lambda, alpha), "B", "C", "D", "dt".
    Parameters: Lambda_re, Lambda_im, log_dt (P,); B (P, H, 2); C and, if bidirectional, C_backward (H, P, 2), last axis
        (re, im); D (H,). log_dt exists only with time="lti"; dt_per="block" makes it (K,), "scalar" (1,).
        learn_alpha=True adds alpha_logit (K,), and has no Lambda_re and Lambda_im if Lambda depends on alpha; "mode"
        has alpha_logit (P,) in place of Lambda_re. With bank="features" B is (P, H / K, 2) and C (H / K, P, 2);
        D_init="fixed" makes D a buffer.
    Re Lambda is clipped at -1e-4 on every use, so training cannot make a mode grow.
    Raises:
        UsageError: any option that does not fit, when building.
    Source: arXiv 2605.08833; where we differ from it, and what it leaves open, is in the README of this folder.
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
        measure: MeasureNode | Sequence[MeasureNode] = "fractional",
        imag: str = "auto",
        B_init: Literal["analytic", "shared", "random"] = "analytic",
        C_init: str = "trunc_standard_normal",
        discretization: str = "zoh",
        dt: Literal["range", "calibrated"] = "range",
        dt_min: float = _DT_MIN,
        dt_max: float = _DT_MAX,
        bidirectional: bool = False,
        learn_alpha: bool | Literal["mode"] = False,
        time: Literal["lti", "ltv"] = "lti",
        checkpoint: bool = False,
        real: Real | Sequence[Real] = "own",
        B_scale: Literal["rms", "columns", "diagonal", "none", "mode"] = "rms",
        D_init: Literal["normal", "zero", "fixed"] = "normal",
        dt_per: Literal["mode", "block", "scalar"] = "mode",
        conj_sym: bool = True,
        bank: Literal["state", "features"] = "state",
        frozen: str | Sequence[str] = (),
    ):
        check_sizes("Fractal", d_model=d_model, d_state=d_state)
        check_bank("Fractal", n_alphas)
        check_parameter("Fractal", d_model=d_model, d_state=d_state)
        check_flags("Fractal", bidirectional=bidirectional, checkpoint=checkpoint, conj_sym=conj_sym)
        if not isinstance(learn_alpha, bool) and learn_alpha != "mode":
            raise UsageError(
                f"Fractal needs learn_alpha to be True (one alpha a block), 'mode' (one a mode) or False, got "
                f"{learn_alpha!r}. In YAML write true, mode or false."
            )
        check_C_init(C_init)
        check_method(discretization)
        check_steps(dt_min, dt_max)
        check_choice("B_init", B_init, B_INITS)
        check_choice("B_scale", B_scale, B_SCALES)
        check_choice("D_init", D_init, ("normal", "zero", "fixed"))
        check_choice("bank", bank, BANKS)
        check_choice("dt", dt, ("range", "calibrated"))
        check_choice("time", time, ("lti", "ltv"))
        check_dt_per(dt_per, dt)
        if B_init == "random" and B_scale != "rms":
            raise UsageError(f"B_init='random' does not use B_tilde, so B_scale='{B_scale}' would change nothing.")
        if time == "ltv":
            _check_ltv(bidirectional, discretization, dt, dt_min, dt_max, dt_per)
        measures = parse_measures(measure, imag, n_alphas)
        orders = [each.block_order(d_state, n_alphas, conj_sym) for each in measures]
        alphas = alphas_of_blocks(measures, orders, alpha)
        family = damping = None
        if learn_alpha == "mode":
            damping = ModeDamping(measures)
        elif learn_alpha:
            family = alpha_family(measures, orders, conj_sym, B_init=B_init, B_scale=B_scale, real=real)
            alphas = tuple(family.inside(np.array(alphas)).tolist())
        blocks = build_bank(measures, orders, alphas, real, B_scale)
        scales = [block.time_scale for block in blocks] if dt == "calibrated" else None
        if not conj_sym:
            pairs = [each.imag in OWN for each in measures]
            blocks = [block.with_conjugates() if own else block for block, own in zip(blocks, pairs, strict=True)]
        counts = tuple(len(block.Lambda) for block in blocks)
        groups = FeatureGroups(d_model, counts) if bank == "features" else None
        width, size = (d_model, d_state) if groups is None else (groups.size, d_state // n_alphas)
        C = [output_matrix(C_init, width, sum(counts), size) for _ in range(2 if bidirectional else 1)]
        B = input_matrix(B_init, [block.B_tilde for block in blocks], width, weighted=family is None)
        # Always drawn, so that the steps drawn later depend only on the seed.
        D = feedthrough(d_model)
        super().__init__(
            B=B,
            C=C[0],
            D=D if D_init == "normal" else torch.zeros_like(D),
            C_backward=C[1] if bidirectional else None,
            conj_sym=conj_sym,
            checkpoint=checkpoint,
        )
        self.measures, self.groups, self.time, self.discretization = measures, groups, time, discretization
        self._alphas, self._family, self._damping, self._counts = alphas, family, damping, counts
        self._weighted = family is not None and B_init != "random"
        if D_init == "fixed":
            fixed = self.D.detach()
            del self.D
            self.register_buffer("D", fixed)
        Lambda = np.concatenate([block.Lambda for block in blocks])
        if family is not None:
            self.alpha_logit = real_parameter(family.logit(np.array(alphas)))
        elif damping is not None:
            self.alpha_logit = real_parameter(damping.logit(Lambda))
        if family is None or not family.moves_Lambda:
            if damping is None:
                self.Lambda_re = real_parameter(torch.from_numpy(Lambda.real))
            self.Lambda_im = real_parameter(torch.from_numpy(Lambda.imag))
        if time == "lti":
            self.log_dt = real_parameter(starting_steps(dt_per, counts, dt_min, dt_max, scales))
        self._freeze(frozen)

    def _freeze(self, frozen: str | Sequence[str]) -> None:
        if not isinstance(frozen, Sequence):
            raise UsageError(f"frozen is a list of roles, frozen=[A, dt], got {frozen!r}. Roles: {', '.join(_ROLES)}.")
        of_role: dict[str, list[torch.nn.Parameter]] = {role: [] for role in _ROLES}
        for name, parameter in self.named_parameters(recurse=False):
            of_role[self.roles[name]].append(parameter)
        for role in [frozen] if isinstance(frozen, str) else frozen:
            check_choice("frozen", role, _ROLES)
            if not of_role[role]:
                raise UsageError(f"This Fractal has no parameter of the role '{role}', so there is nothing to freeze.")
            for parameter in of_role[role]:
                parameter.requires_grad_(False)

    @property
    def measure(self) -> Measure:
        """The measure of the first block, and of all blocks unless the bank is mixed (`measures`)."""
        return self.measures[0]

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alphas of the blocks whose measure has one, at most K; with learn_alpha="mode" one a mode.

        With learn_alpha these are the current values. Otherwise they are the starting values of this build: training
        moves the modes away from them, and loaded weights may have started from others.
        """
        if self._family is not None:
            return tuple(self._family.alpha(self.alpha_logit).tolist())
        if self._damping is not None:
            return tuple(self._damping.alpha(self.alpha_logit).tolist())
        return tuple(alpha for alpha in self._alphas if alpha is not None)

    @property
    def Lambda(self) -> Tensor:
        """(P,) complex eigenvalues, clipped as in the forward pass."""
        return self._modes()[0]

    @property
    def B_tilde(self) -> Tensor:
        """(P, H) complex input matrix in the eigenbasis."""
        return self._modes()[1]

    def _modes(self) -> tuple[Tensor, Tensor]:
        """Lambda (P,) and B_tilde (P, H)."""
        B = torch.view_as_complex(self.B)
        if self._family is None:
            Lambda = self._free_Lambda()
        else:
            Lambda, weight = self._family.modes(self.alpha_logit)
            Lambda = Lambda if self._family.moves_Lambda else self._free_Lambda()
            B = weight[:, None] * B if self._weighted else B
        return Lambda, B if self.groups is None else self.groups.spread_B(B)

    def _free_Lambda(self) -> Tensor:
        if self._damping is not None:
            return torch.complex(self._damping.real_parts(self.alpha_logit), self.Lambda_im)
        # Clipped so that no mode grows, as with S5's clip_eigs.
        return torch.complex(self.Lambda_re.clamp(max=-SLOWEST), self.Lambda_im)

    def _output(self, C: Tensor) -> Tensor:
        return C if self.groups is None else self.groups.spread_C(C)

    def _continuous(self) -> Continuous:
        dt = torch.exp(spread_steps(self.log_dt, self._counts))
        return Continuous(*self._modes(), dt, self.discretization)

    def forward(
        self,
        u: Tensor,
        state: Tensor | ScaledState | None = None,
        lengths: Tensor | None = None,
        dt_scale: float | Tensor = 1.0,
        return_state: bool = True,
    ) -> tuple[Tensor, Tensor | ScaledState | None]:
        """Run the layer over a sequence; see `SequenceLayer.forward`. The state is x (B, P), for ltv a ScaledState."""
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
        """See `SequenceLayer.forward_packed`. ltv pads, as its gates depend on the time within each sequence."""
        way = super() if self.time == "lti" else super(DiagonalSSM, self)
        return way.forward_packed(u, cu_seqlens, state, dt_scale, return_state)

    def _build_step(self, scale: Scale) -> StepMatrices:
        # The step of the 1 / t system changes with position; only Lambda and B_tilde can be kept.
        return super()._build_step(scale) if self.time == "lti" else self._products(*self._modes())

    def _advance(self, parts: StepMatrices, u: Tensor, state: Any, scale: Scale) -> tuple[Tensor, Any]:
        if self.time == "lti":
            return super()._advance(parts, u, state, scale)
        elapsed, lasting = state.time(), self._lasting(scale)
        Lambda_bar, gamma = discretize_scaled(parts.Lambda, elapsed, lasting)
        y, x = self._advance_by(StepMatrices(Lambda_bar, parts.input, parts.output, gamma), u, state.x)
        return y, ScaledState.shared(x, elapsed + lasting)

    def _lasting(self, scale: Scale) -> Tensor:
        """(B,) or (1,) float64, the duration of a step's input in samples."""
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
        """The zero state, at time 0."""
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
        learned = self._family is not None or self._damping is not None
        measures = " + ".join(dict.fromkeys(f"{each.name}, imag={each.imag}" for each in self.measures))
        return (
            f"d_model={self.d_model}, n_modes={self.n_modes}, measure={measures}, "
            f"{'alphas' if learned else 'initial_alphas'}=({alphas}), time={self.time}, "
            f"bidirectional={self.bidirectional}, discretization={self.discretization}"
        )


def _check_ltv(bidirectional: bool, discretization: str, dt: str, dt_min: float, dt_max: float, dt_per: str) -> None:
    """Raise an error for options that the 1 / t system cannot use."""
    if bidirectional:
        raise UsageError(
            "Fractal with time='ltv' measures time from the start of the sequence and cannot run backward. "
            "Use bidirectional=False, or time='lti'."
        )
    if discretization != "zoh":
        raise UsageError(
            f"Fractal with time='ltv' is evaluated exactly, as a zoh; got discretization={discretization}."
        )
    if (dt, dt_per) != ("range", "mode") or (dt_min, dt_max) != (_DT_MIN, _DT_MAX):
        raise UsageError(
            f"Fractal with time='ltv' has no step, so dt={dt}, dt_min={dt_min}, dt_max={dt_max}, dt_per={dt_per} would "
            f"change nothing."
        )
