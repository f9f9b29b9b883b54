"""The contract of SequenceLayer, for every registered layer: a new layer gets these tests by being registered."""

from __future__ import annotations

import math

import pytest
import torch
from contract_cases import (
    D_MODEL,
    L_MAX,
    assert_same_gradients,
    build,
    draw,
    every_bidirectional_layer,
    every_causal_layer,
    every_layer,
    leaves,
    relative_error,
    run_in_chunks,
    run_in_steps,
)

from fractal_ssm import UsageError


@every_layer
def test_shape_dtype_and_default_arguments(layer):
    u = draw(2, 9, D_MODEL)
    y, state = layer(u)
    assert y.shape == (2, 9, layer.d_output)
    assert y.dtype == u.dtype
    assert layer.d_model == D_MODEL
    assert (state is None) == (not layer.causal)
    full, _ = layer(u, lengths=torch.tensor([9, 9]))
    torch.testing.assert_close(full, y, rtol=1e-12, atol=1e-12)


@every_causal_layer
@pytest.mark.parametrize("sizes", [[37], [1, 36], [36, 1], [5, 1, 20, 11], [1] * 37])
def test_any_chunking_gives_the_same_outputs_and_gradients(causal_layer, sizes):
    u, weight = draw(2, 37, D_MODEL).requires_grad_(), draw(2, 37, causal_layer.d_output, seed=2)
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


@every_causal_layer
def test_steps_have_the_gradients_of_the_whole(causal_layer):
    u, weight = draw(2, 6, D_MODEL).requires_grad_(), draw(2, 6, causal_layer.d_output, seed=2)
    inputs = [u, *causal_layer.parameters()]
    expected = torch.autograd.grad((causal_layer(u)[0] * weight).sum(), inputs)
    found = torch.autograd.grad((run_in_steps(causal_layer, u)[0] * weight).sum(), inputs)
    assert_same_gradients(found, expected)


@every_causal_layer
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@torch.no_grad()
def test_step_equals_forward_at_every_length(causal_layer, dtype, tolerance):
    layer = causal_layer.to(dtype)
    # A state that grows makes the loop quadratic.
    early, late = (leaves(run_in_steps(layer, draw(1, n, D_MODEL, dtype=dtype))[1]) for n in (1, 2))
    grows = [leaf.shape for leaf in early] != [leaf.shape for leaf in late]
    lengths = (1, 2, 7, 64, 257) if grows else (1, 2, 7, 64, 1000, 1024, L_MAX)
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
def test_a_state_that_is_not_asked_for_changes_nothing_else(layer):
    u, lengths = draw(2, 9, D_MODEL).requires_grad_(), torch.tensor([9, 4])
    start = layer.initial_state(2) if layer.causal else None
    weight = (torch.arange(9) < lengths[:, None]).to(u.dtype)[..., None]
    expected, _ = layer(u, start, lengths)
    found, state = layer(u, start, lengths, return_state=False)
    assert state is None
    assert torch.equal(found * weight, expected * weight)
    inputs = [u, *layer.parameters()]
    gradients = [torch.autograd.grad((y * y * weight).sum(), inputs) for y in (found, expected)]
    assert_same_gradients(*gradients)


@every_layer
@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_batch_of_no_samples_has_gradients_of_zero(layer, length):
    u = draw(0, length, D_MODEL).requires_grad_()
    y, _ = layer(u)
    assert y.shape == (0, length, layer.d_output)
    for gradient in torch.autograd.grad(y.sum(), [u, *layer.parameters()]):
        assert (gradient == 0).all()


@every_causal_layer
def test_causal_layers_do_not_look_ahead(causal_layer):
    u = draw(1, 20, D_MODEL)
    changed = u.clone()
    changed[:, 12:] += 1.0
    before, after = causal_layer(u)[0], causal_layer(changed)[0]
    torch.testing.assert_close(before[:, :12], after[:, :12], rtol=1e-9, atol=1e-10)


@every_layer
def test_wrong_shapes_are_refused_with_both_shapes(layer):
    for wrong in (draw(2, D_MODEL), draw(2, 9, D_MODEL + 1), draw(2, D_MODEL, 9)):
        with pytest.raises(UsageError, match=rf"{D_MODEL}.*got \({', '.join(map(str, wrong.shape))}\)"):
            layer(wrong)
    with pytest.raises(UsageError, match="length must be >= 1"):
        layer(draw(2, 0, D_MODEL))
    with pytest.raises(UsageError, match=r"lengths of shape \(2,\)"):
        layer(draw(2, 9, D_MODEL), lengths=torch.tensor([9]))


@every_causal_layer
def test_wrong_states_and_steps_are_refused(causal_layer):
    with pytest.raises(UsageError):
        causal_layer(draw(2, 9, D_MODEL), causal_layer.initial_state(3))
    with pytest.raises(UsageError):
        causal_layer.step(draw(2, D_MODEL), causal_layer.initial_state(3))
    with pytest.raises(UsageError):
        causal_layer.step(draw(2, D_MODEL + 1), causal_layer.initial_state(2))
    with pytest.raises(UsageError):
        causal_layer.step(draw(2, 1, D_MODEL), causal_layer.initial_state(2))


@every_bidirectional_layer
def test_layers_that_are_not_causal_say_what_to_do_instead(layer):
    assert not layer.causal
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
    steps = [name for name, _ in layer.named_parameters() if type(layer).roles.get(name) == "dt"]
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


@every_causal_layer
def test_states_are_independent_of_the_batch_around_them(causal_layer):
    u = draw(3, 11, D_MODEL)
    _, state = causal_layer(u)
    _, alone = causal_layer(u[1:2])
    after = draw(3, 4, D_MODEL, seed=4)
    together = causal_layer(after, state)[0][1]
    torch.testing.assert_close(together, causal_layer(after[1:2], alone)[0][0], rtol=1e-9, atol=1e-11)
