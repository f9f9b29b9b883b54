"""The typed root of the configuration: its keys, their types and defaults, and checks of their values.

Hydra refuses an unknown key on the command line but silently merges a misspelt one from a file unless the root is
typed. These dataclasses are that type. `model` and `dataset` are nodes of registered parts (`name` plus options), whose
keys are checked against the part's signature when it is built.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Optional, Union

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from .errors import UsageError, did_you_mean, unknown
from .ranges import check_numbers

ROLES = ("A", "B", "C", "D", "dt")
SCHEDULES = ("cosine", "cosine-s5", "inverse-sqrt", "constant")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed")
# Optimizers of torch, in lower case, without LBFGS (it re-evaluates the loss) and SparseAdam (no gradient is sparse).
OPTIMIZERS = ("adamw", "adam", "nadam", "radam", "adamax", "sgd", "muon", "adafactor", "adagrad", "adadelta")
OPTIMIZERS += ("rmsprop", "rprop", "asgd")
LOGGERS = ("tensorboard", "wandb", "mlflow")
ACCELERATORS = ("auto", "cpu", "gpu")
STRATEGIES = ("auto", "ddp")
# Keys of earlier versions, with the advice that the message gives.
RENAMED = {
    "training.target_accuracy": "Set training.target, a value of the task's main metric: training.target=0.95 ends the "
    "fit at an accuracy of 95 %."
}


@dataclass
class OptimizerConfig:
    """An optimizer of torch, with parameter groups derived from each parameter's role (`SequenceLayer.roles`).

    name: torch's class in lower case, one of `OPTIMIZERS`. "muon" updates the matrices of the blocks, and AdamW the
        parameters of the sequence layers, vectors, encoder and head.
    lr, weight_decay: for every parameter without a special case below.
    ssm_lr: learning rate of the roles in `ssm_roles`; None means `lr`.
    ssm_roles: roles trained at `ssm_lr`, out of A, B, C, D, dt.
    undecayed_roles: roles without weight decay, whatever their learning rate.
    decay_norm_and_bias: whether norms and biases between encoder and decoder are decayed too.
    betas, eps: for the Adam family, and for AdamW beside Muon; eps also for RMSprop, Adagrad and Adadelta.
    options: further arguments of the optimizer, by torch's names: optimizer.options.momentum=0.9.
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.05
    ssm_lr: Optional[float] = 1e-3
    ssm_roles: list[str] = field(default_factory=lambda: ["A", "B", "dt"])
    undecayed_roles: list[str] = field(default_factory=lambda: ["A", "B", "dt"])
    decay_norm_and_bias: bool = False
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class SchedulerConfig:
    """Factor on every learning rate, per optimizer step.

    name: one of `SCHEDULES`; their formulas are in training/scheduler.py.
    total_steps: step at which the schedule ends; None means the last step of training.
    warmup_steps, warmup_epochs, warmup_fraction: length of the linear warm-up, in steps, in epochs, or as a share of
        the total; at most one of them.
    min_factor: the factor at the end of the cosine.
    """

    name: str = "cosine"
    total_steps: Optional[int] = None
    warmup_steps: Optional[int] = None
    warmup_epochs: Optional[float] = None
    warmup_fraction: Optional[float] = None
    min_factor: float = 0.0


@dataclass
class TrainerConfig:
    """Where and how the steps are run; the names are those of lightning's Trainer.

    num_nodes: machines of a cluster; SLURM or torchrun starts the processes.
    precision: "32-true", "64-true", or mixed: "bf16-mixed" (GPU and CPU), "16-mixed" (GPU; the loss is scaled). Mixed
        precision computes matrix products and convolutions of the dense parts in 16 bits; parameters and their
        gradients, optimizer states, the state space models, norms and the loss stay in float32.
    gradient_clip_val: largest norm of the gradient of a step, taken after accumulation; None for no clipping.
    accumulate_grad_batches: batches per step and process, at most those of an epoch. The gradient is the mean over
        their samples, as for one large batch, even if batches differ in size or an epoch ends inside a step. Unlike in
        one large batch, batch norms see each batch by itself, and dropout draws a new mask for each.
    progress_seconds: seconds between lines of progress if there is no bar (as in a log file); None prints none.
    """

    accelerator: str = "auto"
    devices: Union[int, str] = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    sync_batchnorm: bool = False
    deterministic: bool = False
    gradient_clip_val: Optional[float] = None
    accumulate_grad_batches: int = 1
    log_every_n_steps: int = 50
    progress_bar: bool = True
    progress_seconds: Optional[float] = 30.0


