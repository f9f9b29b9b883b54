"""save_pretrained and from_pretrained: the same model again, and every damaged folder refused in words."""

from __future__ import annotations

import json
import os

import pytest
import safetensors.torch
import torch
from torch import nn

from fractal_ssm import Fractal, SequenceModel, UsageError, create_model

NODES = {
    "fractal": {"name": "fractal", "d_state": 16, "bidirectional": True},
    "fractal-measure": {"name": "fractal", "d_state": 16, "measure": {"name": "fractional-tau"}, "learn_alpha": False},
    "s4": {"name": "s4", "d_state": 8, "fold_length": 16},
    "s4d": {"name": "s4d", "d_state": 8, "init": {"name": "legs"}},
    "dss": {"name": "dss", "d_state": 8},
    "s5": {"name": "s5", "d_state": 8, "blocks": 1},
    "lru": {"name": "lru", "d_state": 8},
    "transformer": {"name": "transformer", "n_heads": 2},
}
TASKS = {
    "classification": dict(n_classes=3, norm="batch"),
    "retrieval": dict(n_classes=2, task="retrieval"),
    "tokens": dict(n_classes=4, task="tokens"),
    "quantiles": dict(task="regression", d_target=2, output="quantiles", quantiles=[0.1, 0.5, 0.9], per_position=True),
}


def build(node="s5", **options) -> SequenceModel:
    torch.manual_seed(0)
    options = dict(n_classes=3, d_input=2, d_model=8, n_layers=2, l_max=32) | options
    model = SequenceModel(NODES[node], **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return model.eval()


def same(one: SequenceModel, other: SequenceModel, u: torch.Tensor) -> None:
    assert one.config == other.config and not other.training
    assert [(n, v.dtype) for n, v in one.state_dict().items()] == [(n, v.dtype) for n, v in other.state_dict().items()]
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    with torch.no_grad():
        assert torch.equal(one(u), other(u))


@pytest.mark.parametrize("node", NODES)
def test_every_layer_comes_back(node, tmp_path):
    model = build(node)
    before = torch.get_rng_state()
    model.save_pretrained(tmp_path / "new" / "folder")
    assert torch.equal(torch.get_rng_state(), before)
    same(model, SequenceModel.from_pretrained(str(tmp_path / "new" / "folder")), torch.randn(2, 9, 2))
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_comes_back(task, tmp_path):
    model = build(**{"n_classes": None} | TASKS[task])
    model.save_pretrained(tmp_path)
    again = SequenceModel.from_pretrained(tmp_path)
    same(model, again, torch.randn(2, 9, 2))
    assert again.no_weight_decay() == model.no_weight_decay() != set()


def test_precision_is_kept(tmp_path):
    for model in (build().double(), build().bfloat16()):
        model.save_pretrained(tmp_path)
        same(model, SequenceModel.from_pretrained(tmp_path), torch.randn(2, 9, 2, dtype=model.head.linear.weight.dtype))


def test_a_model_that_goes_on_training_leaves_its_folder_alone(tmp_path):
    build().save_pretrained(tmp_path)
    model = SequenceModel.from_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_create_model_made(tmp_path):
    model = create_model("fractal-tau", n_classes=3, n_tokens=9, d_model=8, n_layers=1, layer={"d_state": 16}).eval()
    model.save_pretrained(tmp_path)
    same(model, SequenceModel.from_pretrained(tmp_path), torch.randint(0, 9, (2, 7)))
    assert json.loads((tmp_path / "config.json").read_text())["fractal_ssm_version"]


def test_a_second_save_replaces_the_first(tmp_path):
    build().save_pretrained(tmp_path)
    other = build("lru", d_model=4)
    other.save_pretrained(tmp_path)
    same(other, SequenceModel.from_pretrained(tmp_path), torch.randn(1, 5, 2))


def test_two_saves_are_not_mixed(tmp_path):
    build().save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    build().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match="two different saves"):
        SequenceModel.from_pretrained(tmp_path)


