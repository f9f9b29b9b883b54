"""Profile training steps: run a configuration for a few steps, from loader to optimizer, and time each part.

    python -m scripts.profile_step experiment=lra/s5-listops training.batch_size=4 \\
        dataset.source=generated dataset.n_train=100 dataset.n_val=4 dataset.n_test=4
    python -m scripts.profile_step experiment=lra/s5-pathx training.batch_size=2 dataset.source=generated dataset.n=40

Arguments after the options are overrides as for `python -m train`. The first steps warm up, the next are timed without
a profiler (samples per second, peak memory), and the last are profiled: the time of an operator counts for the part of
the model that called it, that of a backward operator for the part of its forward. "Idle" is the memory of the process
before the data and the model are built. The rows go to <out>/<name>.csv; `scripts.bench` puts those in
docs/results/steps into docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import Profiler
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from fractal_ssm.config import Config, compose, to_yaml
from fractal_ssm.models.build import build_model, data_facts
from fractal_ssm.train import build_data
from fractal_ssm.training.session import Session
from scripts.bench.timing import Table, forget_peak, peak_mb, resident_mb

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("part", "forward_ms", "backward_ms", "share", "step_ms", "samples_s", "peak_mb", "threads", "torch")
# Prefix of profiler ranges that mark a part of the step; the name of the part follows.
_MARK = "part: "
# Parts by words in the names of lightning's actions; the first match counts.
_LIGHTNING = {
    "train_dataloader_next": "loader",
    "batch_to_device": "loader",
    "on_before_optimizer_step": "gradient check",
    "[Callback]": "callbacks",
    "training_step": "loss and accuracy",
}
_REST = "lightning and the rest"


class Marks(Profiler):
    """Marks lightning's actions as ranges for torch's profiler."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, record_function] = {}

    def start(self, action_name: str) -> None:
        for words, part in _LIGHTNING.items():
            if words in action_name:
                self._open[action_name] = record_function(_MARK + part)
                self._open[action_name].__enter__()
                return

    def stop(self, action_name: str) -> None:
        if action_name in self._open:
            self._open.pop(action_name).__exit__(None, None, None)


def mark_model(model: nn.Module) -> None:
    """Mark the parts of a `SequenceModel`: encoder, norm, layer, mixer, the rest of a block, head.

    A module inside a marked part (the mixer's dropout) counts for that part unless it is marked itself.
    """
    parts = [(model, "pooling"), (model.encoder, "encoder"), (model.head, "head"), (model.final_norm, "norm")]
    for block in model.blocks:
        parts += [(block, "residual"), (block.norm, "norm"), (block.layer, "layer"), (block.mixer, "mixer")]
        parts.append((block.feed_forward, "feed-forward"))
    for module, part in parts:
        if module is not None:
            module.forward = _marked(module.forward, part)


def _marked(forward: Callable[..., Any], part: str) -> Callable[..., Any]:
    def run(*inputs: Any, **options: Any) -> Any:
        with record_function(_MARK + part):
            return forward(*inputs, **options)

    return run


class Window(Callback):
    """Skips `warmup` steps, times the next `steps`, and profiles as many after them.

    Attributes:
        seconds, samples, peak: duration (loading included), number of samples, and peak memory in MB of the timed
            steps.
        shape: shape of the inputs of the first timed step, as text.
        profiled_seconds, events: duration and profiler events of the profiled steps.
    """

    def __init__(self, warmup: int, steps: int):
        self.samples, self._first, self._steps = 0, warmup, steps
        self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        now, step = time.perf_counter(), trainer.global_step - self._first
        if step == 0:
            self.shape = f"inputs {tuple(batch.inputs.shape)}"
            forget_peak()
            self._mark = time.perf_counter()
        elif step == self._steps:
            self.seconds, self.peak = now - self._mark, peak_mb()
            mark_model(pl_module.model)
            self._profile.start()
            self._mark = time.perf_counter()
        elif step == 2 * self._steps:
            self.profiled_seconds = now - self._mark
            self._profile.stop()
            self.events = self._profile.events()
            trainer.should_stop = True
        if 0 <= step < self._steps:
            self.samples += len(batch.targets)


def shares(events: Iterable[FunctionEvent]) -> dict[str, list[float]]:
    """Part -> [forward ms, backward ms] over all events, counting the time of an event without its children.

    Autograd's sequence number links a backward event to its forward event.
    """
    part_of_forward: dict[int, str] = {}
    backward: list[tuple[int, float]] = []
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        part, sequence = _place(event)
        if sequence is None:
            if event.sequence_nr >= 0:
                part_of_forward[event.sequence_nr] = part
            found[part][0] += event.self_cpu_time_total / 1e3
        else:
            backward.append((sequence, event.self_cpu_time_total / 1e3))
    for sequence, ms in backward:
        found[part_of_forward.get(sequence, "gradients of parameters")][1] += ms
    return dict(found)


def _place(event: FunctionEvent) -> tuple[str, int | None]:
    """The part that contains an event, and the sequence number of the backward node around it (None in the forward)."""
    above: FunctionEvent | None = event
    while above is not None:
        if above.name.startswith("autograd::engine::evaluate_function"):
            return _REST, above.sequence_nr
        if above.name.startswith(_MARK):
            return above.name.removeprefix(_MARK), None
        if above.name.startswith("Optimizer."):
            return "optimizer", None
        above = above.cpu_parent
    return _REST, None


def run(config: Config, warmup: int, steps: int) -> tuple[Window, float]:
    """A few steps of the configured run in a temporary folder, and the idle memory in MB."""
    config.training.limit_eval_batches = 1
    idle = resident_mb()
    data = build_data(config)
    data.prepare()
    window = Window(warmup, steps)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        session = Session(config, Path(folder) / "run")
        session.begin(to_yaml(config), {})
        session.build(lambda: build_model(config.model, data_facts(data)), data, data_facts(data))
        session.trainer.profiler = Marks()
        session.trainer.callbacks.append(window)
        session.fit()
    return window, idle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="+", help="overrides of the configuration, as for python -m train")
    parser.add_argument("--name", default="", help="name of the file (default: the experiment)")
    parser.add_argument("--steps", type=int, default=6, help="steps to time, and to profile after that")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the timed ones")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads (default: as torch chooses)")
    parser.add_argument("--out", default=str(ROOT / "docs/results/steps"), help="folder of the CSV")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    window, idle = run(compose(options.overrides), options.warmup, options.steps)
    name = options.name or next(word.rpartition("/")[2] for word in options.overrides if word.startswith("experiment="))
    table = Table(Path(options.out) / f"{name}.csv", COLUMNS)
    table.add(part=f"whole step, {window.shape}", share=1.0, step_ms=1e3 * window.seconds / options.steps,
              samples_s=window.samples / window.seconds, peak_mb=window.peak - idle,
              threads=torch.get_num_threads(), torch=torch.__version__)  # fmt: skip
    found = shares(window.events)
    found[_REST] = [1e3 * window.profiled_seconds - sum(map(sum, found.values())), 0.0]
    for part, times in sorted(found.items(), key=lambda item: -sum(item[1])):
        forward, backward = (ms / options.steps for ms in times)
        share = sum(times) / (1e3 * window.profiled_seconds)
        table.add(part=part, forward_ms=forward, backward_ms=backward, share=share)
    table.close()


if __name__ == "__main__":
    main()
