"""Real series that ship inside packages; importing this folder registers them."""

from . import archive, environment, heart, volatility

__all__ = ["archive", "environment", "heart", "volatility"]
