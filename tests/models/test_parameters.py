"""Parameter totals of the published Long Range Arena models: of the built model, and of the formula.

The totals were computed from the published configurations of S5 (lindermanlab/S5, bin/run_experiments) and S4
(state-spaces/s4, configs/experiment/lra, version 4, and the version 3 files of the S4D paper) with vocabularies of
20 (S5's one-hot width) or 18 (S4) symbols for ListOps, 135 for Text and 98 for Retrieval.
"""

from dataclasses import dataclass

import pytest

from fractal_ssm.models.backbone import SequenceModel

CLASSES = {"listops": 10, "imdb": 2, "aan": 2, "cifar": 10, "pathfinder": 2, "pathx": 2}
TOKENS = {"imdb": 135, "aan": 98}


@dataclass
class S5Model:
    """Sizes of one published S5 model: layers, width H, real state size over all blocks, blocks, vocabulary."""

    n_layers: int
    d_model: int
    d_state: int
    blocks: int
    total: int


S5_MODELS = {
    "listops": S5Model(8, 128, 16, 8, 188_490),
    "imdb": S5Model(6, 256, 192, 12, 1_321_154),
    "aan": S5Model(6, 128, 256, 16, 772_098),
    "cifar": S5Model(6, 512, 384, 3, 5_133_706),
    "pathfinder": S5Model(6, 192, 256, 8, 1_113_602),
    "pathx": S5Model(6, 128, 256, 16, 694_018),
}


def head(task, H):
    classes = CLASSES[task]
    return 4 * H * H + H + classes * H + classes if task == "aan" else classes * H + classes


def n_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def build(task, layer, n_tokens, **options):
    inputs = {"d_input": 1} if n_tokens is None else {"n_tokens": n_tokens}
    kind = "retrieval" if task == "aan" else "classification"
    return SequenceModel(layer, n_classes=CLASSES[task], task=kind, **inputs, **options)


@pytest.mark.parametrize("task", S5_MODELS)
def test_s5_totals(task):
    size = S5_MODELS[task]
    H, P, tokens = size.d_model, size.d_state // 2, {"listops": 20, **TOKENS}.get(task)
    layer = 2 * P + 2 * P * H + 2 * H * P * 2 + H + P
    block = layer + H * H + H + 2 * H
    assert size.n_layers * block + (tokens or 1) * H + H + head(task, H) == size.total
    node = {"name": "s5", "d_state": size.d_state, "blocks": size.blocks, "bidirectional": True}
    model = build(
        task, node, tokens, d_model=H, n_layers=size.n_layers, mixer="half_glu1", norm="batch", final_norm=False
    )
    assert n_parameters(model) == size.total


@dataclass
class S4Model:
    """Sizes of one published S4 model: layers, width H, order N, independent copies of A and B, prenorm, totals."""

    n_layers: int
    d_model: int
    d_state: int
    n_ssm: int
    prenorm: bool
    total_s4: int
    total_s4d: int


S4_MODELS = {
    "v4": {
        "listops": S4Model(6, 256, 4, 1, False, 815_186, 815_162),
        "imdb": S4Model(6, 256, 4, 1, True, 843_594, 843_570),
        "aan": S4Model(6, 256, 4, 1, True, 1_096_522, 1_096_498),
        "cifar": S4Model(6, 512, 64, 1, False, 3_564_682, 3_564_298),
        "pathfinder": S4Model(6, 256, 64, 256, True, 1_288_706, 1_190_402),
        "pathx": S4Model(6, 256, 64, 256, True, 1_288_706, 1_190_402),
    },
    "v3": {
        "listops": S4Model(8, 128, 64, 128, False, 599_562, 534_026),
        "imdb": S4Model(6, 256, 64, 256, True, 1_322_754, 1_224_450),
        "aan": S4Model(6, 256, 64, 256, True, 1_575_682, 1_477_378),
        "cifar": S4Model(6, 512, 64, 2, False, 3_565_834, 3_565_066),
        "pathfinder": S4Model(6, 256, 64, 256, True, 1_288_706, 1_190_402),
        "pathx": S4Model(6, 256, 64, 256, True, 1_288_706, 1_190_402),
    },
}


def s4_formula(task, size, rank):
    H, N, n_ssm, tokens = size.d_model, size.d_state, size.n_ssm, {"listops": 18, **TOKENS}.get(task)
    layer = H + n_ssm * N + n_ssm * N + rank * n_ssm * N + 2 * H * N + H
    block = layer + 2 * H * H + 2 * H + 2 * H
    encoder = tokens * H if tokens else 2 * H
    return encoder + size.n_layers * block + (2 * H if size.prenorm else 0) + head(task, H)


@pytest.mark.parametrize("name", ["s4", "s4d"])
@pytest.mark.parametrize("version", S4_MODELS)
@pytest.mark.parametrize("task", CLASSES)
def test_s4_totals(task, version, name):
    size = S4_MODELS[version][task]
    total = size.total_s4 if name == "s4" else size.total_s4d
    assert s4_formula(task, size, rank=1 if name == "s4" else 0) == total
    model = build(
        task,
        {"name": name, "d_state": size.d_state, "n_ssm": size.n_ssm, "bidirectional": True},
        {"listops": 18, **TOKENS}.get(task),
        d_model=size.d_model,
        n_layers=size.n_layers,
        norm="batch",
        prenorm=size.prenorm,
        final_norm=size.prenorm,
        encoder_bias=False,
    )
    assert n_parameters(model) == total