@dataclass
class TrainingConfig:
    """How long and on what batches.

    batch_size: samples per batch and device; eval_batch_size: the same for validation and test, None for batch_size.
    max_epochs, max_steps: training ends at whichever comes first; at least one of them must be set.
    max_minutes: wall-clock limit of the fit; the weights reached by then are validated and tested.
    patience: the fit ends after this many validations in a row without a better one; None never ends it early.
    min_delta: least improvement of a validation that counts for `patience`.
    ema_decay: d in (0, 1). The moving average w <- d w + (1 - d) (weights of the step), which includes batch norms'
        statistics, is validated, tested and saved; training itself continues from its own weights. None: no average.
    checkpoint_minutes: longest time between writes of last.ckpt, which is also written after every validation; None
        writes it only then.
    checkpoint_steps: optimizer steps between checkpoints kept as step-<step>.ckpt; None keeps none.
    keep_checkpoints: how many of the newest step-<step>.ckpt are kept; None keeps all.
    requeue: for SLURM: SIGUSR1 puts the job into the queue again (`scontrol requeue`), and a command whose run folder
        holds last.ckpt resumes from it. The folder is then named after the job unless hydra.run.dir is set.
    loss: for regression with model.output=point: "mse" (also null), "mae" or "huber", which is quadratic up to an error
        of 1 and linear beyond. Other outputs and tasks have a fixed loss.
    target: the fit ends at the first validation whose main metric reaches it: an accuracy of at least `target`, in
        (0, 1], or for regression a mean squared error of at most `target`.
    bucket_by_length: batches of samples of similar length (less padding); needs a dataset that knows its lengths.
    num_workers: loader processes; the order of the samples does not depend on it.
    train_eval_samples: how many training samples the final table scores with the selected checkpoint.
    limit_train_batches, limit_eval_batches: at most this many batches of an epoch / of a validation or test pass.
    stuck_steps: steps at chance level on a binary task after which a hint is printed.
    """

    batch_size: int = 32
    eval_batch_size: Optional[int] = None
    max_epochs: Optional[int] = 10
    max_steps: Optional[int] = None
    max_minutes: Optional[float] = None
    patience: Optional[int] = None
    min_delta: float = 0.0
    ema_decay: Optional[float] = None
    checkpoint_minutes: Optional[float] = 10.0
    checkpoint_steps: Optional[int] = None
    keep_checkpoints: Optional[int] = None
    requeue: bool = False
    loss: Optional[str] = None
    target: Optional[float] = None
    bucket_by_length: bool = False
    num_workers: int = 0
    train_eval_samples: int = 2000
    limit_train_batches: Optional[int] = None
    limit_eval_batches: Optional[int] = None
    stuck_steps: int = 2000


@dataclass
class Config:
    """The root.

    seed: seed of initial weights, sample order and dropout.
    imports: modules of other packages that register layers, measures, alphas or datasets.
    data_dir: root of all data; a relative path is relative to the folder in which the command was started.
    runs_dir: root of all run folders, likewise.
    resume: a checkpoint of an earlier run (`.../checkpoints/last.ckpt`), which is continued in its own folder.
    logger: services that receive the values of metrics.csv, name -> options (configs/logger).
    """

    seed: int = 0
    imports: list[str] = field(default_factory=list)
    data_dir: str = "data"
    runs_dir: str = "runs"
    resume: Optional[str] = None
    model: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    logger: dict[str, Any] = field(default_factory=dict)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


def register_schema() -> None:
    """Make the typed root known to hydra as `schema`, and the functions that name a run folder."""
    schema = OmegaConf.structured(Config)
    for node in (schema.model, schema.dataset, schema.optimizer.options, schema.logger):
        # Their keys depend on the chosen part; without struct mode `model.layer.alpha.name=x` needs no `+`.
        OmegaConf.set_struct(node, False)
    ConfigStore.instance().store("schema", schema)
    OmegaConf.register_new_resolver("run_name", _run_name, replace=True)
    OmegaConf.register_new_resolver("run_folder", _run_folder, replace=True)
    OmegaConf.register_new_resolver("filled", _filled, replace=True)
    OmegaConf.register_new_resolver("started", _started, replace=True)


def _run_name(experiment: str | None, layer: str, dataset: str) -> str:
    """Folder name of a run: its experiment, or layer and dataset when there is none."""
    return experiment or f"{layer}-{dataset}"


