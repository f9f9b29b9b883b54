"""Folders of a trained model, in the layout of the Hugging Face hub: config.json and model.safetensors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import __version__
from ..errors import UsageError, did_you_mean
from ..files import WriteFailed, atomic_write, write_text
from .weights import check_finite, check_sizes_named, check_weights

if TYPE_CHECKING:
    from typing import Self

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# Version of the layout of config.json; increased when an older program could misread a newer folder.
_FORMAT = 1
_KEYS = ("architectures", "library_name", "format", "fractal_ssm_version", "save_id", "model")
_LARGEST_CONFIG = 10**7


class Pretrained:
    """Adds `save_pretrained` and `from_pretrained` to a model that keeps its constructor's arguments in `config`."""

    config: dict[str, Any]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json (the model's options, this program's version) and model.safetensors.

        The folder is created if needed. Files of an earlier save are replaced one by one, each only when the new file
        is complete. The folder can be uploaded to the hub with `huggingface_hub.upload_folder`.

        Raises:
            UsageError: options that JSON cannot hold, weights that are not finite, a model that was changed after it
                was built, or a folder that cannot be written.
        """
        config = self._json_config()
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        check_finite(str(folder), tensors)
        self._check_rebuilt(config["model"], tensors)
        from safetensors.torch import save

        # Clones, because the format refuses tensors that share memory.
        data = save({name: value.clone() for name, value in tensors.items()}, _metadata(config))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with atomic_write(Path(folder) / WEIGHTS) as file:
                file.write(data)
            write_text(Path(folder) / CONFIG, json.dumps(config, indent=2) + "\n")
        except (OSError, WriteFailed) as error:
            raise UsageError(
                f"The model cannot be saved in {str(folder)!r}: {error.strerror or error}. Name a folder that you may "
                f"write to; what it held before is unchanged."
            ) from error

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load the model from a folder of `save_pretrained`, in eval mode on the CPU, in the precision of the file.

        Nothing in the folder is executed. A layer of your own must be registered first (import its module). From the
        hub: `SequenceModel.from_pretrained(huggingface_hub.snapshot_download("user/model"))`.

        Raises:
            UsageError: no such folder or file; a file that is damaged, of another kind, or of a newer version; unknown
                keys or options; weights that are missing, unknown, of another shape, or not finite.
        """
        config = _read_config(folder)
        path = Path(folder) / WEIGHTS
        tensors, metadata = _read_weights(path)
        if metadata.get("save_id") != config["save_id"]:
            raise UsageError(
                f"{CONFIG} and {WEIGHTS} in {str(folder)!r} are of two different saves: one of them was replaced. Save "
                f"the model again, or copy both files of one save."
            )
        check_sizes_named(path, config["model"], {}, tensors)
        model = cls._built(config["model"])
        check_weights(path, tensors, model)
        model.load_state_dict(tensors, assign=True)
        return model.eval()

    @classmethod
    def _built(cls, options: Mapping[str, Any]) -> Self:
        """Check the options and build a model from them."""
        from .build import DATA_FACTS, build_model

        facts = {key: value for key, value in options.items() if key in DATA_FACTS}
        return build_model({key: value for key, value in options.items() if key not in facts}, facts)

    def _json_config(self) -> dict[str, Any]:
        try:
            options = json.loads(json.dumps(self.config, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"The options of this model cannot be written as JSON: {error}. Build it from plain values: text, "
                f"numbers, True, False, None, lists and dicts."
            ) from error
        return {
            "architectures": [type(self).__name__],
            "library_name": "fractal_ssm",
            "format": _FORMAT,
            "fractal_ssm_version": __version__,
            "save_id": uuid.uuid4().hex,
            "model": options,
        }

    def _check_rebuilt(self, options: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Refuse a model whose weights no longer match its options."""
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            twin = type(self)._built(options).state_dict()
        shapes = {name: tuple(value.shape) for name, value in twin.items()}
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        changed = sorted(dict(shapes.items() ^ found.items()))
        if changed:
            raise UsageError(
                f"The model was changed after it was built: {len(changed)} entries of its state dict are not those of "
                f"its options, {changed[0]!r} first. Save its state_dict() instead, or remove parametrisations first."
            )


def _metadata(config: Mapping[str, Any]) -> dict[str, str]:
    return {"format": "pt", "save_id": config["save_id"]}


def _read_config(folder: str | Path) -> dict[str, Any]:
    """Read config.json and check its keys."""
    if not isinstance(folder, (str, Path)):
        raise UsageError(f"from_pretrained takes the path of a folder, got {type(folder).__name__}.")
    path = Path(folder) / CONFIG
    remedy = "Take a folder that save_pretrained wrote."
    try:
        missing = [name for name in (CONFIG, WEIGHTS) if not (Path(folder) / name).is_file()]
        if missing:
            raise UsageError(
                f"There is no {' and no '.join(missing)} in {str(folder)!r}. {remedy} A model of the hub is downloaded "
                f"first: huggingface_hub.snapshot_download({str(folder)!r})."
            )
        if path.stat().st_size > _LARGEST_CONFIG:
            raise UsageError(f"{str(path)!r} is larger than any configuration of a model. {remedy}")
        config = json.loads(path.read_text(encoding="utf-8"))
    except UsageError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} cannot be read as JSON: {error}. {remedy}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{str(path)!r} holds a {type(config).__name__}, not a mapping. {remedy}")
    if "model_type" in config:
        raise UsageError(
            f"{str(path)!r} is of a model of the transformers library ({config['model_type']!r}). If it is one of "
            f"ours: import fractal_ssm.interop.hf and use AutoModel.from_pretrained."
        )
    if isinstance(config.get("format"), int) and config["format"] > _FORMAT:
        raise UsageError(
            f"{str(path)!r} was written by fractal_ssm {config.get('fractal_ssm_version')}, in a format newer than "
            f"this version ({__version__}) reads. Install that version."
        )
    _check_keys(path, config)
    return config


def _check_keys(path: Path, config: Mapping[str, Any]) -> None:
    for key in config:
        if key not in _KEYS:
            raise UsageError(
                f"{str(path)!r} has an unknown key {key!r}. Known: {', '.join(_KEYS)}." + did_you_mean(key, _KEYS)
            )
    missing = [key for key in _KEYS if key not in config]
    if missing or config["format"] != _FORMAT or not isinstance(config["model"], dict):
        raise UsageError(
            f"{str(path)!r} is not a whole configuration: {', '.join(missing) or 'format, model'} missing or wrong. "
            f"Take a folder that save_pretrained wrote."
        )


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            # Copies, because the file may be replaced while the model is in use.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
            return tensors, file.metadata() or {}
    except Exception as error:
        # The reader raises exceptions of its own for damaged files.
        raise UsageError(f"{str(path)!r} cannot be read as safetensors: {error}. Copy it again, whole.") from error
