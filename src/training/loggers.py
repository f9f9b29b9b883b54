"""Services that receive the metrics of a run: TensorBoard, Weights & Biases, MLflow, through lightning's loggers.

metrics.csv is always written; the services get the same rows. A service's package is imported only when it is chosen.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from ..files import write_text
from .record import Metrics

# name -> (module that must be installed, lightning's class)
_KINDS = {
    "tensorboard": ("tensorboard", "TensorBoardLogger"),
    "wandb": ("wandb", "WandbLogger"),
    "mlflow": ("mlflow", "MLFlowLogger"),
}
# Options that users cannot set, because they follow from the run folder.
_OURS = ("save_dir", "dir", "id", "run_id", "version", "sub_dir", "resume", "experiment", "kwargs")


def check_loggers(chosen: Mapping[str, Any]) -> None:
    """Refuse loggers that cannot work, before expensive steps begin.

    Args:
        chosen: name -> options.
    Raises:
        UsageError: a package is not installed, or an option does not exist.
    """
    for name, options in chosen.items():
        module, _ = _KINDS[name]
        if find_spec(module) is None:
            raise UsageError(
                f"logger={name} needs the package '{module}', which is not installed. Install it: "
                f"pip install 'fractal-ssm[{name}]', or leave it out: metrics.csv is written in any case."
            )
        if not isinstance(options, Mapping):
            raise UsageError(f"logger.{name} holds options, logger.{name}.KEY=..., got {options!r}.")
        known = _options(name)
        for key in options:
            if key not in known:
                raise unknown(f"option of the logger '{name}'", key, known)


class Loggers:
    """The chosen loggers of a run. A logger that raises is dropped from then on, so that no run ends for its service.

    Args:
        chosen: name -> options.
        folder: of the run. A resumed run continues the same runs of the services, whose ids are in loggers.json.
        say: prints a line.
    """

    def __init__(self, chosen: Mapping[str, Any], folder: Path, say: Callable[[str], None]):
        self._chosen, self._folder, self._say = chosen, folder, say
        self._open: dict[str, Any] = {}

    def begin(self, config: Mapping[str, Any], metrics: Metrics) -> None:
        """Start the loggers and send them the configuration and, from then on, each new row of `metrics`.

        Raises:
            UsageError: a logger does not start.
        """
        metrics.told = self.row
        path = self._folder / "loggers.json"
        # Services refuse a changed configuration of an existing run, and the end of a resumed run may have changed.
        resumed = path.exists()
        ids = json.loads(path.read_text()) if resumed else {}
        for name, options in self._chosen.items():
            with warnings.catch_warnings():
                # Warnings of the services' packages do not concern the user.
                warnings.simplefilter("ignore")
                try:
                    logger = _make(name, options, self._folder, ids.get(name))
                    if not (resumed and name in ids):
                        logger.log_hyperparams(dict(config))
                except Exception as error:
                    raise UsageError(
                        f"logger={name} does not start: {type(error).__name__}: {error}. Fix that, or leave it out."
                    ) from error
            self._open[name] = logger
            ids[name] = logger.run_id if name == "mlflow" else logger.version
        if self._open:
            write_text(path, json.dumps(ids) + "\n")

    def row(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.csv to the loggers: `val/loss`, `val/accuracy` and so on, at its step."""
        values = {
            f"{row['split']}/{key}": value
            for key, value in row.items()
            if isinstance(value, float) and key not in ("seconds", "lr")
        }
        self._tell(lambda logger: logger.log_metrics({**values, "lr": row["lr"], "epoch": row["epoch"]}, row["step"]))

    def result(self, metrics: Mapping[str, Mapping[str, Any]], step: int) -> None:
        """Send the final table to the loggers, as `final/<split>/<metric>`."""
        values = {
            f"final/{split}/{key}": float(value)
            for split, result in metrics.items()
            for key, value in result.items()
            if isinstance(value, (int, float))
        }
        self._tell(lambda logger: logger.log_metrics(values, step))

    def finish(self, status: str) -> None:
        """Close the loggers; `status` is that of the record."""
        told = {"finished": "success", "interrupted": "aborted"}.get(status, "failed")
        self._tell(lambda logger: logger.finalize(told))
        if "wandb" in self._open:
            import_module("wandb").finish(exit_code=int(told != "success"))
        self._open.clear()

    def _tell(self, call: Callable[[Any], None]) -> None:
        for name, logger in list(self._open.items()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    call(logger)
                except Exception as error:
                    del self._open[name]
                    self._say(f"Note: logger={name} is left out from here on ({type(error).__name__}: {error}).")


def _options(name: str) -> list[str]:
    from lightning.pytorch import loggers

    keys = list(inspect.signature(getattr(loggers, _KINDS[name][1])).parameters)
    if name == "wandb":
        # Lightning passes other options on to wandb.init.
        keys += [key for key in inspect.signature(import_module("wandb").init).parameters if key not in keys]
    return [key for key in keys if key not in _OURS]


def _make(name: str, options: Mapping[str, Any], folder: Path, run: str | None) -> Any:
    """Lightning's logger for a run folder; `run` is the service's id of a run to continue, or None."""
    from lightning.pytorch import loggers

    kind = getattr(loggers, _KINDS[name][1])
    title = f"{folder.parent.name}/{folder.name}"
    if name == "tensorboard":
        return kind(**{"name": "", "default_hp_metric": False, **options}, save_dir=folder, version="tensorboard")
    if name == "wandb":
        more = {"id": run, "resume": "allow"} if run else {}
        logger = kind(**{"project": "fractal-ssm", "name": title, **options}, save_dir=folder, **more)
        # Reading it starts the run, which then has its id.
        _ = logger.experiment
        return logger
    defaults = {"experiment_name": "fractal-ssm", "run_name": title}
    if "tracking_uri" not in options and "MLFLOW_TRACKING_URI" not in os.environ:
        defaults["tracking_uri"] = f"file:{folder.absolute() / 'mlflow'}"
        # MLflow disables stores without a database by default.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = kind(**{**defaults, **options}, run_id=run)
    _ = logger.experiment
    return logger
