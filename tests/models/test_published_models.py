"""load_published on whole models: outputs of the published codes, other shapes, leftovers on either side."""

from __future__ import annotations

import ast
import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_published import case

from fractal_ssm import S4D, S5, SequenceModel, UsageError, load_published
from fractal_ssm.models.published import published_mapping


def s5_model(o: dict, **changes) -> SequenceModel:
    layer = {"name": "s5", "d_state": o["P"], "blocks": o["J"], "bidirectional": o["bidir"]}
    options = dict(n_classes=o["c"], d_input=o["d"], d_model=o["H"], n_layers=o["n"], mixer=o["act"], prenorm=o["pre"])
    options |= dict(norm="batch" if o["bn"] else "layer", final_norm=False, framework="flax", mask_padding=False)
    return SequenceModel({**layer, "discretization": o["disc"]}, **options | changes).double().eval()


def s5_case(name: str) -> tuple[dict, dict, dict]:
    """Options, weights and the rest of a golden model."""
    arrays = case("s5_models.npz", name)
    weights = {key: value for key, value in arrays.items() if key.startswith(("params/", "batch_stats/"))}
    return ast.literal_eval(str(arrays["options"])), weights, arrays


def nested(flat: dict) -> dict:
    tree: dict = {}
    for name, value in flat.items():
        *branches, leaf = name.split("/")
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[leaf] = value
    return tree


@pytest.mark.parametrize("form", ["flat", "nested", "bare"])
@pytest.mark.parametrize("name", ["case0", "case1"])
def test_whole_models_of_s5(name, form, capsys):
    options, weights, arrays = s5_case(name)
    if form == "bare":
        weights = {key.removeprefix("params/"): value for key, value in weights.items()}
    model = load_published(s5_model(options), weights if form == "flat" else nested(weights))
    lengths = torch.from_numpy(arrays["lengths"]) if options["padded"] else None
    with torch.no_grad():
        found = model(torch.from_numpy(arrays["input"]), lengths).log_softmax(-1).numpy()
    np.testing.assert_allclose(found, arrays["log_probabilities"], rtol=0, atol=2e-15)
    printed = capsys.readouterr().out
    assert "blocks.0.layer.log_dt" in printed and "<-  params/encoder/layers_0/seq/log_step  (" in printed
    assert (
        len(printed.splitlines()) == sum(p.numel() > 0 for p in model.parameters()) + 2 * options["bn"] * options["n"]
    )


def s4_case(name: str) -> tuple[dict, dict, dict]:
    arrays = case("s4_models.npz", name)
    weights = {key.removeprefix("state/"): torch.from_numpy(v) for key, v in arrays.items() if key.startswith("state/")}
    return ast.literal_eval(str(arrays["options"])), weights, arrays


def s4_model(o: dict, **changes) -> SequenceModel:
    """With an encoder that changes nothing, since the weights are of the backbone alone."""
    layer = {"name": "s4", "d_state": o["layer"]["d_state"], "bidirectional": o["layer"]["bidirectional"]}
    if o["layer"]["mode"] == "diag":
        layer |= {"name": "s4d", "init": "lin"}
    options = dict(n_classes=2, d_input=o["d"], d_model=o["d"], n_layers=o["n"], mixer="glu", prenorm=o["prenorm"])
    options |= dict(norm="batch" if o["norm"] == "batch" else "layer-scalar", final_norm=o["prenorm"])
    model = SequenceModel(layer, **options | changes).eval()
    with torch.no_grad():
        torch.nn.init.eye_(model.encoder.linear.weight)
        model.encoder.linear.bias.zero_()
    return model


@pytest.mark.parametrize("name", ["case0", "case1"])
def test_backbones_of_s4(name):
    options, weights, arrays = s4_case(name)
    model = load_published(s4_model(options), weights, without=["encoder", "head"], verbose=False)
    with torch.no_grad():
        y, _ = model.features(torch.from_numpy(arrays["input"]))
    assert np.abs(y.numpy() - arrays["output"]).max() < 2e-6 * np.abs(arrays["output"]).max()


@pytest.mark.parametrize("name", ["case0", "case1"])
def test_a_whole_checkpoint_of_s4(name):
    options, weights, arrays = s4_case(name)
    d = options["d"]
    ends = {
        "encoder.0.weight": torch.randn(d, d),
        "encoder.0.bias": torch.randn(d),
        "decoder.0.output_transform.weight": torch.randn(2, d),
        "decoder.0.output_transform.bias": torch.randn(2),
    }
    whole = {f"model.{key}": value for key, value in weights.items()} | ends
    model = load_published(s4_model(options), {"state_dict": whole, "epoch": 3}, source=None, verbose=False)
    u = torch.from_numpy(arrays["input"])
    alone = load_published(s4_model(options), weights, without=["encoder", "head"], verbose=False)
    with torch.no_grad():
        x = F.linear(u, ends["encoder.0.weight"], ends["encoder.0.bias"])
        expected = F.linear(alone.features(x)[0].mean(dim=1), *list(ends.values())[2:])
        torch.testing.assert_close(model(u), expected, rtol=1e-4, atol=1e-5)


