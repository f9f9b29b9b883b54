"""Channel mixing after the sequence layer: the nonlinearity of a block, in each published form.

A mixer maps the layer's output y and the layer's input z, both (B, L, H), to what the block adds to its residual
stream. `dr` below is dropout tied over positions; the block applies one more to the result.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import unknown
from .dense import TiedDropout, dense


class GLU(nn.Module):
    """S4: a * sigmoid(b) with (a, b) = W dr(gelu(dropout(y))), W of H to 2H; exact GELU, inner dropout not tied."""

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()
        self.element_dropout = nn.Dropout(dropout)
        self.dropout = TiedDropout(dropout)
        self.linear = dense(d_model, 2 * d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return F.glu(self.linear(self.dropout(F.gelu(self.element_dropout(y)))))


class FullGLU(nn.Module):
    """S5's full_glu: (W1 h) * sigmoid(W2 h) with h = dr(gelu(y)); tanh GELU."""

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()
        self.dropout = TiedDropout(dropout)
        self.value = dense(d_model, d_model, framework)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        hidden = self.dropout(F.gelu(y, approximate="tanh"))
        return self.value(hidden) * self.gate(hidden).sigmoid()


class HalfGLU1(nn.Module):
    """S5's half_glu1: h * sigmoid(W2 h) with h = dr(gelu(y)); tanh GELU."""

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()
        self.dropout = TiedDropout(dropout)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        hidden = self.dropout(F.gelu(y, approximate="tanh"))
        return hidden * self.gate(hidden).sigmoid()


class HalfGLU2(nn.Module):
    """S5's half_glu2: y * sigmoid(W2 dr(gelu(y))), the value path keeps the raw layer output; tanh GELU."""

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()
        self.dropout = TiedDropout(dropout)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return y * self.gate(self.dropout(F.gelu(y, approximate="tanh"))).sigmoid()


class GELU(nn.Module):
    """S5's gelu: gelu(y), tanh form, no mixing of channels."""

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return F.gelu(y, approximate="tanh")


class SiLUGate(nn.Module):
    """FRACTAL: (W_out y) * silu(W_gate z), the gate read from the layer's (normalised) input.

    Both maps have biases, as every dense layer of S5 has; the paper prints neither.
    """

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()
        self.out = dense(d_model, d_model, framework)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return self.out(y) * F.silu(self.gate(z))


class PassThrough(nn.Module):
    """The layer's output as it is: attention mixes channels itself, and a feed-forward sub-block follows."""

    def __init__(self, d_model: int, dropout: float, framework: str):
        super().__init__()

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return y


MIXERS = {
    "glu": GLU,
    "full_glu": FullGLU,
    "half_glu1": HalfGLU1,
    "half_glu2": HalfGLU2,
    "gelu": GELU,
    "silu_gate": SiLUGate,
    "mlp": PassThrough,
}


def build_mixer(mixer: str, d_model: int, dropout: float, framework: str) -> nn.Module:
    """The mixer called `mixer`; "mlp" is the pass-through of a block that adds a feed-forward sub-block."""
    if mixer not in MIXERS:
        raise unknown("mixer", mixer, MIXERS)
    return MIXERS[mixer](d_model, dropout, framework)
