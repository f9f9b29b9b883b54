"""Attention against its formula, position by position, and the promises of its cache."""

import pytest
import torch

from fractal_ssm import Attention
from fractal_ssm.errors import UsageError
from fractal_ssm.models.blocks.encoder import sinusoid
from fractal_ssm.models.transformer.rotary import rotate


def make(**options):
    torch.manual_seed(0)
    return Attention(**{"d_model": 8, "n_heads": 2, **options}).double()


def by_formula(layer, u, limit):
    """y of one sample (L, H), query t seeing the keys s < limit(t); a plain double loop over heads and positions."""
    length, d = len(u), layer.head_size
    query, key, value = (part.unflatten(-1, (layer.n_heads, d)) for part in layer.qkv(u).chunk(3, dim=-1))
    if layer.rotary:
        at = torch.arange(1.0, length + 1, dtype=u.dtype)[None]
        query, key = (rotate(part.transpose(0, 1)[None], at)[0].transpose(0, 1) for part in (query, key))
    rows = []
    for t in range(length):
        seen = limit(t)
        heads = [
            torch.softmax(key[:seen, h] @ query[t, h] / d**0.5, dim=0) @ value[:seen, h] for h in range(layer.n_heads)
        ]
        rows.append(layer.out(torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("d_qkv", [None, 4])
def test_equals_the_formula_with_and_without_padding(rotary, bidirectional, d_qkv):
    layer = make(rotary=rotary, bidirectional=bidirectional, d_qkv=d_qkv)
    u = torch.randn(3, 7, 8, dtype=torch.float64)
    lengths = torch.tensor([7, 4, 1])
    for given in (None, lengths):
        y, _ = layer(u, lengths=given)
        for b in range(3):
            n = 7 if given is None else int(lengths[b])
            expected = by_formula(layer, u[b, :n], (lambda t, n=n: n) if bidirectional else lambda t: t + 1)
            torch.testing.assert_close(y[b, :n], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_padding_may_hold_nan(bidirectional):
    layer = make(bidirectional=bidirectional)
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    lengths = torch.tensor([5, 2])
    clean, _ = layer(u, lengths=lengths)
    u[1, 2:] = float("nan")
    dirty, _ = layer(u, lengths=lengths)
    torch.testing.assert_close(dirty[0], clean[0])
    torch.testing.assert_close(dirty[1, :2], clean[1, :2])


def test_ragged_chunks_equal_one_call():
    """Each sample goes on from its own last valid position, rotary angles included."""
    layer = make()
    first, second = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    lengths = torch.tensor([5, 2])
    _, state = layer(first, lengths=lengths)
    y, state = layer(second, state)
    last, _ = layer.step(second[:, 0], state)
    for b, n in enumerate(lengths.tolist()):
        whole, _ = layer(torch.cat([first[b, :n], second[b], second[b, :1]])[None])
        torch.testing.assert_close(y[b], whole[0, n : n + 3])
        torch.testing.assert_close(last[b], whole[0, -1])


def test_rotated_scores_depend_on_distance_only():
    query, key = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64)

    def score(a, b):
        at = torch.tensor([[a], [b]], dtype=torch.float64)
        return (rotate(query, at[:1]) * rotate(key, at[1:])).sum()

    torch.testing.assert_close(score(3.0, 1.5), score(103.0, 101.5))
    assert abs(score(3.0, 1.0) - score(3.0, 2.0)) > 1e-3
    torch.testing.assert_close(rotate(query, torch.zeros(1, 1, dtype=torch.float64)), query)


def test_dt_scale_stretches_distances():
    layer = make(bidirectional=True)
    u = torch.randn(2, 6, 8, dtype=torch.float64)
    twice, _ = layer(u, dt_scale=2.0)
    torch.testing.assert_close(layer(u, dt_scale=torch.full((2,), 2.0))[0], twice)
    torch.testing.assert_close(layer(u, dt_scale=torch.full((2, 6), 2.0))[0], twice)
    assert (twice - layer(u)[0]).abs().max() > 1e-4
    with pytest.raises(UsageError, match="dt_scale must be a number or of shape"):
        layer(u, dt_scale=torch.ones(3))
    with pytest.raises(UsageError, match="rotary=True"):
        make(rotary=False)(u, dt_scale=2.0)


def test_bf16_autocast_stays_near_float32():
    layer = make().float()
    u = torch.randn(2, 33, 8)
    exact, _ = layer(u)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough, _ = layer(u)
    assert (rough.float() - exact).abs().max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 3}, "must divide"),
        ({"n_heads": 8}, "must be even"),
        ({"dropout": 1.0}, "probability"),
    ],
)
def test_impossible_sizes_are_refused_when_constructing(options, message):
    with pytest.raises(UsageError, match=message):
        make(**options)


def test_bidirectional_attention_says_how_to_stream():
    layer = make(bidirectional=True)
    for call in (lambda: layer.step(torch.zeros(1, 8), None), lambda: layer.initial_state(1)):
        with pytest.raises(UsageError, match="bidirectional=False"):
            call()


def test_sinusoid_against_its_definition():
    table = sinusoid(torch.arange(5), 6)
    for t in range(5):
        for i in range(3):
            angle = torch.tensor(t / 10000 ** (2 * i / 6))
            torch.testing.assert_close(table[t, 2 * i], angle.sin())
            torch.testing.assert_close(table[t, 2 * i + 1], angle.cos())
    assert sinusoid(torch.arange(5), 5).shape == (5, 5)
