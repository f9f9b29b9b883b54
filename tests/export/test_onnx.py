"""ONNX files in ONNX Runtime against the layers and models that they were written from."""

from __future__ import annotations

import pytest
import torch
from contract_cases import D_MODEL, FITTING, build, cases, draw, label, leaves

from fractal_ssm import Fractal, SequenceModel, UsageError
from fractal_ssm.export import export_onnx, real_step

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

SIZES = ((1, 1), (1, 7), (3, 50), (2, 200))
FAST = [("s5", {"d_state": 8, "blocks": 2}), ("s4", {"d_state": 8})]
every_layer = pytest.mark.parametrize(
    "case",
    [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in cases())],
    ids=[label(case) for case in [*FAST, *cases()]],
)
TOLERANCE = dict(rtol=1e-5, atol=1e-5)


class Session:
    """A file as a function of tensors."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.outputs = [entry.name for entry in self.session.get_outputs()]

    def __call__(self, *tensors):
        given = {name: tensor.numpy() for name, tensor in zip(self.inputs, tensors, strict=True)}
        return [torch.from_numpy(array) for array in self.session.run(None, given)]


def written(module, tmp_path, form="forward", **options):
    path = tmp_path / f"{form}.onnx"
    program = export_onnx(module, path, form, **options)
    onnx.checker.check_model(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "one file, weights included"
    session = Session(path)
    assert session.inputs == program.input_names and session.outputs == program.output_names
    path.unlink()
    return program, session


@every_layer
@torch.no_grad()
def test_forward_with_lengths_and_state(case, tmp_path):
    layer = build(case, torch.float32)
    program, session = written(layer, tmp_path, lengths=True, state=layer.causal)
    for batch, length in SIZES:
        u = draw(batch, length, D_MODEL, dtype=torch.float32)
        lengths = torch.arange(batch) * 11 % length + 1
        rest = program.initial_state(batch) if layer.causal else ()
        y, *state = session(u, lengths, *rest)
        expected, expected_state = layer(u, lengths=lengths)
        for one, other, valid in zip(y, expected, lengths, strict=True):
            torch.testing.assert_close(one[:valid], other[:valid], **TOLERANCE)
        if not layer.causal:
            continue
        for one, other in zip(state, leaves(expected_state), strict=True):
            other = torch.view_as_real(other) if other.is_complex() else other
            torch.testing.assert_close(one, other.expand_as(one), **TOLERANCE)
        torch.testing.assert_close(session(u, lengths, *state)[0][:, 0], layer(u, expected_state)[0][:, 0], **TOLERANCE)


@every_layer
@torch.no_grad()
def test_step(case, tmp_path):
    layer = build(case, torch.float32)
    if not layer.causal:
        return
    program, session = written(layer, tmp_path, "step")
    for batch in (1, 3):
        u, state, outputs = draw(batch, 40, D_MODEL, dtype=torch.float32), program.initial_state(batch), []
        for u_t in u.unbind(1):
            y, *state = session(u_t, *state)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, dim=1), layer(u)[0], **TOLERANCE)


@pytest.mark.parametrize("name", ["fractal", pytest.param("s5", marks=pytest.mark.slow)])
@torch.no_grad()
def test_a_stream_at_irregular_times(name, tmp_path):
    layer = build((name, {"d_state": 8, "n_alphas": 2} if name == "fractal" else {"d_state": 8, "blocks": 2})).float()
    program, session = written(layer, tmp_path, "step", dt_scale="sample")
    u, scale = draw(2, 20, D_MODEL, dtype=torch.float32), draw(2, 20, seed=4, dtype=torch.float32).abs() + 0.2
    state, outputs = program.initial_state(2), []
    for u_t, scale_t in zip(u.unbind(1), scale.unbind(1), strict=True):
        y, *state = session(u_t, scale_t, *state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, dim=1), layer(u, dt_scale=scale)[0], **TOLERANCE)


def model(name, **options):
    torch.manual_seed(0)
    given = dict(n_classes=3, n_tokens=5, d_model=D_MODEL, n_layers=2, l_max=64) | options
    return SequenceModel({"name": name, **FITTING.get(name, {}), "d_state": 8} | given.pop("layer", {}), **given).eval()


MODELS = {
    "tokens": lambda: model("s5", layer={"blocks": 2}, norm="batch"),
    "bidirectional": lambda: model("s4d", layer={"bidirectional": True}, mixer="full_glu"),
    "retrieval": lambda: model("s5", layer={"blocks": 2}, task="retrieval"),
    "fractal": lambda: model("fractal", layer={"n_alphas": 2}, mixer="silu_gate", framework="flax"),
}


@pytest.mark.parametrize("name", [n if n == "tokens" else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
@torch.no_grad()
def test_models(name, tmp_path):
    whole = MODELS[name]()
    _, session = written(whole, tmp_path, lengths=True)
    for batch, length in ((2, 1), (4, 60)):
        tokens, lengths = torch.arange(batch * length).view(batch, length) % 5, torch.arange(batch) % length + 1
        torch.testing.assert_close(session(tokens, lengths)[0], whole(tokens, lengths), **TOLERANCE)


@pytest.mark.slow
@torch.no_grad()
def test_a_transformer_steps_from_an_empty_cache(tmp_path):
    torch.manual_seed(0)
    node = {"name": "transformer", "n_heads": 2}
    whole = SequenceModel(node, n_classes=3, n_tokens=5, d_model=D_MODEL, n_layers=2, pool="last").eval()
    program, session = written(whole, tmp_path, "step")
    state, tokens = program.initial_state(2), torch.tensor([[1, 2, 0, 4, 3], [0, 0, 3, 1, 2]])
    for token in tokens.T:
        scores, *state = session(token, *state)
    torch.testing.assert_close(scores, whole(tokens), **TOLERANCE)


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="Did you mean 'forward'"):
        export_onnx(Fractal(4), tmp_path / "x.onnx", "forwards")
    with pytest.raises(UsageError, match="there is no folder"):
        export_onnx(Fractal(4), tmp_path / "absent" / "x.onnx")
    with pytest.raises(UsageError, match="takes no option 'length'.*Did you mean 'lengths'"):
        export_onnx(Fractal(4), tmp_path / "x.onnx", length=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fractal-ssm\[export\]'"):
        export_onnx(Fractal(4), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir()) and real_step(Fractal(4)).input_names == ["u", "state"]
