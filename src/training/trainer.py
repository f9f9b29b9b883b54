"""Build the lightning Trainer of a configuration, and check its devices and steps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.plugins.environments import LSFEnvironment, SLURMEnvironment, TorchElasticEnvironment

from ..config import Config
from ..errors import UsageError


def make_trainer(config: Config, run_dir: Path, callbacks: Sequence[Callback]) -> Trainer:
    """A Trainer whose own logging, sharding and sanity checks are off; our loaders and callbacks do this."""
    options, training = config.trainer, config.training
    trainer = Trainer(
        accelerator=_accelerator(config),
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=options.strategy,
        precision=options.precision,
        sync_batchnorm=options.sync_batchnorm,
        deterministic=options.deterministic,
        gradient_clip_val=options.gradient_clip_val,
        accumulate_grad_batches=options.accumulate_grad_batches,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        max_epochs=training.max_epochs,
        max_steps=-1 if training.max_steps is None else training.max_steps,
        limit_train_batches=training.limit_train_batches,
        limit_val_batches=training.limit_eval_batches,
        limit_test_batches=training.limit_eval_batches,
        default_root_dir=run_dir,
        callbacks=list(callbacks),
        logger=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
    )
    # Lightning's handler of SIGTERM broadcasts the signal, but the other processes do not wait for that broadcast; in
    # our callback all processes agree on a step.
    trainer._signal_connector.register_signal_handlers = lambda: None
    return trainer


def step_counts(config: Config, batches_per_epoch: int) -> tuple[int, int]:
    """Number of optimizer steps of the whole run and of one epoch.

    Args:
        config: of the run.
        batches_per_epoch: of each process. The last step of an epoch accumulates the remaining batches.
    Raises:
        UsageError: more batches are to be accumulated than an epoch has.
    """
    accumulated = config.trainer.accumulate_grad_batches
    if accumulated > batches_per_epoch:
        raise UsageError(
            f"trainer.accumulate_grad_batches={accumulated}, but an epoch has {batches_per_epoch} batch(es) a process, "
            f"and a step ends with its epoch. Accumulate at most {batches_per_epoch}, or lower training.batch_size."
        )
    per_epoch = math.ceil(batches_per_epoch / accumulated)
    ends = [config.training.max_steps]
    if config.training.max_epochs is not None:
        ends.append(config.training.max_epochs * per_epoch)
    return min(end for end in ends if end is not None), per_epoch


def check_devices(config: Config) -> None:
    """Refuse devices that this machine does not have, and several machines without a launcher.

    Raises:
        UsageError: more GPUs are requested than exist, far more processes than cores, float16 on a CPU, or several
            nodes outside a cluster.
    """
    devices = config.trainer.devices
    if config.trainer.num_nodes > 1 and not _in_cluster():
        raise UsageError(
            f"trainer.num_nodes={config.trainer.num_nodes}, but nothing here says which of the machines this is, so "
            f"the run would wait for the others forever. Start it with srun (SLURM) or torchrun, or set MASTER_ADDR "
            f"and NODE_RANK on every machine."
        )
    if _accelerator(config) == "cpu":
        if config.trainer.precision == "16-mixed":
            raise UsageError(
                "trainer.precision=16-mixed (float16, the loss scaled) is for GPUs; on a CPU bfloat16 takes its place: "
                "trainer.precision=bf16-mixed."
            )
        most = max(16, 4 * (os.cpu_count() or 1))
        if isinstance(devices, int) and devices > most:
            raise UsageError(
                f"trainer.devices={devices} would start as many processes on {os.cpu_count()} core(s). "
                f"Take at most {most}; a single process already uses all cores."
            )
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        raise UsageError(
            "A GPU was asked for, but torch finds none here. Use trainer=cpu (for several processes: trainer=ddp "
            "trainer.accelerator=cpu trainer.devices=2), or check the driver and the build of torch."
        )
    if isinstance(devices, int) and devices > found:
        raise UsageError(f"trainer.devices={devices}, but this machine has {found} GPU(s).")


def _in_cluster() -> bool:
    """Whether the environment gives this process its place among several machines."""
    detected = any(kind.detect() for kind in (SLURMEnvironment, TorchElasticEnvironment, LSFEnvironment))
    return detected or {"MASTER_ADDR", "NODE_RANK"} <= os.environ.keys() or "OMPI_COMM_WORLD_SIZE" in os.environ


def _accelerator(config: Config) -> str:
    if config.trainer.accelerator != "auto":
        return config.trainer.accelerator
    # Not lightning's "auto": on a Mac that takes MPS, which lacks float64 and much of complex64.
    return "gpu" if torch.cuda.is_available() else "cpu"
