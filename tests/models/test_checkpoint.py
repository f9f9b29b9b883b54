"""Layers that make their states again in the backward give what layers that keep them give."""

import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fractal_ssm import UsageError
from fractal_ssm.ops.ssm import pieces
from fractal_ssm.registry import layers

# Three parts of each sample, the last one short.
LENGTH, PART = 150, 64

CASES = [
    ("s5", {"d_state": 16, "blocks": 2}),
    ("s5", {"d_state": 16, "blocks": 2, "bidirectional": True}),
    ("lru", {"d_state": 8}),
    ("lru", {"d_state": 8, "bidirectional": True}),
    ("fractal", {"d_state": 16, "n_alphas": 2}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "bidirectional": True}),
    ("fractal", {"d_state": 16, "n_alphas": 2, "time": "ltv"}),
]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_checkpoint_changes_memory_only(name, options, padded, monkeypatch):
    for states in ("_STATES", "_STATES_REMADE"):
        monkeypatch.setattr(pieces, states, 0)
    for fewest in ("_FEWEST", "_FEWEST_REMADE"):
        monkeypatch.setattr(pieces, fewest, PART)
    torch.manual_seed(0)
    kept = layers.build({"name": name, **options}, d_model=4, l_max=LENGTH).double()
    remade = layers.build({"name": name, **options, "checkpoint": True}, d_model=4, l_max=LENGTH).double()
    remade.load_state_dict(kept.state_dict())
    u = torch.randn(3, LENGTH, 4, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([LENGTH, 1, 70]) if padded else None
    saved, results = {kept: [], remade: []}, []
    for layer, sizes in saved.items():
        note = lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            y, _ = layer(u, lengths=lengths)
        results.append([y, *torch.autograd.grad(y.square().sum(), [u, *layer.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
    # An option that is taken and not handed on would pass the comparison above.
    assert sum(saved[remade]) < sum(saved[kept])


def peak(layer, u):
    """Bytes that a forward and backward pass allocate at most, its output and all gradients included."""
    weight = torch.ones_like(u)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        layer(u, return_state=False)[0].backward(weight)
    changes = [event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(changes))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}])
def test_with_as_many_modes_as_features_half_of_the_peak_is_saved(options):
    u, peaks = torch.randn(8, 2048, 64, requires_grad=True), []
    for checkpoint in (False, True):
        layer = layers.build({"name": "s5", "d_state": 128, "checkpoint": checkpoint, **options}, d_model=64, l_max=1)
        layer(u)[0].sum().backward()
        u.grad = None
        layer.zero_grad()
        peaks.append(peak(layer, u))
    assert peaks[1] <= peaks[0] / 2


def test_checkpoint_is_a_switch():
    with pytest.raises(UsageError, match="checkpoint to be True or False"):
        layers.build({"name": "s5", "checkpoint": "yes"}, d_model=4)
