"""Models from checkpoints of strangers: no import that was not asked for, and every unfit file told in words."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch

from fractal_ssm import UsageError, load_model
from fractal_ssm.models.build import build_model, check_model

NODE = {"layer": {"name": "s5", "d_state": 8, "blocks": 1}, "d_model": 4, "n_layers": 1}
# As of version 0.1, which knew classes only: its checkpoints still load.
FACTS = {"n_classes": 3, "n_tokens": 5, "d_input": None, "l_max": 16, "task": "classification"}


def stored(imports=(), node=NODE, facts=FACTS):
    torch.manual_seed(0)
    model = build_model(node, facts)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    config = {"imports": list(imports), "model": copy.deepcopy(node)}
    return {"run": {"config": config, "data": dict(facts), "world": 1}, "state_dict": weights}


def saved(path, content):
    torch.save(content, path)
    return path


def test_the_trained_model_comes_back(tmp_path):
    content = stored()
    model = load_model(str(saved(tmp_path / "best.ckpt", content)))
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, content["state_dict"][f"model.{name}"])


@pytest.mark.parametrize(
    ("facts", "options", "shape"),
    [
        ({"task": "regression", "d_target": 2}, {}, (1, 2)),
        (
            {"task": "regression", "d_target": 2, "per_position": True, "causal": True},
            {"output": "gaussian"},
            (1, 6, 2, 2),
        ),
        (
            {"task": "regression", "d_target": 1, "per_position": True},
            {"output": "quantiles", "quantiles": [0.1, 0.5]},
            (1, 6, 1, 2),
        ),
        ({"task": "tokens", "n_classes": 3, "causal": True}, {}, (1, 6, 3)),
    ],
)
def test_models_of_every_task_come_back(tmp_path, facts, options, shape):
    later = {"d_target": None, "per_position": False, "causal": False}
    content = stored(node={**NODE, **options}, facts=FACTS | later | {"n_classes": None} | facts)
    model, tokens = load_model(saved(tmp_path / "best.ckpt", content)), torch.ones(1, 6, dtype=torch.int64)
    assert model(tokens).shape == shape
    for name, value in model.state_dict().items():
        assert torch.equal(value, content["state_dict"][f"model.{name}"])


def test_a_file_imports_nothing_that_the_caller_did_not_name(tmp_path, monkeypatch):
    (tmp_path / "evil_part.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = saved(tmp_path / "best.ckpt", stored(["evil_part"]))
    for imports in ((), ["json"]):
        with pytest.raises(UsageError, match=r"would import them.*load_model\(path, imports=\['evil_part'\]\)"):
            load_model(path, imports=imports)
    assert not (tmp_path / "ran").exists()
    load_model(path, imports=["evil_part"])
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("imports", ["json", [3], [None]])
def test_imports_is_a_list_of_names(tmp_path, imports):
    with pytest.raises(UsageError, match="list of names of modules"):
        load_model(saved(tmp_path / "best.ckpt", stored()), imports=imports)


def poisoned(content):
    content["state_dict"]["model.head.linear.bias"][1] = float("nan")


def without_a_weight(content):
    del content["state_dict"]["model.head.linear.bias"]


def with_one_more(content):
    content["state_dict"]["model.head.linear.bais"] = torch.zeros(3)


def of_another_shape(content):
    content["state_dict"]["model.head.linear.bias"] = torch.zeros(4)


def of_another_kind(content):
    content["state_dict"]["model.head.linear.bias"] = [0.0, 0.0, 0.0]


def without_facts(content):
    del content["run"]["data"]


def with_wrong_facts(content):
    content["run"]["data"] = {"n_classes": 3}


def without_a_model(content):
    del content["run"]["config"]["model"]


def of_an_unknown_layer(content):
    content["run"]["config"]["model"]["layer"]["name"] = "s6"


def with_wrong_imports(content):
    content["run"]["config"]["imports"] = "os"


def of_a_huge_model(content):
    content["run"]["config"]["model"]["d_model"] = 2**24


def of_a_huge_layer(content):
    content["run"]["config"]["model"]["layer"]["d_state"] = 2**24


def of_a_huge_head(content):
    content["run"]["data"]["n_classes"] = 2**30


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (of_a_huge_model, "d_model=16777216 but holds only"),
        (of_a_huge_layer, "d_state=16777216 but holds only"),
        (of_a_huge_head, "n_classes=1073741824 but holds only"),
        (poisoned, "not finite: 1 of 3 numbers of 'head.linear.bias'"),
        (without_a_weight, "1 missing, 'head.linear.bias' first"),
        (with_one_more, "1 unknown, 'head.linear.bais' first"),
        (of_another_shape, r"shape \(4,\), and the model's \(3,\)"),
        (of_another_kind, "is a list, not a tensor"),
        (without_facts, "run.data missing"),
        (with_wrong_facts, "describes its data by"),
        (without_a_model, "run.config.model missing"),
        (of_an_unknown_layer, "Unknown layer 's6'"),
        (with_wrong_imports, "not a list"),
    ],
)
def test_an_unfit_checkpoint_is_told(tmp_path, damage, words):
    content = stored()
    damage(content)
    with pytest.raises(UsageError, match=words):
        load_model(saved(tmp_path / "best.ckpt", content))


def test_files_that_are_no_checkpoint_are_told(tmp_path):
    whole = saved(tmp_path / "best.ckpt", stored()).read_bytes()
    contents = {
        "text": b"hello",
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:600] + bytes(64) + whole[664:],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match="checkpoint"):
            load_model(tmp_path / name)
    for other in ({"state_dict": {}}, [1, 2], torch.zeros(3), {"weight": torch.zeros(2)}, {"run": 3}):
        with pytest.raises(UsageError, match="no entry 'run'"):
            load_model(saved(tmp_path / "other", other))
    with pytest.raises(UsageError, match="cannot be read"):
        load_model(saved(tmp_path / "code", {"run": {}, "payload": os.getcwd}))
    for path in (tmp_path, tmp_path / "nothing", "a\0b", "x" * 5000, None, 3, b"best.ckpt"):
        with pytest.raises(UsageError, match="checkpoint"):
            load_model(path)


@pytest.mark.parametrize("node", [None, [], {}, "s5", {"layer": None}, {"layer": "s5"}, {"layer": {"name": 3}}])
def test_a_model_is_built_from_a_mapping(node):
    with pytest.raises(UsageError):
        build_model(node, FACTS)


def test_a_step_that_a_layer_does_not_have_is_told_before_there_is_data():
    with pytest.raises(UsageError, match="LRU is discrete"):
        check_model({**NODE, "layer": {"name": "lru"}}, FACTS, [1.0, 2.0])


def test_the_command_line_is_not_needed():
    code = "import sys, fractal_ssm; fractal_ssm.load_model; assert 'hydra' not in sys.modules, 'hydra'"
    subprocess.run([sys.executable, "-c", code], check=True)
