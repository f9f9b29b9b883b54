"""SequenceModel.step: the answer to the prefix, at every position, in every layer that can be stepped."""

from __future__ import annotations

import pytest
import torch

from fractal_ssm import SequenceModel, UsageError

NODES = [
    {"name": "transformer", "n_heads": 2},
    {"name": "s5", "d_state": 16},
    {"name": "fractal", "d_state": 16, "n_alphas": 2},
    {"name": "fractal", "d_state": 16, "n_alphas": 2, "time": "ltv"},
    {"name": "s4d", "d_state": 8, "channels": 2},
    {"name": "s4", "d_state": 8},
    {"name": "dss", "d_state": 8},
]
every_node = pytest.mark.parametrize("node", NODES, ids=lambda node: "-".join(map(str, node.values())))


def build(node, **options):
    torch.manual_seed(0)
    sizes = {"n_classes": 3, "d_model": 8, "n_layers": 2, "l_max": 16, **options}
    if "n_tokens" not in sizes:
        sizes["d_input"] = 2
    return SequenceModel(node, **sizes).double()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@every_node
@pytest.mark.parametrize("pool", ["mean", "last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@torch.no_grad()
def test_every_answer_is_that_of_forward_on_the_prefix(node, pool, dtype):
    model = build(node, pool=pool, norm="batch").eval().to(dtype)
    u, scale = draw(3, 7, 2).to(dtype), 0.3 + 2 * torch.rand(3, 7, dtype=dtype)
    per_position = node["name"] in ("transformer", "s5", "fractal")
    state, one = model.initial_state(3), scale[:, 0]
    for position in range(7):
        now = scale[:, position] if per_position else one
        scores, state = model.step(u[:, position], state, now)
        before = scale[:, : position + 1] if per_position else one
        expected = model(u[:, : position + 1], dt_scale=before)
        torch.testing.assert_close(scores, expected, rtol=1e-4 if dtype == torch.float32 else 1e-8, atol=1e-5)
    assert state.position.tolist() == [7, 7, 7]


@every_node
def test_gradients_through_steps_are_those_of_forward(node):
    model, u = build(node), draw(2, 5, 2).requires_grad_()
    state = model.initial_state(2)
    for position in range(5):
        scores, state = model.step(u[:, position], state)
    inputs = [u, *model.parameters()]
    weight = torch.tensor([[1.0, -2.0, 0.5]])
    for one, other in zip(
        torch.autograd.grad((scores * weight).sum(), inputs),
        torch.autograd.grad((model(u) * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_pairs_of_documents_and_ragged_prompts():
    tokens = torch.randint(0, 7, (4, 6), generator=torch.Generator().manual_seed(1))
    model = build(NODES[1], n_tokens=7, task="retrieval", positions="sinusoidal").eval()
    lengths = torch.tensor([3, 1, 5, 2])
    _, state = model.features(tokens, lengths=lengths)
    scores, _ = model.step(tokens[:, 0], state)
    whole = tokens.clone()
    whole[torch.arange(4), lengths] = tokens[:, 0]
    torch.testing.assert_close(scores, model(whole, lengths + 1))


def test_what_cannot_be_stepped_is_refused():
    both = build({"name": "s5", "d_state": 16, "bidirectional": True}).eval()
    for attempt in (lambda: both.initial_state(2), lambda: both.step(draw(2, 2), None)):
        with pytest.raises(UsageError, match="bidirectional=False"):
            attempt()
    with pytest.raises(UsageError, match="pool='cls'"):
        build(NODES[1], pool="cls")
    model = build(NODES[1], norm="batch")
    with pytest.raises(UsageError, match=r"model.eval\(\)"):
        model.step(draw(2, 2), model.initial_state(2))
    model.eval()
    state = model.initial_state(2)
    for wrong in (draw(2, 3), draw(3, 2), draw(2, 1, 2), draw(2), None):
        with pytest.raises(UsageError, match=r"real values of shape \(2, 2\)"):
            model.step(wrong, state)
    for wrong in (None, tuple(state), state.layers):
        with pytest.raises(UsageError, match="takes the ModelState"):
            model.step(draw(2, 2), wrong)
    for wrong in (0.0, torch.ones(3), torch.ones(2, 1)):
        with pytest.raises(UsageError, match="dt_scale"):
            model.step(draw(2, 2), state, wrong)


@every_node
def test_a_batch_of_no_samples(node):
    model, u = build(node), draw(0, 5, 2).requires_grad_()
    scores = model(u)
    assert scores.shape == (0, 3)
    gradients = torch.autograd.grad(scores.sum(), [u, *model.parameters()])
    assert all((gradient == 0).all() for gradient in gradients)
    scores, _ = model.step(u[:, 0], model.initial_state(0))
    assert scores.shape == (0, 3)
    with pytest.raises(UsageError, match="length must be >= 1"):
        model(draw(2, 0, 2))
