"""Layers that make their states again in the backward give what layers that keep them give."""

import pytest
import torch

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
    monkeypatch.setattr(pieces, "_STATES", 0)
    monkeypatch.setattr(pieces, "_FEWEST", PART)
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


def test_checkpoint_is_a_switch():
    with pytest.raises(UsageError, match="checkpoint to be True or False"):
        layers.build({"name": "s5", "checkpoint": "yes"}, d_model=4)
