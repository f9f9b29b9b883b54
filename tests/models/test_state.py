"""States as data: for every causal layer and for models, stored, selected, joined and reset, with gradients."""

from __future__ import annotations

import pytest
import torch
from contract_cases import D_MODEL, draw, every_causal_layer, leaves
from safetensors.torch import load_file, save_file

from fractal_ssm import S5, UsageError
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.state import batch_size, concat, detach, from_real, reset, select, to_real

NODES = [
    {"name": "transformer", "n_heads": 2},
    {"name": "s5", "d_state": 16},
    {"name": "s4d", "d_state": 8},
    {"name": "fractal", "d_state": 16, "n_alphas": 2, "time": "ltv"},
]


def goes_on_as(layer, state, u, expected):
    torch.testing.assert_close(layer(u, state)[0], expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer.step(u[:, 0], state)[0], expected[:, 0], rtol=1e-9, atol=1e-10)


@every_causal_layer
@torch.no_grad()
def test_a_state_has_one_row_per_sample_from_the_start(causal_layer):
    states = [causal_layer.initial_state(3), causal_layer(draw(3, 5, D_MODEL))[1]]
    states.append(causal_layer.step(draw(3, D_MODEL), states[0])[1])
    states.append(causal_layer(draw(3, 5, D_MODEL), lengths=torch.tensor([5, 1, 2]))[1])
    for state in states:
        assert batch_size(state) == 3
        assert all(len(leaf) == 3 for leaf in leaves(state))
    assert batch_size(causal_layer.initial_state(0)) == 0


@every_causal_layer
@torch.no_grad()
def test_a_state_survives_files(causal_layer, tmp_path):
    u, more = draw(3, 5, D_MODEL), draw(3, 2, D_MODEL, seed=2)
    state = causal_layer(u)[1]
    real = to_real(state)
    assert all(not t.is_complex() and t.is_contiguous() and len(t) == 3 for t in real.values())
    save_file(real, tmp_path / "state.safetensors")
    torch.save(real, tmp_path / "state.pt")
    expected, _ = causal_layer(more, state)
    for tensors in (load_file(tmp_path / "state.safetensors"), torch.load(tmp_path / "state.pt", weights_only=True)):
        again = from_real(tensors, like=causal_layer.initial_state(1))
        assert type(again) is type(state)
        goes_on_as(causal_layer, again, more, expected)


@every_causal_layer
@torch.no_grad()
def test_samples_are_selected_and_joined(causal_layer):
    u, more = draw(3, 5, D_MODEL), draw(3, 2, D_MODEL, seed=2)
    state = causal_layer(u)[1]
    expected, _ = causal_layer(more, state)
    order = [2, 0, 0]
    goes_on_as(causal_layer, select(state, order), more[order], expected[order])
    mask = torch.tensor([True, False, True])
    goes_on_as(causal_layer, select(state, mask), more[mask], expected[mask])
    goes_on_as(causal_layer, select(state, slice(1, None)), more[1:], expected[1:])
    goes_on_as(causal_layer, select(state, torch.tensor([-1])), more[2:], expected[2:])
    goes_on_as(causal_layer, concat([select(state, [0]), select(state, [1, 2])]), more, expected)
    # Of different ages.
    young = causal_layer(u[:1, :2])[1]
    together = concat([state, young, causal_layer.initial_state(1)])
    last = [causal_layer(more[:1], young)[0], causal_layer(more[1:2])[0]]
    inputs = torch.cat([more, more[:2]])
    goes_on_as(causal_layer, together, inputs, torch.cat([expected, *last]))
    # A joined state goes on, and is joined again.
    after = causal_layer(inputs, together)[1]
    alone = causal_layer(more[:1], causal_layer(more[:1], young)[1])[0]
    goes_on_as(causal_layer, concat([young, select(after, [3])]), more[[0, 0]], torch.cat([last[0], alone]))


@every_causal_layer
@torch.no_grad()
def test_samples_start_again(causal_layer):
    u, more = draw(3, 5, D_MODEL), draw(3, 2, D_MODEL, seed=2)
    u[1, 2] = float("nan")
    state, mask = causal_layer(u)[1], torch.tensor([False, True, False])
    fresh, before = causal_layer(more)[0], causal_layer(more, select(state, [0, 0, 2]))[0]
    expected = torch.stack([before[0], fresh[1], before[2]])
    goes_on_as(causal_layer, reset(state, mask), more, expected)
    for rest in (causal_layer.initial_state(1), causal_layer.initial_state(3)):
        goes_on_as(causal_layer, reset(state, mask, rest), more, expected)
    assert not leaves(causal_layer(more, state)[0])[0][1].isfinite().all()


