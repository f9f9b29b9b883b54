"""A trainable alpha for every block: modes as a differentiable function of the singularity indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import hippo
from ...errors import UsageError
from ...ops.runtime.autograd import refuse_transforms
from .init import ADDED, Measure

# Open intervals for alpha. Within those of tau and galerkin the number of real eigenvalues is constant for even block
# orders from 4 on, so no conjugate pair forms or breaks during training.
_BOUNDS = {
    "fractional": (0.0, 0.99),
    "fractional-tau": (0.01, 0.95),
    "fractional-galerkin": (0.01, 0.95),
    "fractional-normal": (0.0, 0.99),
}
# A start at a bound would have no gradient, so it is moved inside by this share of the interval.
_MARGIN = 0.01
_CHECKED_ALPHAS = 24


def alpha_family(measures: Sequence[Measure], orders: Sequence[int], conj_sym: bool, **chosen: Any) -> AlphaFamily:
    """The `AlphaFamily` for learn_alpha=True, after a check that the layer's other options allow it.

    Args:
        measures, orders: measures and operator orders of the K blocks.
        conj_sym: option of the layer.
        chosen: the layer's options B_init, B_scale and real.
    Raises:
        UsageError: several measures, options that override the modes of alpha, or see `AlphaFamily`.
    """
    measure = measures[0]
    if any(other != measure for other in measures):
        raise UsageError("learn_alpha needs one measure for all blocks, got a list of several. Use learn_alpha=false.")
    for option, default in (("B_scale", "rms"), ("real", "own")):
        if not isinstance(chosen[option], str) or chosen[option] != default:
            raise UsageError(
                f"learn_alpha=true computes the modes from alpha, so {option}={chosen[option]!r} cannot be used. "
                f"Leave {option} at '{default}', or use learn_alpha=false."
            )
    if not conj_sym and measure.imag not in ADDED:
        raise UsageError(
            f"learn_alpha=true stores one mode of each conjugate pair of {measure.name}. Use conj_sym=true, or "
            f"learn_alpha=false."
        )
    family = AlphaFamily(measure, orders[0])
    if chosen["B_init"] == "random" and not measure.follows_alpha:
        raise UsageError(
            f"With B_init='random' nothing of {measure.name} depends on alpha, so there is nothing to learn. "
            f"Use B_init='analytic' or measure='fractional-tau'."
        )
    return family


class AlphaFamily:
    """The modes of K blocks as a function of K trainable numbers.

        alpha = low + (high - low) sigmoid(logit)

    `fractional` has the eigenvalues -1 .. -R for every alpha, so only B_tilde depends on it. For `fractional-tau`,
    `fractional-galerkin` and `fractional-normal` Lambda and B_tilde both do; their derivatives come from first-order
    perturbation theory. Every call solves the small eigenproblems in float64 on the CPU, so on a GPU it synchronises
    to read K numbers.

    Args:
        measure: the layer's measure and frequencies.
        order: order of a block's operator.
    Attributes:
        low, high: bounds of the open interval for alpha.
        moves_Lambda: whether Lambda depends on alpha, not only B_tilde.
    Raises:
        UsageError: a measure or frequencies whose modes have no derivative with respect to alpha, or a block order at
            which eigenvalues meet inside the interval.
    """

    def __init__(self, measure: Measure, order: int):
        self.low, self.high = _interval(measure)
        self.moves_Lambda = measure.follows_alpha
        self._key = measure.name, measure.imag, order, _modes_of_a_block(measure, order, self.low, self.high)

    def inside(self, alphas: np.ndarray) -> np.ndarray:
        """Starting values, clipped to stay at least a hundredth of the interval away from both bounds.

        Raises:
            UsageError: a value outside the closed interval.
        """
        outside = alphas[(alphas < self.low) | (alphas > self.high)]
        if len(outside):
            raise UsageError(
                f"learn_alpha lets alpha of {self._key[0]} move in [{self.low}, {self.high}], got a start at "
                f"{', '.join(f'{value:g}' for value in outside)}. Start inside, or use learn_alpha=False."
            )
        margin = _MARGIN * (self.high - self.low)
        return np.clip(alphas, self.low + margin, self.high - margin)

    def logit(self, alphas: np.ndarray) -> Tensor:
        """(K,) float64, the parameter that gives these alphas."""
        return torch.from_numpy(np.log((alphas - self.low) / (self.high - alphas)))

    def alpha(self, logit: Tensor) -> Tensor:
        """(K,) alphas for the values of the parameter."""
        return self.low + (self.high - self.low) * torch.sigmoid(logit)

    def modes(self, logit: Tensor) -> tuple[Tensor, Tensor]:
        """Lambda (P,) complex and B_tilde (P,) real > 0, of unit root-mean-square in each block."""
        refuse_transforms("A trained alpha")
        values, _ = _modes_op(self.alpha(logit).double(), *self._key)
        real, imag, log_B = values.to(logit.dtype)
        B_tilde = torch.exp(log_B - log_B.detach().amax(dim=1, keepdim=True))
        B_tilde = B_tilde / B_tilde.square().mean(dim=1, keepdim=True).sqrt()
        return torch.complex(real, imag).flatten(), B_tilde.flatten()


@torch.library.custom_op("fractal_ssm::alpha_modes", mutates_args=())
def _modes_op(alpha: Tensor, name: str, imag: str, order: int, n_modes: int) -> tuple[Tensor, Tensor]:
    """Re Lambda, Im Lambda and log B_tilde of K blocks, (3, K, p) float64, and their derivatives in alpha."""
    measure = Measure(name, {}, imag)
    blocks = [_block_with_derivative(measure, order, value) for value in alpha.tolist()]
    for value, (block, _) in zip(alpha.tolist(), blocks, strict=True):
        if block.shape[1] != n_modes:
            raise UsageError(
                f"Eigenvalues of {name} of order {order} met at alpha = {value:.4g}, where they have no derivative. "
                f"Use another block order (d_state / n_alphas), or learn_alpha=False."
            )
    values = np.stack([block for block, _ in blocks], axis=1)
    slopes = np.stack([slope for _, slope in blocks], axis=1)
    return torch.from_numpy(values).to(alpha.device), torch.from_numpy(slopes).to(alpha.device)


@_modes_op.register_fake
def _(alpha: Tensor, name: str, imag: str, order: int, n_modes: int) -> tuple[Tensor, Tensor]:
    shape = (3, alpha.shape[0], n_modes)
    return alpha.new_empty(shape), alpha.new_empty(shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
    if torch.is_grad_enabled():
        raise UsageError(
            "A trained alpha has first derivatives only. Take them without create_graph=True, or leave alpha_logit "
            "out of the differentiated inputs, or build the layer with learn_alpha=False."
        )
    (slopes,) = ctx.saved_tensors
    return (grad * slopes).sum(dim=(0, 2)), None, None, None, None


_modes_op.register_autograd(_backward, setup_context=_save)


def _block_with_derivative(measure: Measure, order: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """(3, p) Re Lambda, Im Lambda, log B_tilde, and their derivatives in alpha."""
    operator = hippo.operator(measure.name, order, alpha=alpha)
    if measure.imag in ADDED:
        # Imported here because SciPy takes half a second.
        from scipy.special import digamma

        n = np.arange(order, dtype=float)
        log_B = operator.eigensystem().log_B_tilde
        # B_tilde_n = sqrt((2n+1-alpha) / (1-alpha)) Gamma(2n+1-alpha) / (Gamma(n+1-alpha) n!)
        slope = 0.5 / (1 - alpha) - 0.5 / (2 * n + 1 - alpha) - digamma(2 * n + 1 - alpha) + digamma(n + 1 - alpha)
        imag = hippo.imaginary_parts(measure.imag, order)
        still = np.zeros(order)
        return np.stack([-(n + 1), imag, log_B]), np.stack([still, still, slope])
    diagonal = hippo.diagonalize(operator)
    Lambda, _, B_tilde, weight = hippo.conjugate_half(diagonal)
    dLambda, dB_tilde, _ = hippo.alpha_derivative(operator, diagonal)
    kept = diagonal.Lambda.imag <= 0
    dLambda, relative = dLambda[kept], (dB_tilde[kept] / B_tilde).real
    # Real eigenvalues stay real; rounding could move them off the axis.
    dLambda.imag[Lambda.imag == 0] = 0.0
    values = np.stack([Lambda.real, Lambda.imag, np.log(weight * B_tilde.real)])
    return values, np.stack([dLambda.real, dLambda.imag, relative])


def _interval(measure: Measure) -> tuple[float, float]:
    family = measure.name in _BOUNDS and not measure.options
    fits = measure.imag in ADDED if measure.name == "fractional" else measure.imag == "own"
    if not (family and fits):
        raise UsageError(
            f"learn_alpha needs modes with a derivative by alpha: measure fractional with added frequencies "
            f"({', '.join(ADDED)}), or fractional-tau, -galerkin or -normal with imag own; "
            f"got measure {measure.name} with imag {measure.imag}."
        )
    return _BOUNDS[measure.name]


def _modes_of_a_block(measure: Measure, order: int, low: float, high: float) -> int:
    """Number of modes stored for a block, after a check that it is the same over the whole interval."""
    if measure.imag in ADDED:
        return order
    counts = {len(measure.block(order, float(alpha)).Lambda) for alpha in np.linspace(low, high, _CHECKED_ALPHAS)}
    if len(counts) > 1:
        raise UsageError(
            f"learn_alpha is not possible for {measure.name} of block order {order}: between alpha = {low} and {high} "
            f"eigenvalues meet, and have no derivative there. Use an even order d_state / n_alphas of 4 or more."
        )
    return counts.pop()
