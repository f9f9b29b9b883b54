"""Scaled dot-product attention by torch's fused kernels, with the derivatives that these lack."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...errors import UsageError
from ...ops.runtime.autograd import graph_gradients, transform_active


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, (B, heads, L, d), differentiable any number of times and by torch.func.

    torch's fused kernels support only a first derivative in reverse mode. That one uses them; all other derivatives use
    matrix products with O(L^2) memory.

    Args:
        mask: (B or 1, 1, L or 1, T) bool, True where a query sees a key; None for all keys, or the causal ones.
        dropout: dropout probability of the weights; with dropout there are first derivatives only.
    """
    if transform_active():
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    # torch.compile and export trace into the operator, and support only first derivatives anyway.
    if not recorded or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    return _Attend.apply(query, key, value, mask, causal, dropout)


class _Attend(torch.autograd.Function):
    """Keeps the graph of torch's own kernel for the first derivative, and the inputs for further ones."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float):
        with torch.enable_grad():
            ctx.leaves = [t.detach().requires_grad_(t.requires_grad) for t in (query, key, value)]
            ctx.heads = F.scaled_dot_product_attention(*ctx.leaves, mask, dropout, causal)
        ctx.save_for_backward(query, key, value, mask)
        ctx.causal, ctx.dropout = causal, dropout
        return ctx.heads.detach()

    @staticmethod
    def backward(ctx, grad: Tensor):
        *inputs, mask = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if not torch.is_grad_enabled() and not transform_active():
            wanted = [leaf for leaf, need in zip(ctx.leaves, needed, strict=True) if need]
            # The graph is kept for a second backward pass.
            found = iter(torch.autograd.grad(ctx.heads, wanted, grad, retain_graph=True))
            return *(next(found) if need else None for need in needed), None, None, None
        if ctx.dropout:
            raise UsageError(
                "Attention with dropout has first derivatives only: its draws are not repeated. Differentiate twice in "
                "eval mode, or with dropout=0."
            )

        def composed(*parts: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(*parts, mask, 0.0, ctx.causal)

        with torch.enable_grad():
            gradients: Any = graph_gradients(composed, inputs, needed, [grad])
        return *gradients, None, None, None
