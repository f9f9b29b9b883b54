"""FRACTAL: fractional state space models, and the benchmark framework around them.

Names are loaded at first use, so that `import fractal_ssm` and `python -m train --help` stay fast.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Fractal": "models.fractal",
    "S4": "models.s4",
    "S4D": "models.s4d",
    "S5": "models.s5",
    "DSS": "models.dss",
    "LRU": "models.lru",
    "Attention": "models.transformer",
    "load_model": "models.build",
    "load_published": "models.published",
    "scan": "ops.scan",
    "hippo": "hippo",
    "register_layer": "registry",
    "register_measure": "registry",
    "register_alpha": "registry",
    "register_dataset": "registry",
    "list_layers": "registry",
    "list_measures": "registry",
    "list_alphas": "registry",
    "list_datasets": "registry",
    "UsageError": "errors",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fractal_ssm' has no attribute '{name}'")
    module = importlib.import_module(f".{_EXPORTS[name]}", __name__)
    value = module if _EXPORTS[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
