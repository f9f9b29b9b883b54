"""The diagonal SSM of S5, LRU and FRACTAL from input to output: u -> B u -> scan -> 2 Re(C x) -> y."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UsageError
from ..runtime.backends import choose
from ..scan import scan
from ..scan.interface import prove
from ..tensors import require_given, require_switches, require_tensors
from .arguments import Arguments
from .op import compose, fused_kernels, ssm_op

_DOUBLE = (torch.float64, torch.complex128)


def ssm(
    u: Tensor,
    Lambda_bar: Tensor,
    B: Tensor,
    C: Tensor,
    x0: Tensor | None = None,
    reverse: bool = False,
    conj_sym: bool = True,
    backend: str = "auto",
    input_gain: Tensor | None = None,
    lengths: Tensor | None = None,
    checkpoint: bool = False,
    D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x_k = Lambda_bar x_{k-1} + gain_k B u_k,  y_k = 2 Re(C x_k) + D u_k  (Re(C x_k) without `conj_sym`).

    The two products are real matrix products on the interleaved (re, im) view of the state, with the scan in place
    between them. The hand-written backward keeps u and x, or only u with `checkpoint`.

    Args:
        u: (B, L, H) real input. float16 and bfloat16 are computed in float32, autocast included.
        Lambda_bar: complex, (P,) constant; (L, P) or (B, L, P) varying; (B, 1, P) one constant per sample.
        B: (P, H) complex, input matrix: discretised (B_bar), or not discretised if `input_gain` is given.
        C: (H_out, P) complex, output matrix.
        x0: (B, P) state before the first step (after the last one with `reverse`); None is zero.
        reverse: run from the end of the sequence to its beginning.
        conj_sym: each of the P modes stands for a conjugate pair, so the output is twice the real part.
        backend: backend of the scan, see `fractal_ssm.scan`.
        input_gain: gain of the input per step and mode, the gamma of `discretize`, real or complex, (P,), (L, P),
            (B, L, P) or (B, 1, P). With steps that vary, B_bar_k = gain_k B then needs no (L, P, H) tensor.
        lengths: (B,) int64 or int32, 1..L; x_last is then the state after each sample's last valid step (not with
            `reverse`).
        checkpoint: never hold all states. Forward and backward take the batch in pieces of 2^16 states, or of 512
            positions if that is more (on a GPU the most of 2^18 states, 4,096 positions and a sixteenth of the batch),
            and the backward recomputes the states of each piece. The gradients are equal; peak memory is u, y, their
            gradients, and twice the states of a piece.
        D: (H,) real, feedthrough; requires H_out = H.
    Returns:
        y: (B, L, H_out) in the dtype of u;  x_last: (B, P) complex, the state after the last step (at position 0 with
        `reverse`). Both are twice differentiable in every tensor argument.
    Raises:
        UsageError: shapes or dtypes that do not fit, lengths with `reverse`, or a named backend that cannot run here.
    """
    require_switches("ssm", reverse=reverse)
    require_tensors("ssm", lengths=lengths)
    options = {"D": D, "input_gain": input_gain, "x0": x0, "conj_sym": conj_sym, "checkpoint": checkpoint}
    arguments = prepared(u, Lambda_bar, B, C, **options)
    if lengths is not None and (
        tuple(lengths.shape) != (u.shape[0],) or lengths.dtype not in (torch.int64, torch.int32)
    ):
        raise UsageError(
            f"ssm takes lengths as int64 or int32 of shape (B,) = ({u.shape[0]},), got {lengths.dtype} of shape "
            f"{tuple(lengths.shape)}. From a mask of valid positions: mask.sum(1)."
        )
    if reverse and lengths is not None:
        raise UsageError("ssm takes lengths only without reverse: a reversed state ends at position 0 for all samples.")
    name = choose("scan", backend, u.device, proof=prove)
    arguments = arguments._replace(lengths=lengths, reverse=reverse, backend=name)
    if name == "reference":
        y, x_last = compose(scan, arguments)
        return y.to(u.dtype), x_last
    if name == "triton" and fused_kernels(without_D := arguments._replace(u=u, D=None)) is not None:
        # These kernels cast what they load, so u needs no copy in single precision; they do not support D.
        y, x_last, _ = ssm_op(*without_D)
        return (y if D is None else torch.addcmul(y, arguments.D, u)).to(u.dtype), x_last
    y, x_last, _ = ssm_op(*arguments)
    return y.to(u.dtype), x_last


