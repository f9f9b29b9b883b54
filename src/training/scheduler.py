"""Learning-rate schedules as a factor per optimizer step, the same for every parameter group."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import SchedulerConfig
from ..errors import UsageError
from ..ranges import check_numbers


def warmup_length(config: SchedulerConfig, total_steps: int, steps_per_epoch: int) -> int:
    """Number of linear warm-up steps, from whichever of the three options is set; 0 if none is."""
    if config.warmup_steps is not None:
        return config.warmup_steps
    if config.warmup_epochs is not None:
        return round(config.warmup_epochs * steps_per_epoch)
    return round((config.warmup_fraction or 0.0) * total_steps)


def schedule(config: SchedulerConfig, training_steps: int, steps_per_epoch: int) -> Callable[[int], float]:
    """The factor f(t) on the learning rate of update t = 0, 1, ..., with w warm-up steps and T steps in all.

    cosine (S4):        t / w before w, then m + (1 - m) (1 + cos(pi (t - w) / (T - w))) / 2; m after T
    cosine-s5 (S5):     f(0) = 1, f(t) = g(t - 1) with g(s) = (s + 1) / w before w,
                        then m + (1 - m) (1 + cos(pi min(s, T - w) / (T - w))) / 2
    inverse-sqrt (LRA): min(1, t / w) / sqrt(max(t, w, 1)), so that lr is multiplied by 1 / sqrt(steps)
    constant:           t / w before w, then 1

    Args:
        training_steps: optimizer steps of the run; T unless `total_steps` is set.
        steps_per_epoch: optimizer steps of an epoch, for `warmup_epochs`.
    Raises:
        UsageError: a warm-up longer than the schedule, or an invalid number (NaN, infinite, negative).
    """
    check_numbers(config, "scheduler.")
    total = config.total_steps or training_steps
    warmup = warmup_length(config, total, steps_per_epoch)
    if warmup > total:
        raise UsageError(
            f"The warm-up takes {warmup} steps but the schedule has {total}. Shorten it (scheduler.warmup_steps, "
            f".warmup_epochs or .warmup_fraction) or train longer (training.max_epochs, training.max_steps)."
        )

    def ramp(step: int) -> float:
        return step / warmup if step < warmup else 1.0

    def cosine(step: int) -> float:
        progress = min(step / max(1, total - warmup), 1.0)
        return config.min_factor + (1 - config.min_factor) * 0.5 * (1 + math.cos(math.pi * progress))

    def cosine_s4(step: int) -> float:
        return ramp(step) if step < warmup else cosine(step - warmup)

    def cosine_s5(step: int) -> float:
        if step == 0:
            return 1.0
        # S5 sets the rate after an update, with the counter of that update.
        counter = step - 1
        return (counter + 1) / warmup if counter < warmup else cosine(counter)

    def inverse_sqrt(step: int) -> float:
        return ramp(step) / math.sqrt(max(step, warmup, 1))

    return {"cosine": cosine_s4, "cosine-s5": cosine_s5, "inverse-sqrt": inverse_sqrt, "constant": ramp}[config.name]
