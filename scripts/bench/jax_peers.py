"""S5's method in JAX: a compiled associative scan over (gate, input) pairs, called with torch tensors.

JAX computes the gradients. Conversions to and from torch share memory where JAX allows it, and count as measured time.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def _functions():
    import jax
    import jax.numpy as jnp

    def combine(left, right):
        return right[0] * left[0], right[0] * left[1] + right[1]

    def one(a, b):
        return jax.lax.associative_scan(combine, (jnp.broadcast_to(a, b.shape), b))[1]

    def scan_(a, b):
        return jax.vmap(one, in_axes=(0 if a.ndim == 3 else None, 0))(a, b)

    def layer_(u, Lambda_bar, B_bar, C):
        def sample(row):
            states = one(Lambda_bar, jax.vmap(lambda v: B_bar @ v)(row))
            return jax.vmap(lambda x: 2 * (C @ x).real)(states)

        return jax.vmap(sample)(u)

    def with_gradient(function):
        # JAX's gradient of a real loss with respect to a complex input is the conjugate of torch's.
        def backward(arguments, g):
            gradients = jax.vjp(function, *arguments)[1](jnp.conj(g))
            return tuple(jnp.conj(x) for x in gradients)

        return jax.jit(function), jax.jit(backward)

    return {"scan": with_gradient(scan_), "layer": with_gradient(layer_)}


class _InJax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name: str, *tensors: Tensor) -> Tensor:
        ctx.name, ctx.arguments = name, tuple(_to_jax(t) for t in tensors)
        return _to_torch(_functions()[name][0](*ctx.arguments))

    @staticmethod
    def backward(ctx, g: Tensor):
        return None, *(_to_torch(x) for x in _functions()[ctx.name][1](ctx.arguments, _to_jax(g)))


def _to_jax(t: Tensor):
    import jax.numpy as jnp

    return jnp.asarray(t.detach().resolve_conj().numpy())


def _to_torch(array) -> Tensor:
    array.block_until_ready()
    return torch.utils.dlpack.from_dlpack(array)


def scan(a: Tensor, b: Tensor) -> Tensor:
    return _InJax.apply("scan", a, b)


def layer(u: Tensor, Lambda_bar: Tensor, B_bar: Tensor, C: Tensor) -> Tensor:
    return _InJax.apply("layer", u, Lambda_bar, B_bar, C)
