"""FRACTAL: fractional state space models, and the benchmark framework around them.

Names are imported at first use, so that `import fractal_ssm` and `python -m train --help` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The imports of `_EXPORTS`, for type checkers and editors; a test keeps the two in step.
    from . import hippo as hippo
    from . import interop as interop
    from . import state as state
    from .create import create_model as create_model
    from .create import list_models as list_models
    from .errors import UsageError as UsageError
    from .models.backbone import SequenceModel as SequenceModel
    from .models.base import SequenceLayer as SequenceLayer
    from .models.blocks.block import Block as Block
    from .models.build import load_model as load_model
    from .models.dss import DSS as DSS
    from .models.fractal import Fractal as Fractal
    from .models.lru import LRU as LRU
    from .models.marks import mark_parameters as mark_parameters
    from .models.marks import no_weight_decay as no_weight_decay
    from .models.published import load_published as load_published
    from .models.s4 import S4 as S4
    from .models.s4d import S4D as S4D
    from .models.s5 import S5 as S5
    from .models.transformer import Attention as Attention
    from .ops.scan import scan as scan
    from .registry import list_alphas as list_alphas
    from .registry import list_datasets as list_datasets
    from .registry import list_layers as list_layers
    from .registry import list_measures as list_measures
    from .registry import register_alpha as register_alpha
    from .registry import register_dataset as register_dataset
    from .registry import register_layer as register_layer
    from .registry import register_measure as register_measure
    from .training.optim import explain_groups as explain_groups
    from .training.optim import parameter_groups as parameter_groups

__version__ = "0.1.0"

_EXPORTS = {
    "Fractal": "models.fractal",
    "S4": "models.s4",
    "S4D": "models.s4d",
    "S5": "models.s5",
    "DSS": "models.dss",
    "LRU": "models.lru",
    "Attention": "models.transformer",
    "SequenceLayer": "models.base",
    "SequenceModel": "models.backbone",
    "Block": "models.blocks.block",
    "create_model": "create",
    "list_models": "create",
    "load_model": "models.build",
    "parameter_groups": "training.optim",
    "explain_groups": "training.optim",
    "mark_parameters": "models.marks",
    "no_weight_decay": "models.marks",
    "load_published": "models.published",
    "scan": "ops.scan",
    "hippo": "hippo",
    "state": "state",
    "interop": "interop",
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
