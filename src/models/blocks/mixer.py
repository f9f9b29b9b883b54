"""Channel mixing after the sequence layer: the nonlinearity of a block, in each published form.

A mixer maps the layer's output y and the layer's input z, both (B, L, H), to the update that the block adds to its
residual stream. A mixer with `reads_raw` gets the block's input instead of z; in a prenorm block z is its norm. A layer
with c channels has y of shape (B, L, c H), which needs a mixer whose linear map reads c H features (`JOINING`).
`dr` below is dropout tied over positions; the block applies it once more to the result.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError, unknown
from ...ops.pointwise import gated, gelu_tanh
from .dense import TiedDropout, dense


class GLU(nn.Module):
    """S4: a * sigmoid(b) with (a, b) = W dr(gelu(dropout(y))), W: c H to 2H; exact GELU, inner dropout not tied."""

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
        super().__init__()
        self.element_dropout = nn.Dropout(dropout)
        self.dropout = TiedDropout(dropout)
        self.linear = dense(d_input, 2 * d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return F.glu(self.linear(self.dropout(F.gelu(self.element_dropout(y)))))


class FullGLU(nn.Module):
    """S5's full_glu: (W1 h) * sigmoid(W2 h) with h = dr(gelu(y)); tanh GELU."""

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
        super().__init__()
        self.dropout = TiedDropout(dropout)
        self.value = dense(d_input, d_model, framework)
        self.gate = dense(d_input, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        hidden = self.dropout(gelu_tanh(y))
        return gated(self.value(hidden), self.gate(hidden))


class HalfGLU1(nn.Module):
    """S5's half_glu1: h * sigmoid(W2 h) with h = dr(gelu(y)); tanh GELU."""

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
        super().__init__()
        self.dropout = TiedDropout(dropout)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        hidden = self.dropout(gelu_tanh(y))
        return gated(hidden, self.gate(hidden))


class HalfGLU2(nn.Module):
    """S5's half_glu2: y * sigmoid(W2 dr(gelu(y))), with the layer's raw output as the value; tanh GELU."""

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
        super().__init__()
        self.dropout = TiedDropout(dropout)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return gated(y, self.gate(self.dropout(gelu_tanh(y))))


class GELU(nn.Module):
    """S5's gelu: gelu(y), tanh form, no mixing of channels."""

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
        super().__init__()

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return gelu_tanh(y)


class SiLUGate(nn.Module):
    """FRACTAL: (W_out y) * silu(W_gate z); the gate reads the layer's (normalised) input.

    Both maps have biases, as every dense layer of S5 has; the paper prints neither.
    """

    silu = True
    # Whether z is the block's input before its norm.
    reads_raw = False

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
        super().__init__()
        self.out = dense(d_input, d_model, framework)
        self.gate = dense(d_model, d_model, framework)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return gated(self.out(y), self.gate(z), silu=self.silu)


class SigmoidGate(SiLUGate):
    """FRACTAL with the paper's sigma read as the logistic function: (W_out y) * sigmoid(W_gate z)."""

    silu = False


class RawSiLUGate(SiLUGate):
    """FRACTAL with the paper's z_in read as the block's input before its norm: (W_out y) * silu(W_gate x)."""

    reads_raw = True


class RawSigmoidGate(SigmoidGate):
    """FRACTAL with both of these readings: (W_out y) * sigmoid(W_gate x)."""

    reads_raw = True


class PassThrough(nn.Module):
    """y unchanged: attention mixes channels itself, and a feed-forward sub-block follows."""

    def __init__(self, d_model: int, dropout: float, framework: str, d_input: int):
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
    "sigmoid_gate": SigmoidGate,
    "raw_silu_gate": RawSiLUGate,
    "raw_sigmoid_gate": RawSigmoidGate,
    "mlp": PassThrough,
}


# Mixers whose linear map reads all outputs of a layer with several channels.
JOINING = ("glu", "full_glu", "silu_gate", "sigmoid_gate", "raw_silu_gate", "raw_sigmoid_gate")


def build_mixer(mixer: str, d_model: int, dropout: float, framework: str, d_input: int | None = None) -> nn.Module:
    """Build the mixer named `mixer` for y of d_input features (None: H).

    "mlp" passes y through; the block adds a feed-forward sub-block.

    Raises:
        UsageError: an unknown name, or d_input != d_model for a mixer that cannot join channels.
    """
    if mixer not in MIXERS:
        raise unknown("mixer", mixer, MIXERS)
    d_input = d_model if d_input is None else d_input
    if d_input != d_model and mixer not in JOINING:
        raise UsageError(
            f"The layer has {d_input} output features for a width of {d_model} (several channels), and mixer='{mixer}' "
            f"has no linear map that joins them. Use mixer={', '.join(repr(name) for name in JOINING)}, or channels=1."
        )
    return MIXERS[mixer](d_model, dropout, framework, d_input)
