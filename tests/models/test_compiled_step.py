"""A step inside torch.compile: run as it is, since the compiler's complex arithmetic is not to be trusted."""

import pytest
import torch
from contract_cases import D_MODEL, assert_same_gradients, build, cases, draw, is_bidirectional, label, leaves

from fractal_ssm.models.backbone import SequenceModel

# Torch's compiler warns about what it does itself.
pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 20
STATE_SPACE = [case for case in cases() if case[0] != "transformer" and not is_bidirectional(case)]
every_state_space_layer = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case[1] else []) for case in STATE_SPACE], ids=label
)
NODES = {
    "fractal": {"name": "fractal", "d_state": 8, "n_alphas": 2},
    "s5": {"name": "s5", "d_state": 8, "blocks": 2},
    "s4": {"name": "s4", "d_state": 8},
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(step, u, state):
    """All outputs of `step`, and the parts of the last state, seen as real numbers."""
    outputs = []
    for t in range(u.shape[1]):
        y, state = step(u[:, t], state)
        outputs.append(y)
    parts = (torch.view_as_real(part) if part.is_complex() else part for part in leaves(state))
    return [torch.stack(outputs, dim=1), *parts]


def graphs_of(seen):
    """A backend that keeps what it is given and runs it as it is."""

    def look(graph, inputs):
        seen.append(graph)
        return graph

    return look


def complex_values(graphs):
    values = [node.meta.get("example_value") for graph in graphs for node in graph.graph.nodes]
    return [value for value in values if isinstance(value, torch.Tensor) and value.is_complex()]


@every_state_space_layer
def test_compiled_steps_have_the_values_and_gradients_of_eager_ones(case):
    layer = build(case, torch.float32)
    u = draw(3, STEPS, D_MODEL, dtype=torch.float32).requires_grad_()
    compiled = torch.compile(layer.step, backend="aot_eager")
    with torch.no_grad():
        expected = run(layer.step, u, layer.initial_state(3))
        found = run(compiled, u, layer.initial_state(3))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    inputs, gradients = [u, *layer.parameters()], []
    for step in (layer.step, compiled):
        results = run(step, u, layer.initial_state(3))
        loss = sum((part * draw(*part.shape, seed=5).to(part)).sum() for part in results)
        gradients.append(torch.autograd.grad(loss, inputs))
    assert_same_gradients(*reversed(gradients), tolerance=1e-5)


@every_state_space_layer
@torch.no_grad()
def test_no_complex_number_of_a_step_reaches_the_compiler(case):
    layer, graphs = build(case, torch.float32), []
    u = draw(3, 4, D_MODEL, dtype=torch.float32)

    def surrounded(u_t, state):
        y, state = layer.step(2 * u_t, state)
        return y.sin(), state

    run(torch.compile(surrounded, backend=graphs_of(graphs)), u, layer.initial_state(3))
    assert graphs and not complex_values(graphs)


def test_a_parameter_that_changes_is_seen():
    layer = build(("s5", {"d_state": 8, "blocks": 2}), torch.float32)
    u, state = draw(3, D_MODEL, dtype=torch.float32), layer.initial_state(3)
    compiled = torch.compile(layer.step, backend="aot_eager")
    with torch.no_grad():
        before = compiled(u, state)[0]
        layer.B.mul_(2.0)
        after = compiled(u, state)[0]
        torch.testing.assert_close(after, layer.step(u, state)[0])
    assert not torch.allclose(before, after)


def test_one_graph_is_refused_in_words():
    layer = build(("s5", {"d_state": 8, "blocks": 2}), torch.float32)
    compiled = torch.compile(layer.step, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="complex arithmetic.*Leave out fullgraph=True"):
        compiled(draw(3, D_MODEL, dtype=torch.float32), layer.initial_state(3))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NODES)
@torch.no_grad()
def test_a_whole_model_steps_the_same(backend, name):
    torch.manual_seed(0)
    model = SequenceModel(NODES[name], n_classes=3, d_input=2, d_model=D_MODEL, n_layers=2, l_max=64).eval()
    u = draw(3, STEPS, 2, dtype=torch.float32)
    expected = run(model.step, u, model.initial_state(3))
    found = run(torch.compile(model.step, backend=backend), u, model.initial_state(3))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
