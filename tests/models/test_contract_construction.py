"""The contract of SequenceLayer, continued: where and how layers are built, and what their weights bring along."""

from __future__ import annotations

import pytest
import torch
from contract_cases import D_MODEL, build, draw, every_layer

from fractal_ssm.registry import layers


@every_layer
def test_layers_are_built_on_the_default_device_in_a_dtype_that_is_enough(case):
    name, options = case
    torch.manual_seed(0)
    with torch.device("meta"):
        layer = layers.build({"name": name, **options}, d_model=D_MODEL, l_max=64)
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"meta"}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        layer = layers.build({"name": name, **options}, d_model=D_MODEL, l_max=64)
    finally:
        torch.set_default_dtype(before)
    if name != "transformer":
        assert {parameter.dtype for parameter in layer.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "options"),
    [("s5", {}), ("lru", {}), ("fractal", {}), ("fractal", {"time": "ltv"}), ("transformer", {"n_heads": 2})],
)
def test_an_empty_batch_gives_an_empty_batch(name, options):
    layer = build((name, options))
    u = draw(0, 7, D_MODEL).requires_grad_()
    y, state = layer(u)
    assert y.shape == u.shape
    y.sum().backward()
    assert all((parameter.grad == 0).all() for parameter in layer.parameters() if parameter.grad is not None)
    assert layer.step(u[:, 0], state)[0].shape == (0, D_MODEL)
    assert layer(u, lengths=torch.ones(0, dtype=torch.int64))[0].shape == u.shape
    if name != "lru":
        assert layer(u, dt_scale=torch.ones(0, 7))[0].shape == u.shape
