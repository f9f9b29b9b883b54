"""`python -m train`: compose, validate, build, fit, test on the best-validation checkpoint, record.

torch and lightning are imported when a run begins, not before: `--help` and `--cfg job` answer at once.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .arguments import in_order
from .config import Config, check_options, register_schema, to_yaml, typed
from .config_errors import explain, explain_value_error
from .errors import UsageError

if TYPE_CHECKING:
    from .data.base import SequenceData
    from .models.backbone import SequenceModel

register_schema()

# What a model is told by its dataset rather than by the configuration.
_DATA_FACTS = ("n_classes", "n_tokens", "d_input", "l_max", "task")


def main() -> None:
    """Entry point of the command line.

    Exit status: 0 after a finished run, 2 for a mistake of the user, 1 for a run that failed, 130 after Ctrl-C.
    """
    # Hydra prints composition errors itself and exits, unless this is set: then they come here to be explained.
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        _check_working_folder()
        sys.argv = [sys.argv[0], *in_order(sys.argv[1:])]
        _job()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, `head` say, had enough; the interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except RecursionError:
        _leave("Error: a value is nested too deep, or an interpolation ${...} leads back to itself.", 2)
    except UsageError as error:
        _leave(f"Error: {error}", 2)
    except KeyboardInterrupt as interrupt:
        _leave(str(interrupt) or "Interrupted.", 130)
    except (HydraException, OmegaConfBaseException) as error:
        if full_error:
            raise
        _leave(f"Error: {explain(error)}", 2)
    except ValueError as error:
        message = explain_value_error(error)
        if full_error or message is None:
            raise
        _leave(f"Error: {message}", 2)


@hydra.main(config_path="pkg://fractal_ssm.configs", config_name="config", version_base="1.3")
def _job(cfg: DictConfig) -> float:
    """One run of hydra; the value it returns is what a sweeper maximises."""
    from .training.diagnosis import NotFinite

    hydra_config = HydraConfig.get()
    try:
        OmegaConf.resolve(cfg)
        OmegaConf.set_readonly(cfg, True)
        config = typed(cfg)
        _drop_leftovers(config, hydra_config.overrides.task)
        _check_launcher(config, hydra_config)
        if not hydra_config.run.dir.strip():
            raise UsageError("hydra.run.dir is empty: name a folder, or leave it out for one in runs_dir.")
        config.data_dir = to_absolute_path(config.data_dir)
        choices = {key: value for key, value in hydra_config.runtime.choices.items() if not key.startswith("hydra/")}
        _treat_denormals_as_zero()
        facts = run(config, Path(hydra_config.runtime.output_dir), choices, hydra_config.overrides.task)
    except (UsageError, OmegaConfBaseException) as error:
        _remove_if_empty(Path(hydra_config.runtime.output_dir))
        _leave(f"Error: {explain(error)}", 2)
    except NotFinite as error:
        _leave(f"Stopped: {error}", 1)
    return facts["metrics"]["val"]["accuracy"]


def run(
    config: Config, run_dir: Path, choices: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Train and test one configuration, and leave a run folder that says what was done.

    Args:
        config: from `fractal_ssm.config.compose`, or the command line.
        run_dir: the run folder: config.yaml, record.json, metrics.csv, curves.png, checkpoints/.
        choices: group -> option of the configuration, for the record.
        overrides: what was set for this run beyond its files, as key=value, for the record.
    Returns:
        The facts of record.json.
    Raises:
        UsageError: a mistake in the configuration; nothing heavy has begun, or the data says so.
        NotFinite: the training diverged.
        KeyboardInterrupt: Ctrl-C; the record says "interrupted" and last.ckpt can be resumed.
    """
    data = build_data(config)
    check_model(config, data)
    # Lightning takes seconds to import: a mistake in the configuration is told before.
    from .training.session import Session
    from .training.trainer import check_devices

    check_devices(config)
    session = Session(config, run_dir)
    session.begin(to_yaml(config), choices or {}, overrides)
    with session.recording_failures(), warnings.catch_warnings():
        _quieten_lightning()
        data.prepare()
        started = time.monotonic()
        session.build(lambda: build_model(config.model, data_facts(data)), data, data_facts(data))
        session.fit()
        session.test()
        return session.finish(time.monotonic() - started)


def build_data(config: Config) -> SequenceData:
    """The dataset of a configuration, not yet prepared; plug-ins are imported first."""
    from .registry import datasets, import_plugins

    import_plugins(config.imports)
    name = config.dataset["name"]
    datasets.check(config.dataset, runtime=["data_dir"])
    options = {key: value for key, value in config.dataset.items() if key != "name"}
    check_options(f"The dataset '{name}'", datasets.get(name), options, ["data_dir"])
    return datasets.build(config.dataset, data_dir=Path(config.data_dir).absolute())


def build_model(node: Mapping[str, Any], facts: Mapping[str, Any]) -> SequenceModel:
    """The model of a `model` node for a dataset with these facts (`data_facts`).

    Raises:
        UsageError: an unknown layer or option, or a value that it refuses.
    """
    from .models.backbone import SequenceModel
    from .registry import layers

    check_options("model", SequenceModel, node, _DATA_FACTS)
    layer = node["layer"]
    runtime = ["d_model", "l_max"]
    layers.check(layer, runtime)
    options = {key: value for key, value in layer.items() if key != "name"}
    check_options(f"The layer '{layer['name']}'", layers.get(layer["name"]), options, runtime)
    return SequenceModel(**node, **facts)


