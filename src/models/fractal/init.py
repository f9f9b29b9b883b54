"""Diagonal modes of a block for a given measure: eigenvalues, frequencies and the analytic B_tilde."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import hippo
from ...errors import UsageError
from ...registry import measures
from ..options import check_choice
from .drive import columns_of, is_relative, scaled

# Frequencies added to a real spectrum, as in S4D; each mode then stands for a conjugate pair.
ADDED = ("none", "lin", "inv", "inv2", "quad", "legs")
# Frequencies of the operator: of A, or of A without its low-rank part.
OWN = ("own", "normal")

# The paper adds S4D-Lin frequencies. LegS and LagT have no eigenvectors that float64 can hold, so they start from the
# normal part, as S4D-LegS and S5 do. Every other measure keeps its own spectrum.
_AUTO = {"fractional": "lin", "legs": "normal", "lagt": "normal"}

# Lowest alpha of the default bank if alpha = 0 cannot be diagonalised; cond(V) is below 1e4 from here on.
_LOWEST_DIAGONALISABLE = 0.05


@dataclass(frozen=True)
class Block:
    """The modes of one block of the bank.

    Attributes:
        alpha: singularity index, None for a measure without alpha.
        Lambda: (p,) complex128, Re < 0, one of each conjugate pair.
        B_tilde: (p,) complex128, scaled by the option B_scale; by default of unit root-mean-square.
    """

    alpha: float | None
    Lambda: np.ndarray
    B_tilde: np.ndarray

    @property
    def time_scale(self) -> float:
        """Mean lag of the memory, in units of time; see `hippo.time_scale`."""
        paired = self.Lambda[self.Lambda.imag != 0].conj()
        return hippo.time_scale(np.concatenate([self.Lambda, paired]))

    def with_conjugates(self) -> Block:
        """The block with both modes of every conjugate pair; a real mode has no partner, so its weight doubles."""
        paired = self.Lambda.imag != 0
        B_tilde = np.where(paired, self.B_tilde, 2.0 * self.B_tilde)
        return Block(
            self.alpha,
            np.concatenate([self.Lambda, self.Lambda[paired].conj()]),
            np.concatenate([B_tilde, self.B_tilde[paired].conj()]),
        )


@dataclass(frozen=True)
class Measure:
    """The layer's `measure` and `imag` options, checked.

    Attributes:
        name: registered measure.
        options: its options, alpha apart.
        imag: source of the frequencies, with "auto" resolved.
    """

    name: str
    options: Mapping[str, Any]
    imag: str

    @property
    def takes_alpha(self) -> bool:
        """Whether the measure is one of a family indexed by alpha."""
        return "alpha" in measures.options(self.name, runtime=("N",))

    @property
    def follows_alpha(self) -> bool:
        """Whether the eigenvalues, not only B_tilde, depend on alpha."""
        return self.takes_alpha and self.imag in OWN and self.name != "fractional"

    def block_order(self, d_state: int, n_blocks: int, conj_sym: bool = True) -> int:
        """Order of one block's operator: d_state / K, or half of it if added frequencies make every real mode a pair.

        Raises:
            UsageError: d_state is not a multiple of K, or of 2 K.
        """
        parts = 2 * n_blocks if self.imag in ADDED and conj_sym else n_blocks
        if d_state % parts:
            per = "n_alphas" if parts == n_blocks else "2 * n_alphas (each mode stands for a conjugate pair)"
            raise UsageError(
                f"d_state must be a multiple of {per} = {parts}, got d_state={d_state}. "
                f"Nearest: {max(parts, round(d_state / parts) * parts)}."
            )
        return d_state // parts

    def lowest_default_alpha(self, order: int) -> float:
        """Lowest alpha of the default bank: 0, or 0.05 if the operator at alpha = 0 has no usable eigenvectors."""
        at_zero = hippo.operator(self.name, order, alpha=0.0, **self.options)
        return _LOWEST_DIAGONALISABLE if self.imag != "normal" and at_zero.no_direct else 0.0

    def block(self, order: int, alpha: float | None, B_scale: str = "rms") -> Block:
        """The modes of one block; see `Block`.

        B_tilde = V^-1 B; `drive` lists the scales of the columns of V and of B_tilde. By default the columns have unit
        diagonal where V is known in closed form (`fractional`, `legs`), which keeps B_tilde smallest, else unit norm;
        C absorbs the scale. A real eigenvalue of an otherwise complex spectrum has no conjugate partner, so its weight
        is halved.

        Raises:
            UsageError: the operator cannot be diagonalised this way; it has frequencies of its own but `imag` adds
                some; B_scale needs columns that this block does not have, or gives weights beyond float32.
        """
        options = dict(self.options) if alpha is None else {**self.options, "alpha": alpha}
        operator = hippo.operator(self.name, order, **options)
        columns = columns_of(B_scale)
        if self.imag in ADDED:
            rates, log_B = _real_spectrum(operator, self.imag, columns)
            # In logarithms, because a common factor may overflow.
            B_tilde = np.exp(log_B - log_B.max() if is_relative(B_scale) else log_B).astype(complex)
            Lambda = -rates + 1j * hippo.imaginary_parts(self.imag, order)
            return Block(alpha, Lambda, scaled(B_tilde, B_scale, operator.label))
        if columns == "diagonal":
            raise _no_diagonal(operator)
        diagonal = hippo.diagonalize(operator, method="direct" if self.imag == "own" else "normal")
        Lambda, _, B_tilde, weight = hippo.conjugate_half(diagonal)
        weights = weight * B_tilde / (np.abs(B_tilde).max() if is_relative(B_scale) else 1.0)
        return Block(alpha, Lambda, scaled(weights, B_scale, operator.label))


def parse_measure(measure: str | Mapping[str, Any], imag: str) -> Measure:
    """Check the `measure` and `imag` options of a layer.

    Args:
        measure: registered name, or a node with the measure's options ({"name": "legt", "theta": 2.0}).
        imag: "auto", a name of ADDED or of OWN.
    Raises:
        UsageError: unknown name or option, or an alpha in the node.
    """
    if not isinstance(measure, (str, Mapping)):
        raise UsageError(
            f"measure is a name or a mapping {{'name': ..., options}}, got {measure!r}. "
            f"Known names: {', '.join(measures.names())}."
        )
    node = {"name": measure} if isinstance(measure, str) else dict(measure)
    if "alpha" in node:
        raise UsageError(f"Give alpha as the layer's own option alpha={node['alpha']}, not inside measure.")
    measures.check(node, runtime=("N",))
    name = node.pop("name")
    check_choice("imag", imag, ("auto", *ADDED, *OWN))
    return Measure(name, node, _AUTO.get(name, "own") if imag == "auto" else imag)


def _no_diagonal(operator: hippo.Operator) -> UsageError:
    """The error for B_scale='diagonal' with eigenvectors that are not computed in triangular form."""
    return UsageError(
        f"B_scale='diagonal' needs the triangular eigenvectors of fractional and legs; those of {operator.label} are "
        f"not triangular here. Use B_scale='none' for unit columns, or 'rms'."
    )


def _real_spectrum(operator: hippo.Operator, imag: str, columns: str) -> tuple[np.ndarray, np.ndarray]:
    """Decay rates (p,) and log |B_tilde| of an operator whose eigenvalues are real."""
    if operator.eigensystem is not None and columns != "norm":
        system = operator.eigensystem()
        return system.eigenvalues, system.log_B_tilde
    if columns == "diagonal":
        raise _no_diagonal(operator)
    diagonal = hippo.diagonalize(operator)
    if (diagonal.Lambda.imag != 0).any():
        raise UsageError(
            f"{operator.label} has frequencies of its own, so imag='{imag}' cannot add any. "
            f"Use imag='own' (or 'normal', those of its normal part)."
        )
    with np.errstate(divide="ignore"):
        return -diagonal.Lambda.real, np.log(np.abs(diagonal.B_tilde))