def test_the_scalar_layer_norm_of_s4():
    model = s4_model(s4_case("case0")[0])
    norm, x = model.blocks[0].norm, torch.randn(2, 3, 8, dtype=torch.float64)
    norm.double()
    with torch.no_grad():
        norm.weight.fill_(1.5), norm.bias.fill_(0.25)
    expected = 1.5 * (x - x.mean(-1, keepdim=True) + 0.25) / x.var(-1, correction=0, keepdim=True).sqrt()
    torch.testing.assert_close(norm(x), expected)
    assert norm(torch.zeros(1, 1, 8)).isfinite().all()


def minimal_weights(H: int, N: int, n_layers: int) -> dict[str, torch.Tensor]:
    """Of the S4 code's example model around the minimal S4D, drawn here."""
    torch.manual_seed(3)
    weights = {"encoder.weight": torch.randn(H, 2), "encoder.bias": torch.randn(H)}
    for i in range(n_layers):
        weights |= {
            f"s4_layers.{i}.D": torch.randn(H),
            f"s4_layers.{i}.kernel.C": torch.randn(H, N // 2, 2),
            f"s4_layers.{i}.kernel.log_dt": torch.rand(H) * 3 - 6,
            f"s4_layers.{i}.kernel.log_A_real": torch.randn(H, N // 2) - 1,
            f"s4_layers.{i}.kernel.A_imag": math.pi * torch.arange(N // 2).expand(H, -1).float(),
            f"s4_layers.{i}.output_linear.0.weight": torch.randn(2 * H, H, 1) / H**0.5,
            f"s4_layers.{i}.output_linear.0.bias": torch.randn(2 * H),
            f"norms.{i}.weight": torch.randn(H),
            f"norms.{i}.bias": torch.randn(H),
        }
    return weights | {"decoder.weight": torch.randn(5, H), "decoder.bias": torch.randn(5)}


def minimal_kernel(w: dict, prefix: str, length: int) -> torch.Tensor:
    """S4D's kernel as its paper prints it: 2 Re sum C (exp(dt A) - 1) / A exp(l dt A)."""
    A = torch.complex(-w[f"{prefix}log_A_real"].exp(), w[f"{prefix}A_imag"]).to(torch.complex128)
    dtA = A * w[f"{prefix}log_dt"].double().exp()[:, None]
    C = torch.view_as_complex(w[f"{prefix}C"].double()) * dtA.expm1() / A
    powers = torch.exp(dtA[..., None] * torch.arange(length))
    return 2 * torch.einsum("hn,hnl->hl", C, powers).real


def test_the_example_model_with_minimal_layers():
    """Against the model written out: post-norm residual blocks of convolution, GELU and GLU, mean over positions."""
    H, N, n_layers, L = 6, 8, 3, 21
    weights = minimal_weights(H, N, n_layers)
    layer = {"name": "s4d", "d_state": N, "init": "lin"}
    shape = dict(n_classes=5, d_input=2, d_model=H, n_layers=n_layers, prenorm=False, final_norm=False)
    model = load_published(SequenceModel(layer, **shape).double().eval(), weights, verbose=False)
    u = torch.randn(2, L, 2, dtype=torch.float64)
    w = {name: value.double() for name, value in weights.items()}
    x = F.linear(u, w["encoder.weight"], w["encoder.bias"])
    for i in range(n_layers):
        kernel = minimal_kernel(weights, f"s4_layers.{i}.kernel.", L)
        y = torch.stack([torch.einsum("bjh,hj->bh", x[:, : t + 1], kernel[:, : t + 1].flip(1)) for t in range(L)], 1)
        y = F.gelu(y + w[f"s4_layers.{i}.D"] * x)
        y = F.glu(
            F.linear(y, w[f"s4_layers.{i}.output_linear.0.weight"][..., 0], w[f"s4_layers.{i}.output_linear.0.bias"])
        )
        x = F.layer_norm(x + y, (H,), w[f"norms.{i}.weight"], w[f"norms.{i}.bias"])
    expected = F.linear(x.mean(1), w["decoder.weight"], w["decoder.bias"])
    with torch.no_grad():
        torch.testing.assert_close(model(u), expected, rtol=1e-9, atol=1e-9)


def test_a_minimal_layer_alone():
    weights = {
        name.removeprefix("s4_layers.0."): value
        for name, value in minimal_weights(6, 8, 1).items()
        if name.startswith("s4_layers.0.") and "output" not in name
    }
    layer = load_published(S4D(6, 8).double(), weights)
    torch.testing.assert_close(layer.kernel(30)[0], minimal_kernel(weights, "kernel.", 30))
    assert published_mapping(layer, weights)["inv_dt"] == "kernel.log_dt"
    with pytest.raises(UsageError, match="named as in 's4d-minimal'"):
        load_published(S4D(6, 8), weights, source="s5")


@pytest.mark.parametrize("name", ["plain", "bidirectional"])
@pytest.mark.parametrize("conj_sym", [True, False])
def test_layers_of_s5_pytorch(name, conj_sym):
    arrays = case("s5_pytorch.npz", name)
    weights = {key: value for key, value in arrays.items() if key.startswith("seq.")}
    layer = S5(4, 16 if conj_sym else 8, blocks=1, conj_sym=conj_sym, bidirectional=name == "bidirectional")
    load_published(layer, weights, source="s5-pytorch")
    with torch.no_grad():
        torch.testing.assert_close(layer(torch.from_numpy(arrays["u"]))[0].numpy(), arrays["y"], rtol=1e-5, atol=1e-6)


def test_a_model_of_s5_pytorch_layers():
    weights = {
        f"blocks.{i}.s5.{k}": v for i in (0, 1) for k, v in case("s5_pytorch.npz", "plain").items() if "seq" in k
    }
    weights["blocks.0.attn_norm.weight"] = np.ones(4)
    options = dict(n_classes=2, d_input=1, d_model=4, n_layers=2)
    model = SequenceModel({"name": "s5", "d_state": 16, "blocks": 1}, **options)
    with pytest.raises(UsageError, match=r"no place in this model \(1\): blocks.0.attn_norm.weight"):
        load_published(model, weights)
    rest = ["encoder", "head", "norm", "final_norm", "mixer"]
    load_published(model, weights, without=[*rest, "attn_norm"], verbose=False)
    assert model.blocks[1].layer.Lambda_im[0].item() == pytest.approx(weights["blocks.1.s5.seq.Lambda"][0].imag)


def published_s5(model: SequenceModel, mapping: dict[str, str]) -> dict[str, np.ndarray]:
    """The flax tree of one of our models, by the mapping backwards."""
    tree = {}
    for name, theirs in mapping.items():
        value = model.state_dict()[name].numpy()
        tree[theirs] = value.T if theirs.endswith("kernel") and "embedding" not in name else value
    return tree


SHAPES = {
    "tokens": dict(d_input=None, n_tokens=9),
    "retrieval": dict(task="retrieval", n_layers=1),
    "gelu": dict(mixer="gelu", norm="layer"),
    "deep": dict(n_layers=12),
    "half_glu1": dict(mixer="half_glu1", prenorm=True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_s5_of_other_shapes_and_back(shape):
    options, _, _ = s5_case("case0")
    source, target = s5_model(options, **SHAPES[shape]), s5_model(options, **SHAPES[shape])
    names = dict(published_names(source))
    load_published(target, published_s5(source, names), verbose=False)
    tensors = source.state_dict()
    assert all(torch.equal(value, tensors[name]) for name, value in target.state_dict().items() if name in names)
    assert names.keys() == {name for name in tensors if "num_batches" not in name}


def published_names(model: SequenceModel):
    """What each parameter of an S5 model is called in the flax tree, written down by hand."""
    rules = [
        (r"encoder\.(?:linear|embedding)\.weight", "params/encoder/encoder/kernel"),
        (r"encoder\.(?:linear\.)?bias", "params/encoder/encoder/bias"),
        (r"head\.linear\.weight", "params/decoder/kernel"),
        (r"head\.linear\.bias", "params/decoder/bias"),
        (r"head\.inner\.weight", "params/decoder/layer1/kernel"),
        (r"head\.inner\.bias", "params/decoder/layer1/bias"),
        (r"head\.outer\.weight", "params/decoder/layer2/kernel"),
        (r"head\.outer\.bias", "params/decoder/layer2/bias"),
        (r"blocks\.(\d+)\.mixer\.gate\.weight", r"params/encoder/layers_\1/out2/kernel"),
        (r"blocks\.(\d+)\.mixer\.gate\.bias", r"params/encoder/layers_\1/out2/bias"),
        (r"blocks\.(\d+)\.norm\.(?:statistics\.)?weight", r"params/encoder/layers_\1/norm/scale"),
        (r"blocks\.(\d+)\.norm\.(?:statistics\.)?bias", r"params/encoder/layers_\1/norm/bias"),
        (r"blocks\.(\d+)\.norm\.statistics\.running_(mean|var)", r"batch_stats/encoder/layers_\1/norm/\2"),
        (r"blocks\.(\d+)\.layer\.log_dt", r"params/encoder/layers_\1/seq/log_step"),
        (r"blocks\.(\d+)\.layer\.C", r"params/encoder/layers_\1/seq/C1"),
        (r"blocks\.(\d+)\.layer\.C_backward", r"params/encoder/layers_\1/seq/C2"),
        (r"blocks\.(\d+)\.layer\.(\w+)", r"params/encoder/layers_\1/seq/\2"),
    ]
    for name in model.state_dict():
        for pattern, theirs in rules:
            if re.fullmatch(pattern, name):
                yield name, re.sub(pattern, theirs, name)
                break


def refused(model: SequenceModel, weights, says: str, **options) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UsageError, match=says):
        load_published(model, weights, **options)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_leftovers_of_s5_are_named():
    options, weights, _ = s5_case("case0")
    refused(
        s5_model(options), {**weights, "params/extra/kernel": np.ones(3)}, r"no place .* \(1\): params/extra/kernel"
    )
    less = {key: value for key, value in weights.items() if not key.endswith("layers_1/norm/var")}
    refused(s5_model(options), less, "not hold .1.: batch_stats/encoder/layers_1/norm/var")
    refused(s5_model(options), {**weights, "params/encoder/layers_2/seq/E": np.ones(3)}, "layers_2/seq/E'. Known")
    less = {key: value for key, value in weights.items() if not key.endswith("layers_2/seq/D")}
    refused(s5_model(options), less, "Missing params/encoder/layers_2/seq/D")
    refused(s5_model(options, final_norm=True), weights, "published model does not have .*final_norm")
    refused(s5_model(options, mixer="full_glu"), weights, "not hold .*layers_0/out1/kernel")
    refused(s5_model(options, mixer="gelu"), weights, "no place .*layers_0/out2")
    refused(s5_model(options, mixer="glu"), weights, "mixer, GLU, is none of S5")
    refused(s5_model(options, n_layers=2), weights, "of 3 layers, the model has n_layers=2")
    refused(s5_model(options, d_model=8), weights, r"kernel' has shape \(12, 7\)")
    refused(s5_model(options, norm="layer"), weights, "no place .*batch_stats")
    refused(s5_model(options, d_input=None, n_tokens=7, encoder_bias=False), weights, "no place .*encoder/encoder/bias")
    refused(s5_model(options), {**weights, "params/decoder/bias": np.full(5, np.nan)}, "decoder/bias' .*not finite")
    refused(s5_model(options), {**weights, "params/decoder/bias": np.full(5, "x")}, "decoder/bias' is not an array")
    refused(s5_model(s5_case("case1")[0], framework="torch"), s5_case("case1")[1], "epsilon of 1e-06.*framework='flax'")


def test_leftovers_of_s4_are_named():
    options, weights, _ = s4_case("case1")
    refused(s4_model(options), weights, r"not hold .4.: decoder.*encoder.0.bias.*without=\['encoder', 'head'\]")
    rest = dict(without=["encoder", "head"])
    refused(
        s4_model(options),
        {**weights, "layers.0.layer.output_linear.1.weight": torch.ones(2)},
        "output_linear.1",
        **rest,
    )
    refused(s4_model(options, norm="layer"), weights, "no place .*running_mean", **rest)
    refused(s4_model(options), weights, "'s4' .*not as in 's5'", source="s5", **rest)
    refused(s4_model(options), weights, "Unknown source 's6'", source="s6", **rest)
    refused(s4_model(options), {"weight": torch.ones(2)}, "no published code")
    refused(s4_model(options), weights, "without is a list", without="encoder")
    refused(s4_model(options), [weights], "takes a mapping")
    with pytest.raises(UsageError, match="single layer has none"):
        load_published(S5(4, 8, blocks=1), {}, without=["head"])
    with pytest.raises(UsageError, match="takes a layer or a SequenceModel, got str"):
        load_published("model", weights)


def test_the_head_may_stay():
    options, weights, _ = s5_case("case1")
    model = s5_model(options, n_classes=9)
    before = model.head.linear.weight.clone()
    load_published(model, weights, without=["head"], verbose=False)
    assert torch.equal(model.head.linear.weight, before)
    assert "head.linear.weight" not in published_mapping(model, weights, without=["head"])
