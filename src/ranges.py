"""The allowed range of every number in the configuration, in one table so that none is forgotten."""

from __future__ import annotations

import math
import os
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from .errors import UsageError

# Beyond this float64, which readers of YAML or JSON may use, does not represent every whole number.
LARGEST_INTEGER = 2**53
# Well below the largest float32 (3e38), so that a product does not overflow at once.
_LARGEST_FLOAT = 1e30


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Args:
        low, high: the ends, included unless `open_low` or `open_high`.
        kind: int takes whole numbers only, float both kinds. A bool is not a number.
        word: a string that is allowed as well.
        hint: advice at the end of the message.
    """

    low: float
    high: float = _LARGEST_FLOAT
    kind: type = float
    open_low: bool = False
    open_high: bool = False
    word: str | None = None
    hint: str = ""

    def holds(self, value: Any) -> bool:
        """Whether `value` is a number of this kind in the range; NaN is not."""
        if isinstance(value, bool) or not isinstance(value, (int, float) if self.kind is float else int):
            return False
        above = self.low < value if self.open_low else self.low <= value
        return above and (value < self.high if self.open_high else value <= self.high)

    def check(self, key: str, value: Any) -> None:
        """Refuse a value outside the range.

        Raises:
            UsageError: names the key, what is allowed and the value.
        """
        if self.holds(value) or (self.word is not None and value == self.word):
            return
        also = f", or {self.word}" if self.word else ""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            allowed = f"takes {'a whole number' if self.kind is int else 'a number'}{also}"
        elif self.kind is int and not isinstance(value, int):
            allowed = f"takes a whole number{also}"
        elif isinstance(value, float) and not math.isfinite(value):
            allowed = f"must be a finite number{also}"
        elif self.high == 1:
            allowed = f"must lie in {'(' if self.open_low else '['}{self.low}, 1{')' if self.open_high else ']'}"
        elif value > self.high:
            allowed = f"must be at most {self.high}"
        else:
            allowed = f"must be {'above' if self.open_low else 'at least'} {self.low}{also}"
        raise UsageError(f"{key} {allowed}, got {shown(value)}.{f' {self.hint}' if self.hint else ''}")


def shown(value: Any) -> str:
    """A value as messages print it; integers of thousands of digits, which Python refuses to print, by their size."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)


def _count(low: int, high: int = 10**9, hint: str = "", word: str | None = None) -> Range:
    return Range(low, high, kind=int, hint=hint, word=word)


_LARGEST_STEP = 10**12
_MOST_WORKERS = max(64, 16 * (os.cpu_count() or 1))

RANGES: dict[str, Range] = {
    "seed": _count(0, LARGEST_INTEGER),
    "optimizer.lr": Range(0),
    "optimizer.ssm_lr": Range(0),
    "optimizer.weight_decay": Range(0),
    "optimizer.betas": Range(0, 1, open_high=True),
    # Much smaller values are 0 in float32, and AdamW would divide 0 by 0 for a parameter that never had a gradient.
    "optimizer.eps": Range(1e-30, 1),
    "scheduler.total_steps": _count(1, _LARGEST_STEP),
    "scheduler.warmup_steps": _count(0, _LARGEST_STEP),
    "scheduler.warmup_epochs": Range(0, 1e9),
    "scheduler.warmup_fraction": Range(0, 1, hint="It is a share of the steps."),
    "scheduler.min_factor": Range(0, 1),
    "trainer.devices": _count(1, 4096, word="auto"),
    "trainer.num_nodes": _count(1, 100_000),
    "trainer.gradient_clip_val": Range(0, open_low=True, hint="For no clipping: trainer.gradient_clip_val=null."),
    "trainer.accumulate_grad_batches": _count(1),
    "trainer.log_every_n_steps": _count(1),
    "trainer.progress_seconds": Range(0, 1e9),
    "training.batch_size": _count(1),
    "training.eval_batch_size": _count(1),
    "training.max_epochs": _count(1),
    "training.max_steps": _count(1, _LARGEST_STEP),
    "training.max_minutes": Range(0, 1e9),
    "training.patience": _count(1),
    "training.min_delta": Range(0, 1e9),
    "training.ema_decay": Range(0, 1, open_low=True, open_high=True, hint="Usual are 0.99 to 0.9999."),
    "training.checkpoint_minutes": Range(0, 1e9),
    "training.checkpoint_steps": _count(1, _LARGEST_STEP),
    "training.keep_checkpoints": _count(1),
    "training.target": Range(0, open_low=True, hint="It is a value of the main metric."),
    "training.num_workers": _count(
        0, _MOST_WORKERS, hint=f"Each is a process, and this machine has {os.cpu_count() or 1} core(s)."
    ),
    "training.train_eval_samples": _count(1),
    "training.limit_train_batches": _count(1),
    "training.limit_eval_batches": _count(1),
    "training.stuck_steps": _count(1),
}


def check_numbers(config: Any, prefix: str = "") -> None:
    """Check every number of a configuration (a dataclass of dataclasses) against its range.

    Args:
        prefix: prefix of the keys if `config` is a part: "optimizer." for an OptimizerConfig.
    Raises:
        UsageError: names the key, what is allowed and the value.
        KeyError: `RANGES` lacks a number.
    """
    for key, value, optional in numbers(config, prefix):
        if value is None and optional:
            continue
        if key == "optimizer.betas":
            if not isinstance(value, (list, tuple)) or [RANGES[key].holds(beta) for beta in value] != [True, True]:
                raise UsageError(f"{key} takes two numbers in [0, 1), got {shown(value)}.")
        else:
            RANGES[key].check(key, value)


def numbers(part: Any, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """(dotted key, value, whether it may be None) for every field whose annotation contains int or float."""
    hints = typing.get_type_hints(type(part))
    for field in fields(part):
        value, hint = getattr(part, field.name), hints[field.name]
        if is_dataclass(value):
            yield from numbers(value, f"{prefix}{field.name}.")
        elif hint in (int, float) or {int, float} & set(typing.get_args(hint)):
            yield f"{prefix}{field.name}", value, type(None) in typing.get_args(hint)
