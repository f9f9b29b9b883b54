"""The published S5 model and its training step in JAX, written from the equations, in a single jit.

Embedding + bias, then blocks x + y sigmoid(W gelu(y) + b) with y = S5(batch norm(x)), the mean over positions, a
linear head, cross-entropy, AdamW. The layer: an associative scan over (gate, input) pairs in each direction, with
complex products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .steps import Problem

_NORM_EPS = 1e-5


def build(problem: Problem) -> tuple[Any, Any]:
    """`step` and `gradients` of `steps.Step`."""
    import jax
    import jax.numpy as jnp

    model = problem.model
    weights = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    inputs, targets = jnp.asarray(problem.inputs.numpy()), jnp.asarray(problem.targets.numpy())
    gradient = jax.value_and_grad(lambda weights: _loss(weights, len(model.blocks), inputs, targets))
    update = _adamw(problem)

    @jax.jit
    def whole(weights, moments, count):
        loss, g = gradient(weights)
        return loss, *update(weights, g, moments, count)

    state = [weights, {name: (jnp.zeros_like(w), jnp.zeros_like(w)) for name, w in weights.items()}, jnp.zeros(())]

    def step() -> object:
        loss, *state[:] = whole(*state)
        return jax.block_until_ready((loss, state))

    def gradients() -> tuple[float, dict[str, torch.Tensor]]:
        loss, found = jax.jit(gradient)(weights)
        return float(loss), {name: torch.utils.dlpack.from_dlpack(g) for name, g in found.items()}

    return step, gradients


def _loss(weights: dict[str, Any], n_layers: int, inputs: Any, targets: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = weights["encoder.embedding.weight"][inputs] + weights["encoder.bias"]
    for i in range(n_layers):
        block = f"blocks.{i}."
        z = _batch_norm(x, weights[block + "norm.statistics.weight"], weights[block + "norm.statistics.bias"])
        prefix = block + "layer."
        own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        y = jax.vmap(lambda u, own=own: _layer(own, u))(z)
        gate = jax.nn.gelu(y) @ weights[block + "mixer.gate.weight"].T + weights[block + "mixer.gate.bias"]
        x = x + y * jax.nn.sigmoid(gate)
    logits = x.mean(1) @ weights["head.linear.weight"].T + weights["head.linear.bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], 1).mean()


def _batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    import jax

    mean, variance = x.mean((0, 1)), x.var((0, 1))
    return (x - mean) * jax.lax.rsqrt(variance + _NORM_EPS) * weight + bias


def _layer(own: dict[str, Any], u: Any) -> Any:
    """u (L, H) to y (L, H): zero-order hold, a scan in each direction, 2 Re(C x) + D u."""
    import jax
    import jax.numpy as jnp

    def complex_(name):
        return own[name][..., 0] + 1j * own[name][..., 1]

    Lambda, dt = own["Lambda_re"] + 1j * own["Lambda_im"], jnp.exp(own["log_dt"])
    Lambda_bar = jnp.exp(Lambda * dt)
    B_bar = ((Lambda_bar - 1) / Lambda)[:, None] * complex_("B")
    gates = jnp.broadcast_to(Lambda_bar, (len(u), len(Lambda)))
    Bu = jax.vmap(lambda v: B_bar @ v)(u)

    def combine(left, right):
        return right[0] * left[0], right[0] * left[1] + right[1]

    forward = jax.lax.associative_scan(combine, (gates, Bu))[1]
    backward = jax.lax.associative_scan(combine, (gates, Bu), reverse=True)[1]
    states = jnp.concatenate([forward, backward], axis=1)
    C = jnp.concatenate([complex_("C"), complex_("C_backward")], axis=1)
    return jax.vmap(lambda x: 2 * (C @ x).real)(states) + own["D"] * u


def _adamw(problem: Problem) -> Any:
    """A function from (weights, gradients, moments, count) to their updated values, with the rates of our groups."""
    import jax.numpy as jnp

    from fractal_ssm.training.optim import parameter_groups

    config = problem.config.optimizer
    rates = {
        name: (group["lr"], group["weight_decay"])
        for group in parameter_groups(problem.model, config)
        for name in group["param_names"]
    }
    first_beta, second_beta = config.betas

    def update(weights, gradients, moments, count):
        count, new_weights, new_moments = count + 1, {}, {}
        for name, w in weights.items():
            lr, decay = rates[name]
            first = first_beta * moments[name][0] + (1 - first_beta) * gradients[name]
            second = second_beta * moments[name][1] + (1 - second_beta) * gradients[name] ** 2
            size = jnp.sqrt(second / (1 - second_beta**count)) + config.eps
            new_weights[name] = w * (1 - lr * decay) - lr * first / (1 - first_beta**count) / size
            new_moments[name] = first, second
        return new_weights, new_moments, count

    return update
