"""Load weights in the layouts of the published S4, S4D and S5 codes, for one layer or a whole model."""

from .load import load_published, published_mapping

__all__ = ["load_published", "published_mapping"]