def test_a_failed_save_changes_nothing(tmp_path):
    build().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    diverged, changed = build(), build()
    with torch.no_grad():
        diverged.head.linear.bias[0] = torch.nan
    changed.head = nn.Linear(8, 5)
    parametrised = build()
    nn.utils.parametrizations.weight_norm(parametrised.head.linear)
    odd = build()
    odd.config["layer"]["init"] = object()
    for model, says in (
        (diverged, "not finite: 1 of 3"),
        (changed, "changed after it was built"),
        (parametrised, "changed after it was built"),
        (odd, "cannot be written as JSON"),
    ):
        with pytest.raises(UsageError, match=says):
            model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(UsageError, match="cannot be saved in"):
        build().save_pretrained(tmp_path / "config.json")


def edited(**changes):
    def edit(folder):
        config = json.loads((folder / "config.json").read_text())
        for key, value in changes.items():
            node = config
            *branches, last = key.split("__")
            for branch in branches:
                node = node[branch]
            if value is None:
                del node[last]
            else:
                node[last] = value
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def reweighted(change):
    def edit(folder):
        path = folder / "model.safetensors"
        with safetensors.safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = safetensors.torch.load_file(path)
        change(tensors)
        safetensors.torch.save_file(tensors, path, metadata)

    return edit


FAULTS = {
    "no folder": (
        lambda f: f.rename(f.with_name("gone")),
        "no config.json and no model.safetensors.*snapshot_download",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "There is no model.safetensors"),
    "no json": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
    "binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot be read as JSON"),
    "nested": (lambda f: (f / "config.json").write_text("[" * 10**6), "cannot be read as JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "holds a list"),
    "unknown key": (edited(models={}), "unknown key 'models'.*mean 'model'"),
    "missing key": (edited(save_id=None), "save_id missing"),
    "transformers": (edited(model_type="bert"), "of the transformers library"),
    "newer": (edited(format=2, fractal_ssm_version="9.9"), "fractal_ssm 9.9.*Install that version"),
    "unknown option": (edited(model__n_layer=2), "n_layer"),
    "unknown layer": (edited(model__layer__name="s6"), "Unknown layer 's6'.*imports"),
    "layer option": (edited(model__layer__d_stat=2), "mean 'd_state'"),
    "wrong type": (edited(model__n_layers="2"), "n_layers"),
    "no layer": (edited(model__layer=None), "'layer'"),
    "huge": (edited(model__d_model=2**23), "describes a model with d_model"),
    "other depth": (edited(model__n_layers=1), "unknown, 'blocks.1"),
    "other width": (edited(model__layer__d_state=16), "has shape"),
    "cut": (lambda f: os.truncate(f / "model.safetensors", 500), "cannot be read as safetensors"),
    "no file": (lambda f: (f / "model.safetensors").write_bytes(b"pickle"), "cannot be read as safetensors"),
    "missing tensor": (reweighted(lambda t: t.pop("head.linear.bias")), "1 missing, 'head.linear.bias'"),
    "nan": (reweighted(lambda t: t["head.linear.bias"].fill_(torch.nan)), "not finite"),
    "integers": (reweighted(lambda t: t.update({"head.linear.bias": torch.ones(3, dtype=torch.int64)})), "torch.int64"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_told(fault, tmp_path):
    folder = tmp_path / "model"
    build().save_pretrained(folder)
    damage, says = FAULTS[fault]
    damage(folder)
    with pytest.raises(UsageError, match=says):
        SequenceModel.from_pretrained(folder)
    with pytest.raises(UsageError, match="path of a folder, got int"):
        SequenceModel.from_pretrained(3)


def test_a_replaced_layer_of_the_same_shapes_is_saved(tmp_path):
    model = build("fractal")
    model.blocks[0].layer = Fractal(8, d_state=16, bidirectional=True)
    model.save_pretrained(tmp_path)
    same(model.eval(), SequenceModel.from_pretrained(tmp_path), torch.randn(1, 5, 2))
