"""Both directions of a bidirectional diagonal SSM in one operator, which share what goes in and what comes out.

With the notation of `ssm_op`, X_f and X_b the states of the two scans, side by side in one (B L, 4P) array:

    V = U W_B,  X = [scan(V), reverse scan(V)],  Y = X W_C
    [G_f, G_b] = dY W_C^T,  adjoint scans in place,  G = G_f + G_b,  dU = G W_B^T,  dW_B = U^T G,  dW_C = X^T dY

so U is read once and Y written once, in seven products instead of twelve.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..scan.backends import choose, implementation
from ..scan.custom_op import plain, scan_op
from ..transforms import backend_to_follow, refuse_transforms
from .ssm import check_shapes, computed_in, ssm, with_axes
from .ssm_op import compose, flat, input_matrix, output_matrix

# The backend whose scans can write to, and read from, a part of the modes of an array.
_BACKEND = "native"


def two_way_ssm(
    u: Tensor,
    Lambda_bar: Tensor,
    B_bar: Tensor,
    C: Tensor,
    C_backward: Tensor,
    conj_sym: bool = True,
    gamma: Tensor | None = None,
    checkpoint: bool = False,
) -> Tensor:
    """y of `ssm` with C plus y of `ssm` with C_backward and `reverse`: a layer that runs both ways, from rest.

    Args:
        u, Lambda_bar, B_bar, gamma, checkpoint: as for `ssm`; the same in both directions.
        C, C_backward: (H_out, P) complex.
        conj_sym: as for `ssm`.
    Returns:
        (B, L, H_out) in the dtype of u, differentiable in every tensor argument, and twice.
    Raises:
        UsageError: shapes that do not fit.
    """
    name = backend_to_follow(choose("auto", u.device), "auto")
    if name != _BACKEND or gamma is not None or checkpoint:
        options = {"conj_sym": conj_sym, "gamma": gamma, "checkpoint": checkpoint}
        backward = ssm(u, Lambda_bar, B_bar, C_backward, reverse=True, **options)[0]
        return ssm(u, Lambda_bar, B_bar, C, **options)[0] + backward
    for matrix in (C, C_backward):
        check_shapes(u, Lambda_bar, B_bar, matrix, None, None)
    real, full = computed_in(u, Lambda_bar)
    a, B_bar, C, C_backward = (t.to(full) for t in (Lambda_bar, B_bar, C, C_backward))
    y, _ = two_way_op(u.to(real), with_axes(a), B_bar, C, C_backward, 2.0 if conj_sym else 1.0)
    return y.to(u.dtype)


@torch.library.custom_op("fractal_ssm::two_way_ssm", mutates_args=())
def two_way_op(
    u: Tensor, a: Tensor, B_bar: Tensor, C: Tensor, C_backward: Tensor, factor: float
) -> tuple[Tensor, Tensor]:
    (batch, length, features), modes = u.shape, len(B_bar)
    with torch.autocast(u.device.type, enabled=False):
        v = torch.view_as_complex((u.reshape(-1, features) @ input_matrix(B_bar)).view(batch, length, modes, 2))
        x = v.new_empty(batch, length, 2 * modes)
        scan = implementation(_BACKEND)
        scan.forward(plain(a), v, None, False, x)
        scan.forward(plain(a), v, None, True, x, column=modes)
        y = flat(x) @ output_matrix(torch.cat([C, C_backward], 1), factor)
    return y.view(batch, length, -1), x


@two_way_op.register_fake
def _(u, a, B_bar, C, C_backward, factor):
    batch, length, _ = u.shape
    return u.new_empty(batch, length, C.shape[0]), a.new_empty(batch, length, 2 * len(B_bar))


@torch.library.custom_op("fractal_ssm::two_way_ssm_backward", mutates_args=())
def two_way_backward_op(
    u: Tensor,
    a: Tensor,
    B_bar: Tensor,
    C: Tensor,
    C_backward: Tensor,
    x: Tensor,
    gy: Tensor,
    factor: float,
    need_a: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (_, _, features), modes = u.shape, len(B_bar)
    with torch.autocast(u.device.type, enabled=False):
        gy_flat, u_flat = gy.reshape(-1, gy.shape[2]), u.reshape(-1, features)
        gW_C = (gy_flat.t() @ flat(x)).view(len(C), -1, 2)
        gC = torch.complex(gW_C[..., 0] * factor, gW_C[..., 1] * -factor)
        W_C = output_matrix(torch.cat([C, C_backward], 1), factor)
        g = torch.view_as_complex((gy_flat @ W_C.t()).view(*x.shape, 2))
        scan = implementation(_BACKEND)
        ga, _ = scan.backward(plain(a), x, None, g, False, g, need_a)
        ga_backward, _ = scan.backward(plain(a), x, None, g, True, g, need_a, column=modes)
        g = flat(g[..., :modes] + g[..., modes:])
        gu = (g @ input_matrix(B_bar).t()).view(u.shape)
        gB = torch.view_as_complex((u_flat.t() @ g).view(features, -1, 2)).t().contiguous()
    ga = a.new_empty(0) if ga is None or ga_backward is None else ga + ga_backward
    # Copies: of one output feature the halves are views of one memory, which an operator may not return.
    gC, gC_backward = (half.clone(memory_format=torch.contiguous_format) for half in gC.tensor_split(2, 1))
    return gu, ga, gB, gC, gC_backward


@two_way_backward_op.register_fake
def _(u, a, B_bar, C, C_backward, x, gy, factor, need_a):
    gu, ga, gB, gC, gC_backward = (
        torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, a, B_bar, C, C_backward)
    )
    return gu, ga if need_a else a.new_empty(0), gB, gC, gC_backward


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.factor = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, gy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    refuse_transforms("The backward of two_way_ssm")
    if gy is None:
        return (None,) * 6
    *inputs, x = ctx.saved_tensors
    needed = ctx.needs_input_grad[:5]
    if torch.is_grad_enabled():
        gradients = _twice_differentiable(inputs, needed, gy, ctx.factor)
    else:
        gradients = two_way_backward_op(*inputs, x, gy, ctx.factor, needed[1])
    return *(g if need else None for g, need in zip(gradients, needed, strict=True)), None


two_way_op.register_autograd(_backward, setup_context=_save)


def _twice_differentiable(inputs, needed, gy, factor):
    u, a, B_bar, C, C_backward = inputs
    y = sum(
        compose(scan_op, u, a, B_bar, matrix, None, None, None, reverse, factor, _BACKEND, False)[0]
        for matrix, reverse in ((C, False), (C_backward, True))
    )
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    found = iter(torch.autograd.grad(y, wanted, gy, create_graph=True))
    return [next(found) if need else None for need in needed]