def data_facts(data: SequenceData) -> dict[str, Any]:
    """What a model has to know of the data; plain values, so that a checkpoint can hold them."""
    return {name: getattr(data, name) for name in _DATA_FACTS}


def check_model(config: Config, data: SequenceData) -> None:
    """Build one block of the model, so that a wrong name, option or value is told before data is made.

    Where a split is to be scored at another time step, the block is tried on it: a layer without one refuses.
    """
    from .data.base import SPLITS

    from .models.backbone import SequenceModel

    facts = data_facts(data) if data.n_tokens or data.d_input else {**data_facts(data), "n_tokens": 2}
    # Before one block stands for all of them: a wrong number of blocks is a mistake too.
    check_options("model", SequenceModel, config.model, _DATA_FACTS)
    model = build_model({**config.model, "n_layers": min(1, config.model.get("n_layers", 1))}, facts).eval()
    for dt_scale in {data.dt_scale(split) for split in SPLITS} - {1.0}:
        _try_step(model, dt_scale, data.d_input)


def _try_step(model: SequenceModel, dt_scale: float, d_input: int | None) -> None:
    """Two sequences of two zeros (one pair, for retrieval) at this time step."""
    import torch

    zeros = torch.zeros(2, 2, dtype=torch.int64) if d_input is None else torch.zeros(2, 2, d_input)
    with torch.no_grad():
        model(zeros, dt_scale=dt_scale)


def load_model(checkpoint: str | Path) -> SequenceModel:
    """The trained model of a checkpoint, in eval mode on the CPU.

    >>> model = load_model("runs/lra/fractal-listops/.../checkpoints/best.ckpt")  # doctest: +SKIP
    """
    from .registry import import_plugins
    from .training.resume import load_checkpoint

    stored = load_checkpoint(checkpoint)
    import_plugins(stored["run"]["config"]["imports"])
    model = build_model(stored["run"]["config"]["model"], stored["run"]["data"])
    prefix = "model."
    weights = {key.removeprefix(prefix): value for key, value in stored["state_dict"].items() if key.startswith(prefix)}
    model.load_state_dict(weights)
    return model.eval()


def _drop_leftovers(config: Config, overrides: Sequence[str]) -> None:
    """After model.layer.name=X on the command line: without the options of the files that X does not have.

    Hydra merges, so those of the layer that the files name stay behind. What the user set is kept, and refused later.
    """
    settings = [override.lstrip("+") for override in overrides]
    layer = config.model.get("layer")
    if not isinstance(layer, dict) or not any(setting.startswith("model.layer.name=") for setting in settings):
        return
    from .registry import import_plugins, layers

    import_plugins(config.imports)
    prefix = "model.layer."
    given = {re.split(r"[.=]", text.removeprefix(prefix))[0] for text in settings if text.startswith(prefix)}
    left = sorted(set(layer) - {"name"} - given - set(layers.options(layer["name"], ["d_model", "l_max"])))
    for key in left:
        del layer[key]
    if left:
        print(f"Left out, since the layer '{layer['name']}' has no such option: {', '.join(left)}.")


def _treat_denormals_as_zero() -> None:
    """Numbers below 1e-38 are 0, in this thread and in those that it starts.

    A CPU computes with them many times slower, and over a long sequence the adjoints of fast modes decay into them: a
    step of FRACTAL on 4,096 positions, read from the last one, took three times as long. Only the command line does
    this, whose process is its own: threads keep the setting, so it could not be taken back.
    """
    import torch

    torch.set_flush_denormal(True)


def _check_launcher(config: Config, hydra_config: Any) -> None:
    """Refuse combinations in which several processes would each start the whole sweep."""
    if hydra_config.mode != RunMode.MULTIRUN:
        return
    if config.resume is not None:
        raise UsageError("resume continues one run; a sweep (-m) cannot resume. Resume its runs one by one.")
    if config.trainer.strategy == "ddp" and "BasicLauncher" in hydra_config.launcher["_target_"]:
        raise UsageError(
            "A sweep (-m) with trainer.strategy=ddp and hydra's basic launcher would start the whole sweep again in "
            "every process. Run the jobs one by one without -m, or give each its own process: "
            "hydra/launcher=joblib hydra.launcher.n_jobs=1, or hydra/launcher=submitit_slurm "
            "(pip install 'fractal-ssm[sweep]')."
        )


def _quieten_lightning() -> None:
    """Silence advice that does not apply here; everything else stays."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*exists and is not empty.*")
    # Our batches do go on where the checkpoint was taken (Loaders.train_dataloader).
    warnings.filterwarnings("ignore", ".*checkpoint that ended before the epoch ended.*")
    warnings.filterwarnings("ignore", ".*isinstance\\(treespec, LeafSpec\\).*", FutureWarning)


def _remove_if_empty(run_dir: Path) -> None:
    """Take back the folder that hydra made for a run that never began; never the one that the user stands in."""
    if run_dir.resolve() != Path.cwd() and not any(run_dir.iterdir()):
        run_dir.rmdir()


def _check_working_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "The folder that this was started in does not exist any more. Go to one that does: cd"
        ) from None


def _leave(message: str, status: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
