"""The parts around the layers, each against its formula written out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fractal_ssm.errors import UsageError
from fractal_ssm.models.base import SequenceLayer
from fractal_ssm.models.blocks.block import Block
from fractal_ssm.models.blocks.decoder import RetrievalHead, build_head, pool_positions
from fractal_ssm.models.blocks.dense import TiedDropout, dense, lecun_normal_
from fractal_ssm.models.blocks.encoder import Encoder
from fractal_ssm.models.blocks.mixer import MIXERS, build_mixer
from fractal_ssm.models.blocks.norm import build_norm

LENGTHS = torch.tensor([6, 2, 1])


class Doubler(SequenceLayer):
    """y = 2 u; remembers the lengths it was told."""

    causal = True
    lengths_seen = None

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, u, state=None, lengths=None, dt_scale=1.0):
        self.lengths_seen = lengths
        return 2 * u, state


def block(**options):
    torch.manual_seed(0)
    defaults = dict(mixer="gelu", norm="layer", prenorm=True, dropout=0.0, mask_padding=True, bn_momentum=0.1)
    return Block(Doubler(4), framework="torch", **{**defaults, **options}).double()


def data(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# Norms


def normalised(rows, module):
    """(rows - mean) / sqrt(biased variance + eps), per column."""
    return (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt() * module.weight + module.bias


@pytest.mark.parametrize("norm", ["batch", "batch-masked"])
def test_batch_statistics_count_padding_only_when_published(norm):
    module = build_norm(norm, 4, 0.3, "torch").double()
    with torch.no_grad():
        module.statistics.weight.copy_(data(4))
        module.statistics.bias.copy_(data(4) + 1)
    x = data(3, 6, 4)
    valid = torch.arange(6) < LENGTHS[:, None]
    counted = x[valid] if norm == "batch-masked" else x.flatten(0, 1)
    expected = normalised(counted, module.statistics)
    y = module(x, LENGTHS)
    torch.testing.assert_close(y[valid], expected if norm == "batch-masked" else expected.view_as(x)[valid])
    # Running statistics: torch's rule, unbiased variance, momentum is the share of the new batch.
    torch.testing.assert_close(module.statistics.running_mean, 0.3 * counted.mean(0))
    torch.testing.assert_close(module.statistics.running_var, 0.7 + 0.3 * counted.var(0))


def test_batch_norms_agree_where_nothing_is_padded():
    x, lengths = data(3, 6, 4), torch.full((3,), 6)
    masked, plain = build_norm("batch-masked", 4, 0.1, "torch").double(), build_norm("batch", 4, 0.1, "torch").double()
    torch.testing.assert_close(masked(x, lengths), plain(x, lengths), rtol=0, atol=0)
    torch.testing.assert_close(masked.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_masked_batch_norm_does_not_see_what_padding_holds():
    module = build_norm("batch-masked", 4, 0.1, "torch").double()
    x = data(3, 6, 4).requires_grad_()
    y = module(x, LENGTHS)
    valid = torch.arange(6) < LENGTHS[:, None]
    y[valid].pow(3).sum().backward()
    assert (x.grad[~valid] == 0).all() and (x.grad[valid] != 0).any()
    noisy = torch.where(valid[..., None], x.detach(), 1e6)
    torch.testing.assert_close(module(noisy, LENGTHS)[valid], y[valid])


@pytest.mark.parametrize("norm", ["batch", "batch-masked"])
def test_batch_norm_uses_running_statistics_in_eval(norm):
    module = build_norm(norm, 4, 0.1, "torch").double().eval()
    module.statistics.running_mean.fill_(2.0)
    module.statistics.running_var.fill_(9.0)
    x = data(3, 6, 4)
    torch.testing.assert_close(module(x, LENGTHS), (x - 2) / math.sqrt(9 + 1e-5))


def test_batch_norm_becomes_synchronised():
    module = nn.SyncBatchNorm.convert_sync_batchnorm(build_norm("batch-masked", 4, 0.1, "torch"))
    assert isinstance(module.statistics, nn.SyncBatchNorm)
    assert module.eval()(torch.randn(3, 6, 4), LENGTHS).shape == (3, 6, 4)


@pytest.mark.parametrize(("framework", "eps"), [("torch", 1e-5), ("flax", 1e-6)])
def test_layer_norm_is_per_position(framework, eps):
    module = build_norm("layer", 4, 0.1, framework).double()
    x = data(2, 3, 4) * 1e-2
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    torch.testing.assert_close(module(x, None), (x - mean) / (variance + eps).sqrt(), rtol=1e-10, atol=1e-12)


# Mixers


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def affine(x, linear):
    return x @ linear.weight.T + linear.bias


FORMULAS = {
    "glu": lambda m, y, z: affine(gelu_erf(y), m.linear)[..., :4] * affine(gelu_erf(y), m.linear)[..., 4:].sigmoid(),
    "full_glu": lambda m, y, z: affine(gelu_tanh(y), m.value) * affine(gelu_tanh(y), m.gate).sigmoid(),
    "half_glu1": lambda m, y, z: gelu_tanh(y) * affine(gelu_tanh(y), m.gate).sigmoid(),
    "half_glu2": lambda m, y, z: y * affine(gelu_tanh(y), m.gate).sigmoid(),
    "gelu": lambda m, y, z: gelu_tanh(y),
    "silu_gate": lambda m, y, z: affine(y, m.out) * (affine(z, m.gate) * affine(z, m.gate).sigmoid()),
    "mlp": lambda m, y, z: y,
}


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_equal_their_formulas(name):
    mixer = build_mixer(name, 4, 0.0, "torch").double()
    y, z = data(2, 5, 4), data(2, 5, 4) + 0.5
    torch.testing.assert_close(mixer(y, z), FORMULAS[name](mixer, y, z), rtol=1e-10, atol=1e-12)


def test_dropout_is_shared_by_positions_and_keeps_the_mean():
    torch.manual_seed(0)
    x = torch.ones(200, 7, 50)
    y = TiedDropout(0.25)(x)
    assert (y == y[:, :1]).all()
    assert y.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert TiedDropout(0.25).eval()(x) is x


# Blocks


def layer_norm(value):
    return F.layer_norm(value, (4,))


@pytest.mark.parametrize("prenorm", [True, False])
def test_block_places_the_norm(prenorm):
    module = block(prenorm=prenorm)
    x = data(2, 5, 4)
    expected = x + gelu_tanh(2 * layer_norm(x)) if prenorm else layer_norm(x + gelu_tanh(2 * x))
    torch.testing.assert_close(module(x)[0], expected)


def test_gate_reads_the_normalised_input():
    module = block(mixer="silu_gate")
    x = data(2, 5, 4)
    z = F.layer_norm(x, (4,))
    torch.testing.assert_close(module(x)[0], x + FORMULAS["silu_gate"](module.mixer, 2 * z, z))


@pytest.mark.parametrize("prenorm", [True, False])
def test_feed_forward_sub_block(prenorm):
    module = block(mixer="mlp", d_ff=10, prenorm=prenorm)
    x = data(2, 5, 4)
    ff = module.feed_forward
    assert ff.inner.out_features == 10

    def wide(value):
        return affine(gelu_erf(affine(value, ff.inner)), ff.outer)

    if prenorm:
        middle = x + 2 * layer_norm(x)
        expected = middle + wide(layer_norm(middle))
    else:
        middle = layer_norm(3 * x)
        expected = layer_norm(middle + wide(middle))
    torch.testing.assert_close(module(x)[0], expected)


@pytest.mark.parametrize("mask_padding", [True, False])
def test_mask_padding_decides_what_the_layer_is_told(mask_padding):
    module = block(mask_padding=mask_padding)
    module(data(3, 6, 4), lengths=LENGTHS)
    assert (module.layer.lengths_seen is LENGTHS) == mask_padding


# Encoder


def test_flax_token_encoder_is_a_dense_layer_on_one_hot_input():
    torch.manual_seed(0)
    encoder = Encoder(4, 20, None, bias=True, positions="none", class_token=False, framework="flax")
    assert sum(p.numel() for p in encoder.parameters()) == 20 * 4 + 4
    nn.init.normal_(encoder.bias)
    tokens = torch.randint(0, 20, (3, 6))
    one_hot = F.one_hot(tokens, 20).float()
    torch.testing.assert_close(encoder(tokens), one_hot @ encoder.embedding.weight + encoder.bias)


def test_torch_token_encoder_is_a_unit_normal_embedding():
    torch.manual_seed(0)
    encoder = Encoder(512, 200, None, bias=False, positions="none", class_token=False, framework="torch")
    assert [name for name, _ in encoder.named_parameters()] == ["embedding.weight"]
    assert encoder.embedding.weight.std().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("inputs", "sizes", "message"),
    [
        (torch.zeros(2, 5, 1), (7, None), "built with d_input"),
        (torch.zeros(2, 5, dtype=torch.int64), (None, 1), "built with n_tokens"),
        (torch.zeros(2, 5, 2), (None, 1), r"\(batch, length, 1\)"),
    ],
)
def test_encoder_refuses_the_other_kind_of_input(inputs, sizes, message):
    encoder = Encoder(4, *sizes, bias=True, positions="none", class_token=False, framework="torch")
    with pytest.raises(UsageError, match=message):
        encoder(inputs)


@pytest.mark.parametrize("sizes", [(None, None), (7, 1)])
def test_encoder_needs_exactly_one_kind(sizes):
    with pytest.raises(UsageError, match="exactly one"):
        Encoder(4, *sizes, bias=True, positions="none", class_token=False, framework="torch")


# Start values


def test_lecun_normal_has_the_stated_variance_and_cut():
    torch.manual_seed(0)
    weight = lecun_normal_(torch.empty(500, 400), fan_in=400)
    assert weight.std().item() == pytest.approx(0.05, rel=0.01)
    assert weight.abs().max() <= 2 * 0.05 / 0.87962566 + 1e-6


def test_flax_dense_starts_with_zero_bias():
    assert (dense(4, 3, "flax").bias == 0).all() and (dense(4, 3, "torch").bias != 0).any()


# Pooling and heads


def test_pooling_by_hand():
    x = data(3, 6, 4)
    padded = torch.where(torch.arange(6)[:, None] < LENGTHS[:, None, None], x, float("nan"))
    for given, sample_lengths in ((LENGTHS, LENGTHS.tolist()), (None, [6, 6, 6])):
        source = x if given is None else padded
        rows = [x[b, :n] for b, n in enumerate(sample_lengths)]
        torch.testing.assert_close(pool_positions(source, "mean", given), torch.stack([r.mean(0) for r in rows]))
        torch.testing.assert_close(pool_positions(source, "last", given), torch.stack([r[-1] for r in rows]))
    torch.testing.assert_close(pool_positions(x, "cls", LENGTHS), x[:, 0])


def test_mean_pooling_of_half_precision_sums_in_float32():
    x = torch.full((1, 16384, 1), 1.0078125, dtype=torch.bfloat16)
    assert pool_positions(x, "mean", torch.tensor([16384])).item() == 1.0078125


@pytest.mark.parametrize(("framework", "gelu"), [("torch", gelu_erf), ("flax", gelu_tanh)])
def test_retrieval_head_by_hand(framework, gelu):
    torch.manual_seed(0)
    head = RetrievalHead(4, 2, framework).double()
    documents = data(6, 4)
    logits = head(documents)
    for k in range(3):
        a, b = documents[k], documents[3 + k]
        hidden = gelu(affine(torch.cat([a, b, a - b, a * b]), head.inner))
        torch.testing.assert_close(logits[k], affine(hidden, head.outer), rtol=1e-10, atol=1e-12)
    with pytest.raises(UsageError, match="even batch"):
        head(documents[:5])


def test_unknown_names_say_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'half_glu1'"):
        build_mixer("halfglu1", 4, 0.0, "torch")
    with pytest.raises(UsageError, match="Did you mean 'batch'"):
        build_norm("bach", 4, 0.1, "torch")
    with pytest.raises(UsageError, match="Did you mean 'retrieval'"):
        build_head("retreival", 4, "torch", n_classes=2)
    with pytest.raises(UsageError, match="Did you mean 'mean'"):
        pool_positions(data(1, 2, 3), "meen")


# The state


class Counter(Doubler):
    """Knows `return_state`, and remembers what it was told."""

    def forward(self, u, state=None, lengths=None, dt_scale=1.0, return_state=True):
        self.asked = return_state
        return 2 * u, "a state" if return_state else None


@pytest.mark.parametrize("asked", [True, False])
def test_the_layer_is_told_whether_a_state_is_wanted(asked):
    module = block()
    module.layer = Counter(4)
    assert module(data(1, 3, 4), return_state=asked)[1] == ("a state" if asked else None)
    assert module.layer.asked is asked


def test_a_layer_that_does_not_know_the_argument_still_works():
    module, x = block(), data(1, 3, 4)
    y, state = module(x, "earlier")
    assert state == "earlier"
    found, state = module(x, "earlier", return_state=False)
    assert state is None and torch.equal(found, y)
