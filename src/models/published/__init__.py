"""Weights in the layouts of the published S4, S4D and S5 codes: of one layer, and of whole models."""

from .load import load_published, published_mapping

__all__ = ["load_published", "published_mapping"]
