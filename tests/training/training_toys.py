"""The toy experiment of tests/training/user_configs, composed."""

from __future__ import annotations

from pathlib import Path

from fractal_ssm.config import Config, compose

FOLDER = Path(__file__).parent


def compose_toy(*overrides: str) -> Config:
    """The configuration that the command line would compose; `toy_parts` must be importable when it is run."""
    return compose(
        ["experiment=toy", "trainer.progress_bar=false", *overrides], config_dir=str(FOLDER / "user_configs")
    )
