"""The whole model: padding, streaming, sizes that do not depend on the length, and its error messages."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from fractal_ssm.errors import UsageError
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.models.blocks.mixer import MIXERS

LENGTHS = torch.tensor([9, 3, 1, 6])
CAUSAL = {"name": "transformer", "n_heads": 2}
BIDIRECTIONAL = {**CAUSAL, "bidirectional": True}


def build(layer=CAUSAL, **options):
    torch.manual_seed(0)
    sizes = {"n_classes": 3, "n_tokens": 7, "d_model": 8, "n_layers": 2}
    if "d_input" in options:
        del sizes["n_tokens"]
    return SequenceModel(layer, **{**sizes, **options}).double()


def tokens(batch=4, length=9):
    return torch.randint(0, 7, (batch, length), generator=torch.Generator().manual_seed(1))


def padded(inputs, extra, value):
    return torch.nn.functional.pad(inputs, (0, extra), value=value)


@pytest.mark.parametrize(
    ("layer", "pool"),
    [(CAUSAL, "mean"), (CAUSAL, "last"), (BIDIRECTIONAL, "mean"), (BIDIRECTIONAL, "last"), (BIDIRECTIONAL, "cls")],
)
@pytest.mark.parametrize("norm", ["layer", "batch-masked"])
def test_padding_changes_nothing_in_training(layer, pool, norm):
    """Scores and gradients; with "batch-masked" the statistics must not move either."""
    model = build(layer, pool=pool, norm=norm, positions="sinusoidal")
    results = []
    for inputs in (tokens(), padded(tokens(), 4, 5)):
        model.zero_grad()
        logits = model(inputs, LENGTHS)
        logits.pow(2).sum().backward()
        results.append([logits] + [p.grad.clone() for p in model.parameters()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_published_batch_norm_counts_padding_in_training_only():
    model = build(norm="batch")
    near, far = tokens(), padded(tokens(), 4, 5)
    assert (model(near, LENGTHS) - model(far, LENGTHS)).abs().max() > 1e-6
    model.eval()
    torch.testing.assert_close(model(near, LENGTHS), model(far, LENGTHS))


def test_unmasked_padding_reaches_bidirectional_layers():
    model = build(BIDIRECTIONAL, mask_padding=False).eval()
    near, far = tokens(), padded(tokens(), 4, 5)
    assert (model(near, LENGTHS) - model(far, LENGTHS)).abs().max() > 1e-6


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_chunks_and_steps_equal_one_call(mixer, norm, prenorm):
    model = build(mixer=mixer, norm=norm, prenorm=prenorm, final_norm=prenorm, positions="sinusoidal")
    model(tokens())
    model.eval()
    whole, _ = model.features(tokens())
    first, state = model.features(tokens()[:, :4])
    second, state = model.features(tokens()[:, 4:8], state)
    scores, _ = model.step(tokens()[:, 8], state)
    torch.testing.assert_close(scores, model(tokens()[:, :9]))
    third, _ = model.features(tokens()[:, 8:], state)
    torch.testing.assert_close(torch.cat([first, second, third], dim=1), whole)
    state = model.initial_state(4)
    for position, token in enumerate(tokens().T):
        scores, state = model.step(token, state)
        torch.testing.assert_close(scores, model(tokens()[:, : position + 1]))


def test_ragged_chunks_go_on_from_each_samples_own_end():
    model = build(positions="sinusoidal").eval()
    _, state = model.features(tokens(), lengths=LENGTHS)
    more = tokens(length=2)
    after, _ = model.features(more, state)
    for b, n in enumerate(LENGTHS.tolist()):
        whole, _ = model.features(torch.cat([tokens()[b, :n], more[b]])[None])
        torch.testing.assert_close(after[b], whole[0, n:])


def test_real_inputs_and_time_scale():
    model = build(d_input=2)
    u = torch.randn(4, 9, 2, dtype=torch.float64)
    assert model(u, LENGTHS).shape == (4, 3)
    assert (model(u, dt_scale=2.0) - model(u)).abs().max() > 1e-6


def test_retrieval_pairs_first_and_second_documents():
    model = build(task="retrieval", n_classes=2).eval()
    inputs, lengths = tokens(batch=6), torch.tensor([9, 3, 1, 6, 2, 8])
    logits = model(inputs, lengths)
    assert logits.shape == (3, 2)
    for k in range(3):
        pair = torch.tensor([k, 3 + k])
        torch.testing.assert_close(model(inputs[pair], lengths[pair]), logits[k : k + 1])


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_both_documents_of_a_pair_are_learned_from(pool):
    model = build(task="retrieval", n_classes=2, pool=pool)
    inputs, lengths = torch.tensor([[1, 1, 0], [2, 0, 0], [3, 3, 3], [4, 4, 0]]), torch.tensor([2, 1, 3, 2])
    features = []
    model.encoder.register_forward_hook(lambda module, given, x: features.append(x) or x.retain_grad())
    model(inputs, lengths)[0, 0].backward()
    reached = features[0].grad.abs().sum(dim=-1) > 0
    # Sequences 0 and 2 are the first pair; the second pair and the padding count for nothing.
    assert reached.tolist() == [[True, True, False], [False] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_state_dict_does_not_depend_on_the_length(pool):
    shapes = [
        {name: tuple(value.shape) for name, value in build(BIDIRECTIONAL, pool=pool, l_max=l_max).state_dict().items()}
        for l_max in (16, 4096)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("layer", [CAUSAL, {"name": "s5", "d_state": 16, "blocks": 2}])
def test_bf16_autocast_stays_near_float32(layer):
    model = build(layer).float().eval()
    exact = model(tokens(), LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(tokens(), LENGTHS)
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max() + 0.02


def test_dropout_acts_in_training_only():
    model = build(dropout=0.5)
    assert (model(tokens()) - model(tokens())).abs().max() > 0
    model.eval()
    torch.testing.assert_close(model(tokens()), model(tokens()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_layers": 0}, "n_layers >= 1"),
        ({"n_layers": 100_000}, "n_layers of at most 1000, got 100000"),
        ({"dropout": 1.0}, "probability"),
        ({"bn_momentum": 0.0}, "share in"),
        ({"mixer": "silugate"}, "Did you mean 'silu_gate'"),
        ({"norm": "bacth"}, "Did you mean 'batch'"),
        ({"pool": "meen"}, "Did you mean 'mean'"),
        ({"positions": "sinus"}, "Did you mean 'sinusoidal'"),
        ({"framework": "jax"}, "Known: flax, torch"),
        ({"task": "retreival"}, "Did you mean 'retrieval'"),
        ({"d_ff": 16}, "mixer is 'glu'"),
        ({"pool": "cls"}, "never updates"),
        ({"n_tokens": None}, "exactly one"),
    ],
)
def test_mistakes_are_refused_when_constructing(options, message):
    with pytest.raises(UsageError, match=message):
        build(**options)


def test_layer_mistakes_name_the_layer():
    with pytest.raises(UsageError, match="Did you mean 'transformer'"):
        build({"name": "transfomer"})
    with pytest.raises(UsageError, match="no option 'n_head'.*Did you mean 'n_heads'"):
        build({"name": "transformer", "n_head": 2})


def test_a_state_for_a_bidirectional_model_is_refused():
    model = build(BIDIRECTIONAL)
    _, state = model.features(tokens())
    assert state is None
    with pytest.raises(UsageError, match="carry none"):
        model.features(tokens(), build().initial_state(4))
    with pytest.raises(UsageError, match="bidirectional=False"):
        model.initial_state(4)


class Step(torch.nn.Module):
    """One position of a model as a module, the form that torch.export takes."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs_t, state):
        return self.model.step(inputs_t, state)


