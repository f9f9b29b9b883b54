"""Encoder of token ids or real samples to features (B, L, H)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...errors import UsageError, unknown
from .dense import dense, lecun_normal_

POSITIONS = ("none", "sinusoidal")


class Encoder(nn.Module):
    """Embedding of tokens, or linear map of real channels, with an optional class token and absolute positions.

    x_t = E[token_t] (+ bias). With torch's defaults E ~ N(0, 1). With flax's E is LeCun normal over n_tokens, which
    together with the bias is S5's dense layer on one-hot input. Real input: x_t = W u_t + bias.

    Args:
        d_model: H.
        n_tokens, d_input: size of the vocabulary, or channels of a real input; exactly one is given.
        bias: whether the token embedding has a bias; the map of a real input always has one.
        positions: "none", or "sinusoidal": sin and cos of t / 10000^(2i/H) added in interleaved pairs.
        class_token: put one learned vector in front of the sequence (it takes position 0).
        framework: framework whose default initialisation is used.
    """

    # `parameter_groups` always decays its biases, whatever the setting for other biases, as in the published S4.
    decay_norm_and_bias = True

    def __init__(
        self,
        d_model: int,
        n_tokens: int | None,
        d_input: int | None,
        *,
        bias: bool,
        positions: str,
        class_token: bool,
        framework: str,
    ):
        super().__init__()
        if (n_tokens is None) == (d_input is None):
            raise UsageError(
                f"The model takes either n_tokens (token ids) or d_input (real channels), got n_tokens={n_tokens} "
                f"and d_input={d_input}. Give exactly one of them."
            )
        if positions not in POSITIONS:
            raise unknown("positions", positions, POSITIONS, "Rotary positions are an option of the attention layer.")
        self.d_model, self.n_tokens, self.d_input, self.positions = d_model, n_tokens, d_input, positions
        if n_tokens is None:
            self.linear = dense(d_input, d_model, framework)
        else:
            self.embedding = nn.Embedding(n_tokens, d_model)
            if framework == "flax":
                lecun_normal_(self.embedding.weight, fan_in=n_tokens)
            self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.class_token = nn.Parameter(torch.zeros(d_model)) if class_token else None

    def forward(self, inputs: Tensor, position: Tensor | None = None) -> Tensor:
        """Encode a sequence or the next piece of one.

        Args:
            inputs: (B, L) int64 token ids in [0, n_tokens), or (B, L, d_input) real.
            position: (B,) int64, index of the first input in its sequence; None means 0.
        Returns:
            (B, L, H), or (B, L + 1, H) with a class token.
        Raises:
            UsageError: inputs whose shape or kind differs from that the model was built for.
        """
        x = self._values(inputs)
        if self.class_token is not None:
            x = torch.cat([self.class_token.to(x.dtype).expand(x.shape[0], 1, -1), x], dim=1)
        if self.positions == "sinusoidal":
            steps = torch.arange(x.shape[1], device=x.device)
            steps = steps if position is None else steps + position[:, None]
            x = x + sinusoid(steps, self.d_model).to(x.dtype)
        return x

    def _values(self, inputs: Tensor) -> Tensor:
        if self.n_tokens is None:
            if inputs.dim() != 3 or inputs.shape[-1] != self.d_input or not inputs.is_floating_point():
                raise UsageError(
                    f"The model takes real inputs of shape (batch, length, {self.d_input}), got "
                    f"{tuple(inputs.shape)} of {inputs.dtype}. Token ids need a model built with n_tokens."
                )
            return self.linear(inputs)
        if inputs.dim() != 2 or inputs.is_floating_point():
            raise UsageError(
                f"The model takes token ids of shape (batch, length), got {tuple(inputs.shape)} of {inputs.dtype}. "
                f"Real inputs need a model built with d_input."
            )
        x = self.embedding(inputs)
        return x if self.bias is None else x + self.bias


def sinusoid(steps: Tensor, d_model: int) -> Tensor:
    """Sinusoidal position features (Vaswani et al. 2017): steps (...,) to (..., d_model) float32.

    Feature 2i is sin(t w_i), feature 2i + 1 is cos(t w_i), w_i = 10000^(-2i / d_model).
    """
    index = torch.arange(0, d_model, 2, device=steps.device, dtype=torch.float32)
    angle = steps[..., None].float() * torch.exp(index * (-math.log(10000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :d_model]
