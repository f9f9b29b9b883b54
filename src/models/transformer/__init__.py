"""Softmax attention as a sequence layer: the Transformer of the comparison is this layer with mixer "mlp"."""

from .attention import Attention

__all__ = ["Attention"]