@torch.no_grad()
@pytest.mark.parametrize("name", ["s5", "s4d"])
def test_step_of_the_model_can_be_exported(name):
    model = build({"name": name, "d_state": 16}, norm="batch").float().eval()
    token, state = tokens()[:, 0], model.initial_state(4)
    program = torch.export.export(Step(model), (token, state), strict=False).module()
    exported = direct = state
    for token in tokens().T:
        found, exported = program(token, exported)
        expected, direct = model.step(token, direct)
        torch.testing.assert_close(found, expected)


def test_weights_survive_safetensors(tmp_path):
    model, other = build({"name": "s5", "d_state": 16}), build({"name": "s5", "d_state": 16})
    torch.nn.init.normal_(model.head.linear.weight)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    torch.testing.assert_close(other(tokens()), model(tokens()), rtol=0, atol=0)


def test_a_forward_pass_computes_no_state(monkeypatch):
    model, seen = build(), []
    layer = type(model.blocks[0].layer)
    forward = layer.forward

    def watched(self, *arguments, **options):
        y, state = forward(self, *arguments, **options)
        seen.append(state)
        return y, state

    monkeypatch.setattr(layer, "forward", watched)
    model(tokens())
    assert seen == [None, None]
    x, state = model.features(tokens(), return_state=False)
    assert state is None and torch.equal(x, model.features(tokens())[0]) and seen[-1] is not None
