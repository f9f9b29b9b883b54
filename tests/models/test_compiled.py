"""The convolution layers inside torch.compile: one graph, no complex code, the numbers and gradients of eager mode."""

import pytest
import torch
from contract_cases import D_MODEL, assert_same_gradients, draw

from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.models.siso import SISOLayer
from fractal_ssm.ops.convolution import convolve
from fractal_ssm.ops.runtime.autograd import gradients, leaves
from fractal_ssm.registry import layers

# Its softmax runs over the positions at hand.
FREE = {"name": "dss", "d_state": 4}
CASES = {
    "s4d": {"name": "s4d", "d_state": 8},
    "s4d-dss": {"name": "s4d", "d_state": 8, "discretization": "dss"},
    "s4d-bidirectional-channels": {"name": "s4d", "d_state": 8, "bidirectional": True, "channels": 2},
    "s4": {"name": "s4", "d_state": 8, "n_ssm": 2},
    "s4-folded-tau": {"name": "s4", "d_state": 8, "fold_length": 16, "init": {"name": "fractional-tau", "alpha": 0.5}},
    "s4-cauchy-bidirectional": {"name": "s4", "d_state": 8, "backend": "cauchy", "bidirectional": True},
    "dss": {"name": "dss", "d_state": 4},
    "dss-free": FREE,
    "fractal-conv": {"name": "fractal-conv", "d_state": 8, "n_alphas": 2},
}
every_case = pytest.mark.parametrize("node", CASES.values(), ids=CASES)

# Torch's compiler warns about what it does itself.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def build(node, dtype=torch.float64):
    torch.manual_seed(0)
    return layers.build(node, d_model=D_MODEL, l_max=None if node is FREE else 64).to(dtype)


def arguments(layer, dtype=torch.float64):
    """u and, where the layer has them, a state, lengths and a step that is differentiated."""
    u = draw(2, 20, D_MODEL, dtype=dtype).requires_grad_()
    scale = torch.tensor(1.5, dtype=dtype, requires_grad=True)
    found = {"u": u, "lengths": torch.tensor([20, 13]), "dt_scale": scale}
    if layer.causal:
        found["state"] = draw(2, *layer._state_shape, 2, dtype=dtype, seed=3)
        found["state"] = torch.view_as_complex(found["state"]).requires_grad_()
    return found


def outputs_and_gradients(call, layer, given):
    y, state = call(**given)
    loss = (y * draw(*y.shape, seed=5).to(y)).sum()
    if state is not None:
        loss = loss + (state.real * draw(*state.shape, seed=6).to(y)).sum()
    inputs = [value for value in given.values() if value.requires_grad]
    return y, state, torch.autograd.grad(loss, inputs + list(layer.parameters()))


@every_case
def test_one_graph_and_the_numbers_of_eager_mode(node):
    layer = build(node)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    given = arguments(layer)
    y, state, expected = outputs_and_gradients(layer, layer, given)
    y_2, state_2, found = outputs_and_gradients(compiled, layer, given)
    torch.testing.assert_close(y_2, y, rtol=1e-11, atol=1e-12)
    if state is not None:
        torch.testing.assert_close(state_2, state, rtol=1e-11, atol=1e-12)
    assert_same_gradients(found, expected, tolerance=1e-10)


@every_case
def test_the_graph_has_no_complex_arithmetic(node):
    layer, seen = build(node), []

    def look(graph, inputs):
        seen.extend(graph.graph.nodes)
        return graph

    u = draw(2, 20, D_MODEL)
    torch.compile(layer, fullgraph=True, backend=look)(u)
    complex_nodes = [
        node
        for node in seen
        if node.op.startswith("call")
        and isinstance(value := node.meta.get("example_value"), torch.Tensor)
        and value.is_complex()
    ]
    assert seen and all("siso" in str(node.target) for node in complex_nodes)
    assert any("siso" in str(node.target) for node in seen) and any("convolve" in str(node.target) for node in seen)


def test_options_that_change_are_seen():
    layer = build(CASES["s4-folded-tau"])
    compiled, u = torch.compile(layer, fullgraph=True, backend="aot_eager"), draw(2, 20, D_MODEL)
    compiled(u)
    layer.fold_length = 9
    torch.testing.assert_close(compiled(u)[0], layer(u)[0])
    layer.load_state_dict(build({**CASES["s4-folded-tau"], "fold_length": 12}).state_dict())
    torch.testing.assert_close(compiled(u)[0], layer(u)[0])


def test_many_lengths_need_few_graphs():
    layer, graphs = build(CASES["s4d"]), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, backend=count)
    for length in (20, 30, 41, 57, 64, 99):
        u = draw(2, length, D_MODEL)
        torch.testing.assert_close(compiled(u)[0], layer(u)[0])
    assert len(graphs) <= 3


def test_autocast_and_a_step_per_sample():
    layer, u = build(CASES["s4d"], torch.float32), draw(2, 20, D_MODEL, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.compile(layer, fullgraph=True, backend="aot_eager")(u.bfloat16())[0]
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, layer(u.bfloat16())[0])
    scale = torch.tensor([1.0, 2.0])
    compiled = torch.compile(layer, backend="aot_eager")
    torch.testing.assert_close(compiled(u, dt_scale=scale)[0], layer(u, dt_scale=scale)[0])


@pytest.mark.parametrize("lags", [(5, None), (20, 20), (40, 3), (1, None)])
def test_the_convolution_alone(lags):
    u = draw(2, 9, 3).requires_grad_()
    kernels = [None if n is None else draw(3, n, seed=n).requires_grad_() for n in lags]
    compiled = torch.compile(convolve, fullgraph=True, backend="aot_eager")
    inputs = [u, *(kernel for kernel in kernels if kernel is not None)]
    weight = draw(2, 9, 3, seed=7)
    ys = [call(u, *kernels) for call in (convolve, compiled)]
    torch.testing.assert_close(*ys)
    expected, found = (torch.autograd.grad((y * weight).sum(), inputs) for y in ys)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_nothing_recorded_is_an_error():
    (x,) = leaves([torch.ones(2)], [True])
    with pytest.raises(RuntimeError, match="recorded nothing"):
        gradients(torch.ones(2), [x], torch.ones(2))


def test_every_layer_names_what_its_system_reads():
    for node in CASES.values():
        layer = build(node)
        assert isinstance(layer, SISOLayer)
        assert set(layer.roles) >= {name for name, _ in layer.named_parameters()}


def train(model, inputs, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(inputs, lengths=torch.tensor([20, 13])), torch.tensor([1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["s4d-dss", "s4", "s4d-bidirectional-channels", "fractal-conv"])
def test_a_whole_model_trains_the_same(backend, name):
    def model():
        torch.manual_seed(0)
        return SequenceModel(CASES[name], n_classes=3, d_input=2, d_model=D_MODEL, n_layers=2, l_max=64)

    inputs = draw(2, 20, 2, dtype=torch.float32)
    expected = train(model(), inputs)
    found = train(torch.compile(model(), fullgraph=True, backend=backend), inputs)
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected[0] != pytest.approx(expected[-1], rel=1e-3)