def prepared(
    u: Tensor,
    Lambda_bar: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None,
    input_gain: Tensor | None,
    x0: Tensor | None,
    conj_sym: bool,
    checkpoint: bool,
) -> Arguments:
    """The record of arguments: checked, with tensors in the dtype of the computation and gates with three axes."""
    require_given("ssm", u=u, Lambda_bar=Lambda_bar, B=B, C=C)
    require_tensors("ssm", x0=x0, input_gain=input_gain, D=D)
    require_switches("ssm", conj_sym=conj_sym, checkpoint=checkpoint)
    check_shapes(u, Lambda_bar, B, C, x0, input_gain, D)
    real = torch.promote_types(u.dtype, torch.float64 if Lambda_bar.dtype in _DOUBLE else torch.float32)
    full = torch.promote_types(real, torch.complex64)
    if input_gain is not None:
        input_gain = _with_axes(input_gain.to(full if input_gain.is_complex() else real))
    return Arguments(
        u=u.to(real),
        a=_with_axes(Lambda_bar.to(full)),
        B=B.to(full),
        C=C.to(full),
        D=None if D is None else D.to(real),
        input_gain=input_gain,
        x0=None if x0 is None else x0.to(full),
        conj_factor=2.0 if conj_sym else 1.0,
        checkpoint=checkpoint,
    )


def _with_axes(a: Tensor) -> Tensor:
    """A gate (P,), (L, P) or with three axes as (1 or B, 1 or L, P)."""
    return a.reshape((1,) * (3 - a.dim()) + tuple(a.shape))


def check_shapes(
    u: Tensor,
    Lambda_bar: Tensor,
    B: Tensor,
    C: Tensor,
    x0: Tensor | None,
    input_gain: Tensor | None,
    D: Tensor | None,
) -> None:
    """Refuse shapes that do not fit; see `ssm`."""
    if u.dim() != 3 or u.shape[1] == 0 or u.is_complex() or not u.is_floating_point():
        raise UsageError(f"ssm takes a real u of shape (B, L, H) with L >= 1, got {u.dtype} {tuple(u.shape)}.")
    batch, length, features = u.shape
    given = {"Lambda_bar": Lambda_bar, "B": B, "C": C, "x0": x0, "input_gain": input_gain, "D": D}
    for name, tensor in given.items():
        if tensor is not None and not (tensor.is_complex() or tensor.is_floating_point()):
            raise UsageError(f"ssm takes {name} as real or complex numbers, got {tensor.dtype}. Use .to(u.dtype).")
    if Lambda_bar.dim() == 0:
        raise UsageError("ssm takes Lambda_bar of shape (P,), (L, P), (B, L, P) or (B, 1, P), got a single number.")
    modes = Lambda_bar.shape[-1]
    if tuple(B.shape) != (modes, features):
        raise UsageError(f"ssm takes B of shape (P, H) = ({modes}, {features}), got {tuple(B.shape)}.")
    if C.dim() != 2 or C.shape[1] != modes:
        raise UsageError(f"ssm takes C of shape (H, P) with P = {modes}, got {tuple(C.shape)}.")
    if x0 is not None and tuple(x0.shape) != (batch, modes):
        raise UsageError(f"ssm takes x0 of shape ({batch}, {modes}), got {tuple(x0.shape)}.")
    if D is not None and (D.is_complex() or tuple(D.shape) != (features,) or len(C) != features):
        raise UsageError(
            f"ssm takes a real D of shape (H,) = ({features},) and as many outputs; got {D.dtype} {tuple(D.shape)} and "
            f"C of shape {tuple(C.shape)}."
        )
    steps = [(modes,), (length, modes), (batch, length, modes), (batch, 1, modes), (1, length, modes), (1, 1, modes)]
    for name, tensor, allowed in (("Lambda_bar", Lambda_bar, steps), ("input_gain", input_gain, steps)):
        if tensor is not None and tuple(tensor.shape) not in allowed:
            raise UsageError(
                f"ssm takes {name} of shape (P,), (L, P), (B, L, P) or (B, 1, P) with "
                f"B = {batch}, L = {length}, P = {modes}, got {tuple(tensor.shape)}."
            )
