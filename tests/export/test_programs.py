"""torch.export of the real forms, and what is refused."""

from __future__ import annotations

import pytest
import torch
from contract_cases import D_MODEL, FITTING, build, cases, draw, is_bidirectional, label

from fractal_ssm import Fractal, SequenceModel, UsageError
from fractal_ssm.export import export_program, real_forward, real_step
from fractal_ssm.models.base import SequenceLayer

SIZES = ((1, 1), (1, 2), (2, 1), (3, 40))
PLAIN = [("s5", {"d_state": 8, "blocks": 2}), ("s4d", {"d_state": 8, "bidirectional": True})]
few = [pytest.param(case, marks=[] if case in PLAIN else [pytest.mark.slow]) for case in [*PLAIN, *cases()]]
few_layers = pytest.mark.parametrize("case", few, ids=[label(case) for case in [*PLAIN, *cases()]])


def model(name="s5", **options):
    torch.manual_seed(0)
    node = {"name": name, **FITTING.get(name, {}), "bidirectional": False}
    given = dict(n_classes=3, d_input=2, d_model=D_MODEL, n_layers=2, l_max=64, pool="last") | options
    return SequenceModel(node, **given).eval()


def targets(program):
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@few_layers
@torch.no_grad()
def test_one_program_for_every_size(case):
    layer = build(case, torch.float32)
    program = export_program(real_forward(layer))
    assert not any("fractal_ssm" in target for target in targets(program))
    for batch, length in SIZES:
        u = draw(batch, length, D_MODEL, dtype=torch.float32)
        torch.testing.assert_close(program.module()(u), layer(u)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "case", [("s4", {"d_state": 8}), ("fractal", {"time": "ltv"}), ("transformer", {"n_heads": 2})]
)
@torch.no_grad()
def test_a_program_of_a_step(case):
    layer, form = build(case, torch.float32), real_step(build(case, torch.float32))
    program = export_program(form).module()
    for batch in (1, 3):
        u, state, outputs = draw(batch, 20, D_MODEL, dtype=torch.float32), form.initial_state(batch), []
        for u_t in u.unbind(1):
            y, *state = program(u_t, *state)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, dim=1), layer(u)[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_chunks_of_a_stream():
    layer = build(PLAIN[0], torch.float32)
    form = real_forward(layer, state=True)
    state, outputs, u = form.initial_state(2), [], draw(2, 50, D_MODEL, dtype=torch.float32)
    for chunk in u.split((1, 17, 32), dim=1):
        y, *state = form(chunk, *state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), layer(u)[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_names_follow_the_state():
    form = real_step(model())
    assert form.input_names[0] == "inputs" and form.output_names[0] == "y"
    assert [name.removeprefix("next_") for name in form.output_names[1:]] == form.input_names[1:]
    assert all(name.startswith("state.") for name in form.input_names[1:])
    assert real_forward(Fractal(4), lengths=True, dt_scale="sample").input_names == ["u", "lengths", "dt_scale"]
    assert real_step(Fractal(4)).output_names == ["y", "next_state"]


@pytest.mark.parametrize("pool", ["last", "mean"])
@pytest.mark.parametrize("name", ["s5", "s4", "transformer"])
@torch.no_grad()
def test_a_model_in_steps_gives_its_scores(name, pool):
    whole = model(name, pool=pool)
    form, inputs = real_step(whole), draw(3, 12, 2, dtype=torch.float32)
    state = form.initial_state(3)
    for inputs_t in inputs.unbind(1):
        scores, *state = form(inputs_t, *state)
    torch.testing.assert_close(scores, whole(inputs), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_forward_of_a_model():
    whole = model("s4d", pool="mean")
    inputs, lengths = draw(3, 30, 2, dtype=torch.float32), torch.tensor([30, 4, 1])
    torch.testing.assert_close(real_forward(whole, lengths=True)(inputs, lengths), whole(inputs, lengths))
    features, *_ = real_forward(whole, state=True)(inputs, *real_step(whole).initial_state(3))
    torch.testing.assert_close(features, whole.features(inputs)[0], rtol=1e-5, atol=1e-5)


class Complex(SequenceLayer):
    """A layer of one's own with a complex state."""

    def __init__(self):
        super().__init__()
        self.d_model, self.causal_flag = D_MODEL, True

    @property
    def causal(self):
        return True

    def forward(self, u, state=None, lengths=None, dt_scale=1.0, return_state=True):
        return u, state

    def step(self, u_t, state):
        return u_t, state

    def initial_state(self, batch_size):
        return torch.zeros(batch_size, 2, dtype=torch.complex64)


class Branching(Complex):
    """A layer of one's own that looks at values."""

    def forward(self, u, state=None, lengths=None, dt_scale=1.0, return_state=True):
        return (u if u.sum() > 0 else -u), None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: real_forward(torch.nn.Linear(2, 2)), "Exported are layers.*got a Linear"),
        (lambda: real_step(Fractal(4, bidirectional=True)), "Fractal carries no state.*bidirectional=False"),
        (lambda: real_forward(Fractal(4, bidirectional=True), state=True), "Fractal carries no state"),
        (lambda: real_forward(Fractal(4), dt_scale="samples"), "Did you mean 'sample'"),
        (lambda: real_forward(Fractal(4), dt_scale=-1), "dt_scale is a positive number.*got -1"),
        (lambda: real_step(Fractal(4), dt_scale="position"), "'sample' there"),
        (lambda: real_step(Fractal(4))(torch.zeros(1, 4)), "takes 2 tensors, u, state; got 1"),
        (lambda: export_program(Fractal(4)), "takes what real_forward.*got a Fractal"),
        (lambda: real_step(Complex()), r"Complex has a complex state.*torch\.view_as_real"),
        (lambda: export_program(real_forward(Branching())), "cannot follow Branching.*must not branch on values"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_every_causal_layer_has_a_step(built_in_layers):
    for name in built_in_layers:
        if not is_bidirectional((name, FITTING.get(name, {}))):
            real_step(build((name, FITTING.get(name, {})), torch.float32))


@pytest.mark.parametrize("options", [{}, {"d_input": None, "n_tokens": 5}], ids=["values", "tokens"])
@pytest.mark.parametrize("name", ["s5", "transformer"])
@torch.no_grad()
def test_one_program_of_a_models_step_for_every_batch(name, options):
    whole = model(name, **options)
    stepped = real_step(whole)
    program = export_program(stepped).module()
    for batch in (1, 3):
        inputs = torch.randint(5, (batch, 4)) if options else torch.randn(batch, 4, 2)
        state = stepped.initial_state(batch)
        for inputs_t in inputs.unbind(1):
            scores, *state = program(inputs_t, *state)
        torch.testing.assert_close(scores, whole(inputs), rtol=1e-5, atol=1e-5)