@every_causal_layer
def test_gradients_pass_through(causal_layer):
    u, more, weight = draw(3, 5, D_MODEL).requires_grad_(), draw(3, 2, D_MODEL, seed=2), torch.tensor([1.0, 0.0, 2.0])

    def gradient(state):
        y, _ = causal_layer(more, state)
        return torch.autograd.grad((y * weight[:, None, None]).square().sum(), u, allow_unused=True)[0]

    expected = gradient(causal_layer(u)[1])
    state = causal_layer(u)[1]
    found = gradient(from_real(to_real(state), like=causal_layer.initial_state(1)))
    torch.testing.assert_close(found, expected)
    state = causal_layer(u)[1]
    split = concat([select(state, [0, 1]), select(state, slice(2, 3))])
    torch.testing.assert_close(gradient(split), expected)
    state = causal_layer(u)[1]
    once = gradient(reset(state, torch.tensor([False, False, True])))
    torch.testing.assert_close(once[:2], expected[:2])
    assert (once[2] == 0).all()
    assert gradient(detach(causal_layer(u)[1])) is None


@pytest.mark.parametrize("node", NODES, ids=lambda node: node["name"])
@pytest.mark.parametrize("pool", ["mean", "last"])
@torch.no_grad()
def test_states_of_models(node, pool, tmp_path):
    torch.manual_seed(0)
    model = SequenceModel(node, n_classes=3, n_tokens=7, d_model=8, n_layers=2, positions="sinusoidal", pool=pool)
    model.double().eval()
    tokens = torch.randint(0, 7, (3, 8), generator=torch.Generator().manual_seed(1))
    _, state = model.features(tokens[:, :5])
    _, young = model.features(tokens[:, :2])
    save_file(to_real(state), tmp_path / "state.safetensors")
    state = from_real(load_file(tmp_path / "state.safetensors"), like=model.initial_state(1))
    mixed = concat([select(state, [2, 0]), select(young, [1]), select(state, [1])])
    mixed = reset(mixed, torch.tensor([False, False, False, True]))
    scores, _ = model.step(tokens[[2, 0, 1, 1], [5, 5, 2, 5]], mixed)
    expected = [model(tokens[2:, :6]), model(tokens[:1, :6]), model(tokens[1:2, :3]), model(tokens[1:2, 5:6])]
    torch.testing.assert_close(scores, torch.cat(expected))


def test_what_is_no_state_or_does_not_fit_is_refused():
    layer, other = S5(4, d_state=8, blocks=1), S5(4, d_state=16, blocks=1)
    state = layer.initial_state(2)
    for wrong in (None, 3, "state", (), [None]):
        with pytest.raises(UsageError, match="A state is"):
            batch_size(wrong)
    with pytest.raises(UsageError, match="one row per sample"):
        batch_size((torch.ones(2), torch.ones(3)))
    with pytest.raises(UsageError, match="from the same layer or model"):
        concat([state, (state,)])
    with pytest.raises(UsageError, match="states of one layer"):
        concat([state, other.initial_state(1)])
    for wrong in (state, [], (), None):
        with pytest.raises(UsageError, match="a list of states"):
            concat(wrong)
    for wrong in (1, "0", [0.5], [True, False], torch.ones(2), torch.ones(3, dtype=torch.bool), None):
        with pytest.raises(UsageError, match="select takes"):
            select(state, wrong)
    for wrong in ([2], [-3], torch.tensor([0, 5])):
        with pytest.raises(UsageError, match=r"samples 0\.\.1"):
            select(state, wrong)
    for wrong in (torch.ones(2), torch.ones(3, dtype=torch.bool), [True, False]):
        with pytest.raises(UsageError, match=r"bool mask of shape \(2,\)"):
            reset(state, wrong)
    real = to_real(state)
    with pytest.raises(UsageError, match="missing state, unknown state.x"):
        from_real({"state.x": real["state"]}, like=state)
    with pytest.raises(UsageError, match="a mapping"):
        from_real(state, like=state)
    for wrong in (real["state"].double(), state, real["state"][:, :1], None):
        with pytest.raises(UsageError, match="from_real takes state of"):
            from_real({"state": wrong}, like=state)
