"""The contract of SequenceLayer, for every registered layer: a new layer gets these tests by being registered.

Each layer is built with its defaults, bidirectionally where it has that option, and in the variants listed below.
"""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from fractal_ssm import UsageError
from fractal_ssm.registry import layers
from safetensors.torch import load, save
from torch import nn
from torch.utils._pytree import tree_flatten

D_MODEL = 4
L_MAX = 4097
# Facts that a layer is built with at run time rather than through its options.
RUNTIME = {"d_model": D_MODEL, "l_max": L_MAX}

# Options without which a layer's defaults do not fit so few features.
FITTING = {"transformer": {"n_heads": 2}}

VARIANTS = [
    ("s5", {"d_state": 16, "blocks": 2, "conj_sym": False, "discretization": "bilinear"}),
    ("s5", {"d_state": 16, "blocks": 2, "clip_eigs": True, "C_init": "complex_normal"}),
    ("lru", {"d_state": 8, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "measure": "fractional-tau", "dt": "calibrated"}),
    ("fractal", {"d_state": 16, "n_alphas": 1, "measure": "legs", "B_init": "random"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "time": "ltv"}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "learn_alpha": True}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "learn_alpha": True, "measure": "fractional-tau"}),
]


def cases():
    found = []
    for name in layers.names():
        fitting = FITTING.get(name, {})
        found.append((name, fitting))
        if "bidirectional" in layers.options(name):
            found.append((name, {**fitting, "bidirectional": True}))
    return found + VARIANTS


def label(case):
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


def build(case, dtype=torch.float64, seed=0, **runtime):
    name, options = case
    torch.manual_seed(seed)
    return layers.build({"name": name, **options}, **{**RUNTIME, **runtime}).to(dtype).eval()