def _started(requeue: bool, now: str) -> str:
    """Distinguishes runs: the starting time, or the number of the SLURM job, which requeueing does not change."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"job{job}" if requeue and job else now


def _filled(key: str, value: str) -> str:
    """The value; blank ones are refused, because as a path they mean the working directory or the root."""
    if not value.strip():
        raise UsageError(f"{key} needs a value, {key}=..., got {value!r}.")
    return value


def _run_folder(resume: str | None, default: str) -> str:
    """The run folder: that of the checkpoint (`<run>/checkpoints/last.ckpt`) for a resumed run, else the default."""
    if resume is None:
        return default
    checkpoint = Path(resume).absolute()
    if not checkpoint.is_file() or checkpoint.parent.name != "checkpoints":
        raise UsageError(
            f"resume takes a checkpoint in a run folder, <run folder>/checkpoints/last.ckpt; "
            f"{resume!r} is not one{'' if checkpoint.is_file() else ' (no such file)'}."
        )
    return str(checkpoint.parent.parent)


def typed(cfg: DictConfig) -> Config:
    """The composed configuration as plain, fully resolved Python objects, checked.

    Raises:
        UsageError: a value out of range, see `validate`.
    """
    config = OmegaConf.to_object(cfg)
    if not isinstance(config, Config):
        raise UsageError(f"The configuration is a {type(config).__name__}, not built on the typed root `schema`.")
    _refuse_additions(cfg, config)
    validate(config)
    return config


def _refuse_additions(cfg: DictConfig, part: Any, prefix: str = "") -> None:
    """Refuse keys that `+key=value` forced into a typed node, where nothing reads them."""
    known = [entry.name for entry in fields(part)]
    for key in cfg:
        if renamed := RENAMED.get(f"{prefix}{key}"):
            raise UsageError(f"There is no key '{prefix}{key}' any more. {renamed}")
        if key not in known:
            raise UsageError(f"Unknown key '{prefix}{key}'. Known: {', '.join(known)}.{did_you_mean(str(key), known)}")
        if is_dataclass(getattr(part, key)):
            _refuse_additions(cfg[key], getattr(part, key), f"{prefix}{key}.")


def compose(overrides: Sequence[str] = (), config_dir: str | None = None) -> Config:
    """The configuration that `python -m train OVERRIDES` would run, for notebooks and tests.

    >>> compose(["seed=3"]).seed
    3
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    register_schema()
    extra = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).absolute()}]"]
    with initialize_config_module("fractal_ssm.configs", version_base="1.3"):
        return typed(hydra_compose("config", [*extra, *overrides]))


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML that plain OmegaConf reads back."""
    return OmegaConf.to_yaml(OmegaConf.create(asdict(config)))


def validate(config: Config) -> None:
    """Refuse values that would otherwise fail, or mislead, only after expensive work has begun.

    Raises:
        UsageError: names the key, the value and what is allowed.
    """
    optimizer, scheduler, trainer, training = config.optimizer, config.scheduler, config.trainer, config.training
    check_numbers(config)
    for key in ("data_dir", "runs_dir", "resume"):
        if getattr(config, key) is not None:
            _filled(key, getattr(config, key))
    for key in ("ssm_roles", "undecayed_roles"):
        for role in getattr(optimizer, key):
            _one_of(f"optimizer.{key}: role", role, ROLES)
    _one_of("optimizer.name", optimizer.name, OPTIMIZERS)
    for logger in config.logger:
        _one_of("logger", logger, LOGGERS)
    _one_of("scheduler.name", scheduler.name, SCHEDULES)
    _one_of("trainer.precision", trainer.precision, PRECISIONS)
    _one_of("trainer.accelerator", trainer.accelerator, ACCELERATORS)
    _one_of("trainer.strategy", trainer.strategy, STRATEGIES)
    if training.max_epochs is None and training.max_steps is None:
        raise UsageError("Training needs an end: set training.max_epochs or training.max_steps.")
    lengths = ("warmup_steps", "warmup_epochs", "warmup_fraction")
    warmups = [key for key in lengths if getattr(scheduler, key) is not None]
    if len(warmups) > 1:
        raise UsageError(
            f"scheduler takes one length of the warm-up, got {' and '.join(warmups)}; set the others to null."
        )
    for node, part in (("model.layer", config.model.get("layer")), ("dataset", config.dataset)):
        if not isinstance(part, dict) or "name" not in part:
            raise UsageError(f"{node} needs a 'name' and may hold options of that name, got {part!r}.")


def _one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise unknown(key, value, allowed)
