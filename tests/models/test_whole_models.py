"""Whole models of configs/model under torch.compile and torch.export: one graph, gradients, dropout, open sizes."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from fractal_ssm import create_model, list_models

pytestmark = pytest.mark.filterwarnings("ignore")

# A model of configs/model has no suite before its name.
NAMES = [name for name in list_models() if "/" not in name]


def build(name, **options):
    torch.manual_seed(0)
    facts = {"n_classes": 3, "d_input": 2, "l_max": 64}
    return create_model(name, **facts, d_model=8, n_layers=2, **options)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", NAMES)
def test_training_is_one_graph(name):
    """fullgraph raises at a break; dropout draws, so gradients are compared without it."""
    model, u = build(name, dropout=0.1).train(), torch.randn(2, 12, 2)
    torch.compile(model, backend="aot_eager", fullgraph=True)(u).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    model, plain = build(name).train(), build(name).train()
    lengths = torch.tensor([12, 5])
    torch.compile(model, backend="aot_eager", fullgraph=True)(u, lengths).square().sum().backward()
    plain(u, lengths).square().sum().backward()
    for compiled, eager in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(compiled.grad, eager.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_model_is_exported_with_open_sizes(name):
    model, u = build(name).eval(), torch.randn(4, 37, 2)
    axes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=1, max=64)}
    program = torch.export.export(model, (u,), dynamic_shapes={"inputs": axes})
    for shape in ((4, 37), (1, 1), (3, 2), (2, 64)):
        inputs = torch.randn(*shape, 2)
        torch.testing.assert_close(program.module()(inputs), model(inputs), rtol=1e-4, atol=1e-5)