def draw(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative_error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def assert_same_gradients(found, expected, tolerance=1e-8):
    # A gradient that is zero in exact arithmetic has only rounding to show; it is measured by the others.
    floor = 1e-3 * max(gradient.abs().max().item() for gradient in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * max(other.abs().max().item(), floor)


def leaves(state):
    return tree_flatten(state)[0]


def run_in_chunks(layer, u, sizes):
    state, outputs = layer.initial_state(u.shape[0]), []
    for chunk in u.split(sizes, dim=1):
        y, state = layer(chunk, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def run_in_steps(layer, u):
    state, outputs = layer.initial_state(u.shape[0]), []
    for position in range(u.shape[1]):
        y, state = layer.step(u[:, position], state)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


every_layer = pytest.mark.parametrize("case", cases(), ids=label)


@pytest.fixture
def layer(case):
    return build(case)


@pytest.fixture
def causal_layer(case):
    layer = build(case)
    if not layer.causal:
        pytest.skip("not causal")
    return layer


@every_layer
def test_shape_dtype_and_default_arguments(layer):
    u = draw(2, 9, D_MODEL)
    y, state = layer(u)
    assert y.shape == u.shape
    assert y.dtype == u.dtype
    assert layer.d_model == D_MODEL
    assert (state is None) == (not layer.causal)
    full, _ = layer(u, lengths=torch.tensor([9, 9]))
    torch.testing.assert_close(full, y, rtol=1e-12, atol=1e-12)


@every_layer
@pytest.mark.parametrize("sizes", [[37], [1, 36], [36, 1], [5, 1, 20, 11], [1] * 37])
def test_any_chunking_gives_the_same_outputs_and_gradients(causal_layer, sizes):
    u, weight = draw(2, 37, D_MODEL).requires_grad_(), draw(2, 37, D_MODEL, seed=2)
    inputs = [u, *causal_layer.parameters()]
    whole, end = causal_layer(u, causal_layer.initial_state(2))
    expected = torch.autograd.grad((whole * weight).sum(), inputs)
    pieces, end_of_pieces = run_in_chunks(causal_layer, u, sizes)
    found = torch.autograd.grad((pieces * weight).sum(), inputs)
    assert relative_error(pieces, whole) < 1e-9
    assert_same_gradients(found, expected)
    for one, other in zip(leaves(end_of_pieces), leaves(end), strict=True):
        assert relative_error(one, other) < 1e-9
    rest, _ = causal_layer(u)
    assert relative_error(rest, whole) < 1e-12


@every_layer
def test_steps_have_the_gradients_of_the_whole(causal_layer):
    u, weight = draw(2, 6, D_MODEL).requires_grad_(), draw(2, 6, D_MODEL, seed=2)
    inputs = [u, *causal_layer.parameters()]
    expected = torch.autograd.grad((causal_layer(u)[0] * weight).sum(), inputs)
    found = torch.autograd.grad((run_in_steps(causal_layer, u)[0] * weight).sum(), inputs)
    assert_same_gradients(found, expected)


@every_layer
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@torch.no_grad()
def test_step_equals_forward_at_every_length(causal_layer, dtype, tolerance):
    layer = causal_layer.to(dtype)
    # A state that grows makes the loop quadratic.
    sizes = [sum(leaf.numel() for leaf in leaves(run_in_steps(layer, draw(1, n, D_MODEL, dtype=dtype))[1])) for n in (1, 2)]
    lengths = (1, 2, 7, 64, 1000, 1024, L_MAX) if sizes[0] == sizes[1] else (1, 2, 7, 64, 257)
    u = draw(1, lengths[-1], D_MODEL, dtype=dtype)
    stepped, _ = run_in_steps(layer, u)
    for length in lengths:
        whole, _ = layer(u[:, :length])
        assert relative_error(stepped[:, :length], whole) < tolerance, length
    again, _ = run_in_steps(layer, u[:, :64])
    assert torch.equal(again, stepped[:, :64])


@every_layer
def test_padding_changes_nothing(layer):
    u, lengths = draw(3, 21, D_MODEL), torch.tensor([1, 13, 21])
    noisy = u.clone()
    for sample, length in enumerate(lengths):
        noisy[sample, length:] = math.nan
    noisy.requires_grad_()
    y, state = layer(noisy, lengths=lengths)
    valid = torch.arange(21) < lengths[:, None]
    (gradient,) = torch.autograd.grad((y[valid] ** 2).sum(), noisy)
    assert (gradient[~valid] == 0).all()
    for sample, length in enumerate(lengths):
        alone, alone_state = layer(u[sample : sample + 1, :length])
        torch.testing.assert_close(y[sample, :length], alone[0], rtol=1e-9, atol=1e-11)
        if layer.causal:
            after = draw(3, 2, D_MODEL, seed=5)
            going_on = layer(after, state)[0][sample]
            torch.testing.assert_close(
                going_on, layer(after[sample : sample + 1], alone_state)[0][0], rtol=1e-9, atol=1e-11
            )


@every_layer
def test_causal_layers_do_not_look_ahead(layer):
    u = draw(1, 20, D_MODEL)
    changed = u.clone()
    changed[:, 12:] += 1.0
    before, after = layer(u)[0], layer(changed)[0]
    if layer.causal:
        torch.testing.assert_close(before[:, :12], after[:, :12], rtol=1e-9, atol=1e-10)
    else:
        assert not torch.allclose(before[:, :12], after[:, :12])


@every_layer
def test_state_dict_holds_real_tensors_with_storage_of_their_own(case):
    layer = build(case)
    entries = layer.state_dict()
    assert not any(value.is_complex() for value in entries.values())
    addresses = [parameter.untyped_storage().data_ptr() for parameter in layer.parameters()]
    assert len(set(addresses)) == len(addresses)
    for name, parameter in layer.named_parameters():
        others = {key: value.clone() for key, value in layer.state_dict().items() if key != name}
        assert 0 not in parameter.stride()
        parameter.data.fill_(0.5)
        for key, value in others.items():
            assert torch.equal(layer.state_dict()[key], value), (name, key)


@every_layer
def test_state_dict_does_not_depend_on_the_length(case):
    short, long = build(case, l_max=64), build(case, l_max=None, seed=3)
    short(draw(1, 64, D_MODEL))
    long.load_state_dict(short.state_dict(), strict=True)
    u = draw(1, 100, D_MODEL)
    if short.causal:
        with torch.no_grad():
            assert relative_error(run_in_steps(long, u)[0], run_in_steps(short, u)[0]) < 1e-12
            assert relative_error(run_in_steps(long, u)[0], long(u)[0]) < 1e-9


@every_layer
@torch.no_grad()
def test_safetensors_and_torch_round_trips_are_exact(case):
    layer, u = build(case, torch.float32), draw(2, 30, D_MODEL, dtype=torch.float32)
    y, _ = layer(u)
    other = build(case, torch.float32, seed=7)
    other.load_state_dict(load(save(layer.state_dict())), strict=True)
    assert torch.equal(other(u)[0], y)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    third = build(case, torch.float32, seed=8)
    third.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(third(u)[0], y)


@every_layer
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_stays_close_to_float32(case, low):
    layer, u = build(case, torch.float32), draw(2, 300, D_MODEL, dtype=torch.float32)
    expected, _ = layer(u)
    with torch.autocast("cpu", dtype=low):
        y, _ = layer(u)
        assert relative_error(y.float(), expected) < 2e-2
        rounded, _ = layer(u.to(low))
    assert torch.isfinite(rounded).all()
    assert relative_error(rounded.float(), layer(u.to(low).float())[0]) < 2e-2
    rounded.float().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@every_layer
@torch.no_grad()
def test_a_layer_converted_to_bfloat16_is_refused_or_right(case):
    layer, u = build(case, torch.float32), draw(2, 300, D_MODEL).bfloat16()
    expected, _ = layer(u.float())
    try:
        y, state = layer.bfloat16()(u)
    except UsageError:
        return
    assert y.dtype == torch.bfloat16
    assert relative_error(y.float(), expected) < 4e-2
    if layer.causal:
        one, _ = layer.step(u[:, 0], state)
        assert one.dtype == torch.bfloat16


@every_layer
@pytest.mark.slow
def test_compiled_layers_are_the_same(case):
    layer = build(case, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    for length in (20, 30, 40):
        u = draw(2, length, D_MODEL, dtype=torch.float32).requires_grad_()
        inputs = [u, *layer.parameters()]
        outputs = [module(u)[0] for module in (layer, compiled)]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
        expected, found = (torch.autograd.grad(y.square().sum(), inputs) for y in outputs)
        assert_same_gradients(found, expected, tolerance=1e-4)


class Step(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, u_t, state):
        return self.layer.step(u_t, state)


@every_layer
@torch.no_grad()
def test_step_can_be_exported(causal_layer):
    layer = causal_layer.float()
    _, state = layer(draw(2, 5, D_MODEL, dtype=torch.float32))
    u_t = draw(2, D_MODEL, dtype=torch.float32)
    program = torch.export.export(Step(layer), (u_t, state), strict=False)
    expected, after = layer.step(u_t, state)
    found, found_after = program.module()(u_t, state)
    torch.testing.assert_close(found, expected)
    for one, other in zip(leaves(found_after), leaves(after), strict=True):
        torch.testing.assert_close(one, other)


@every_layer
def test_wrong_shapes_are_refused_with_both_shapes(layer):
    for wrong in (draw(2, D_MODEL), draw(2, 9, D_MODEL + 1), draw(2, D_MODEL, 9)):
        with pytest.raises(UsageError, match=rf"{D_MODEL}.*got \({', '.join(map(str, wrong.shape))}\)"):
            layer(wrong)
    with pytest.raises(UsageError, match="length must be >= 1"):
        layer(draw(2, 0, D_MODEL))
    with pytest.raises(UsageError, match=r"lengths of shape \(2,\)"):
        layer(draw(2, 9, D_MODEL), lengths=torch.tensor([9]))


@every_layer
def test_wrong_states_and_steps_are_refused(causal_layer):
    with pytest.raises(UsageError):
        causal_layer(draw(2, 9, D_MODEL), causal_layer.initial_state(3))
    with pytest.raises(UsageError):
        causal_layer.step(draw(2, D_MODEL), causal_layer.initial_state(3))
    with pytest.raises(UsageError):
        causal_layer.step(draw(2, D_MODEL + 1), causal_layer.initial_state(2))
    with pytest.raises(UsageError):
        causal_layer.step(draw(2, 1, D_MODEL), causal_layer.initial_state(2))


@every_layer
def test_layers_that_are_not_causal_say_what_to_do_instead(layer):
    if layer.causal:
        pytest.skip("causal")
    for attempt in (
        lambda: layer.step(draw(2, D_MODEL), None),
        lambda: layer.initial_state(2),
        lambda: layer(draw(2, 9, D_MODEL), draw(2, 3)),
    ):
        with pytest.raises(UsageError, match="bidirectional|whole sequence"):
            attempt()


def with_dt_scale(layer, u, dt_scale):
    """The output, or None where the layer refuses this kind of step and says so."""
    try:
        return layer(u, dt_scale=dt_scale)[0]
    except UsageError:
        return None


@every_layer
def test_a_held_input_may_be_sampled_at_any_rate(layer):
    u = draw(2, 12, D_MODEL)
    coarse = with_dt_scale(layer, u, 2.0)
    if coarse is None or getattr(layer, "discretization", None) != "zoh":
        pytest.skip("no step, or not a zero-order hold")
    fine, _ = layer(u.repeat_interleave(2, dim=1))
    if layer.causal:
        assert relative_error(fine[:, 1::2], coarse) < 1e-9
    tensors = [torch.full((2,), 2.0, dtype=u.dtype), torch.full((2, 12), 2.0, dtype=u.dtype), torch.tensor(2.0)]
    for dt_scale in tensors:
        found = with_dt_scale(layer, u, dt_scale)
        assert found is None or relative_error(found, coarse) < 1e-9
    mixed = with_dt_scale(layer, u, torch.tensor([1.0, 3.0], dtype=u.dtype))
    if mixed is not None:
        assert relative_error(mixed[:1], layer(u[:1])[0]) < 1e-9
        assert relative_error(mixed[1:], layer(u[1:], dt_scale=3.0)[0]) < 1e-9


@every_layer
def test_impossible_steps_are_refused(layer):
    u = draw(2, 5, D_MODEL)
    for wrong in (0.0, -1.0, math.nan, torch.ones(3), torch.ones(2, 4), torch.ones(2, 5, D_MODEL)):
        with pytest.raises(UsageError):
            layer(u, dt_scale=wrong)


@every_layer
@pytest.mark.parametrize("value", [10.0, -20.0])
def test_extreme_steps_stay_finite(case, value):
    layer = build(case, torch.float32)
    steps = [name for name, role in type(layer).roles.items() if role == "dt" and name in dict(layer.named_parameters())]
    if not steps:
        pytest.skip("no step")
    with torch.no_grad():
        for name in steps:
            layer.get_parameter(name).fill_(value)
    u = draw(2, 65, D_MODEL, dtype=torch.float32).requires_grad_()
    y, _ = layer(u)
    assert torch.isfinite(y).all()
    y.sum().backward()
    for tensor in (u, *layer.parameters()):
        assert torch.isfinite(tensor.grad).all()


@every_layer
def test_every_parameter_is_used_and_roles_are_known(layer):
    y, _ = layer(draw(2, 30, D_MODEL))
    (y**2).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert set(type(layer).roles.values()) <= {"A", "B", "C", "D", "dt"}
    named = set(type(layer).roles)
    assert not named or named & set(dict(layer.named_parameters()))


def changed_in_place(layer):
    for parameter in layer.parameters():
        parameter.mul_(0.9)


def changed_by_an_optimizer(layer):
    with torch.enable_grad():
        layer(draw(1, 5, D_MODEL))[0].sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.01).step()


def changed_by_loading(layer):
    layer.load_state_dict({name: 0.9 * value for name, value in layer.state_dict().items()})


def changed_through_data(layer):
    for parameter in layer.parameters():
        parameter.data.mul_(0.9)


def changed_by_assigning_data(layer):
    for parameter in layer.parameters():
        parameter.data = parameter.data * 0.9


def changed_by_new_parameters(layer):
    for module in layer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(0.9 * parameter))


CHANGES = [
    changed_in_place,
    changed_by_an_optimizer,
    changed_by_loading,
    changed_through_data,
    changed_by_assigning_data,
    changed_by_new_parameters,
]


@every_layer
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_steps_follow_a_change_of_the_parameters(causal_layer, change):
    u = draw(2, 5, D_MODEL)
    before, state = run_in_steps(causal_layer, u)
    change(causal_layer)
    expected, _ = causal_layer(u[:, :1], state)
    found, _ = causal_layer.step(u[:, 0], state)
    assert relative_error(found, expected[:, 0]) < 1e-9
    after, _ = run_in_steps(causal_layer, u)
    assert not torch.allclose(after, before, rtol=1e-6, atol=0)
    assert relative_error(after, causal_layer(u)[0]) < 1e-9


@every_layer
def test_copies_and_pickles_have_steps_of_their_own(causal_layer):
    u, state = draw(2, D_MODEL), causal_layer.initial_state(2)
    with torch.no_grad():
        y, _ = causal_layer.step(u, state)
    for twin in (copy.deepcopy(causal_layer), pickle.loads(pickle.dumps(causal_layer))):
        with torch.no_grad():
            torch.testing.assert_close(twin.step(u, state)[0], y)
            for parameter in twin.parameters():
                parameter.mul_(0.5)
            assert not torch.allclose(twin.step(u, state)[0], y)
            torch.testing.assert_close(causal_layer.step(u, state)[0], y)


@every_layer
def test_states_are_independent_of_the_batch_around_them(causal_layer):
    u = draw(3, 11, D_MODEL)
    _, state = causal_layer(u)
    _, alone = causal_layer(u[1:2])
    after = draw(3, 4, D_MODEL, seed=4)
    together = causal_layer(after, state)[0][1]
    torch.testing.assert_close(together, causal_layer(after[1:2], alone)[0][0], rtol=1e-9, atol=1e-11)
