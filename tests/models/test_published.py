"""load_published on the golden files: outputs, kernels and gradients of the published codes; refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fractal_ssm import S4, S4D, S5, Fractal, UsageError, load_published

NAMES = ("inv_dt", "A_real", "A_imag", "B", "C", "D")
GOLDEN = Path(__file__).parents[1] / "golden"


def case(file, name):
    with np.load(GOLDEN / file) as arrays:
        return {key.split("/", 1)[1]: arrays[key] for key in arrays.files if key.startswith(name + "/")}


KERNELS = {
    "s4d_lin_zoh": (lambda: S4D(3, 8, init="lin"), 2e-6),
    "s4d_legs_bilinear": (
        lambda: S4D(2, 8, init="legs", discretization="bilinear", dt_transform="softplus"),
        2e-6,
    ),
    "s4_legs": (lambda: S4(2, 8, init="legs"), 5e-6),
    # The published float32 kernel is itself 4.5e-5 from the dense float64 one.
    "s4_fout": (lambda: S4(2, 8, init="fout"), 6e-5),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_the_published_code(name):
    build, tolerance = KERNELS[name]
    arrays = case("s4.npz", name)
    layer = load_published(build(), arrays)
    kernel = layer.kernel(arrays["kernel"].shape[-1]).detach().numpy()
    assert np.abs(kernel - arrays["kernel"]).max() < tolerance * np.abs(kernel).max()


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("s5_zoh", lambda: S5(4, 8, blocks=1)),
        ("s5_bilinear_bidir", lambda: S5(3, 16, blocks=2, bidirectional=True, discretization="bilinear")),
        ("s5_full_complex", lambda: S5(2, 6, blocks=1, conj_sym=False)),
    ],
)
def test_outputs_and_gradients_of_the_published_s5(name, build):
    arrays = case("s5.npz", name)
    layer = load_published(build().double(), arrays)
    y, _ = layer(torch.from_numpy(arrays["u"])[None])
    np.testing.assert_allclose(y[0].detach().numpy(), arrays["y"], rtol=1e-9, atol=1e-12)
    y.square().sum().backward()
    ours = {"log_step": "log_dt", "C1": "C", "C2": "C_backward"}
    for key in (key.removeprefix("grad_") for key in arrays if key.startswith("grad_")):
        grad = getattr(layer, ours.get(key, key)).grad.numpy()
        wanted = arrays[f"grad_{key}"].reshape(grad.shape)
        np.testing.assert_allclose(grad, wanted, rtol=1e-8, atol=1e-9 * np.abs(wanted).max())


def test_both_directions_of_s5_may_lie_side_by_side():
    arrays = case("s5.npz", "s5_bilinear_bidir")
    joined = {key: value for key, value in arrays.items() if key not in ("C1", "C2")}
    joined["C"] = np.concatenate((arrays["C1"], arrays["C2"]), axis=1)
    layers = [
        load_published(S5(3, 16, blocks=2, bidirectional=True, discretization="bilinear"), a) for a in (arrays, joined)
    ]
    assert torch.equal(layers[0].C_backward, layers[1].C_backward)
    assert torch.equal(layers[0].C, layers[1].C)


@pytest.mark.parametrize("fold_length", [None, 24, 31])
def test_a_folded_C_is_unfolded(fold_length):
    arrays = case("s4.npz", "s4_legs")
    plain = load_published(S4(2, 8).double(), arrays)
    folded = dict(arrays, l_kernel=np.array(24))
    system = plain.system()
    folded["C"] = torch.view_as_real(system.folded(24).detach().resolve_conj()).numpy()
    layer = load_published(S4(2, 8, fold_length=fold_length).double(), folded)
    torch.testing.assert_close(layer.kernel(40), plain.kernel(40), rtol=1e-8, atol=1e-12)


def test_names_and_shapes_are_strict():
    arrays = case("s4.npz", "s4d_lin_zoh")
    layer = S4D(3, 8)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(UsageError, match="A_imga.*mean 'A_imag'"):
        load_published(layer, {**arrays, "A_imga": arrays["A_imag"]})
    with pytest.raises(UsageError, match="Missing B"):
        load_published(layer, {key: value for key, value in arrays.items() if key != "B"})
    with pytest.raises(UsageError, match=r"'C' has shape \(1, 3, 3, 2\)"):
        load_published(layer, {**arrays, "C": arrays["C"][:, :, :3]})
    with pytest.raises(UsageError, match="S4, S4D and S5"):
        load_published(Fractal(4, 16), arrays)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_options_that_change_the_meaning_are_compared():
    arrays = case("s4.npz", "s4d_legs_bilinear")
    with pytest.raises(UsageError, match="dt_transform='softplus'"):
        load_published(S4D(2, 8, init="legs", discretization="bilinear"), arrays)
    with pytest.raises(UsageError, match="disc='bilinear'"):
        load_published(S4D(2, 8, init="legs", dt_transform="softplus"), arrays)


def test_an_unsymmetric_s4_is_refused():
    with pytest.raises(UsageError, match="Q = P"):
        load_published(S4(2, 8, init={"name": "fractional-tau", "alpha": 0.5}), case("s4.npz", "s4_legs"))


def test_directions_must_match():
    with pytest.raises(UsageError, match="bidirectional=True"):
        load_published(S5(3, 16, blocks=2, discretization="bilinear"), case("s5.npz", "s5_bilinear_bidir"))


def refused(says, **changes):
    """The S4 case with these arrays changed is refused, and the layer is as before."""
    layer = S4(2, 8)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(UsageError, match=says):
        load_published(layer, case("s4.npz", "s4_legs") | changes)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("C", [None, "x", [[1.0], [1.0, 2.0]], {}, torch.eye(2).to_sparse(), [True]])
def test_what_is_no_array_of_numbers(C):
    refused("'C' is not an? (dense )?array of numbers", C=C)


@pytest.mark.parametrize("name", ["C", "A_real"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_numbers_that_the_layer_cannot_hold(name, value):
    array = np.array(case("s4.npz", "s4_legs")[name], dtype=np.float64)
    array.flat[0] = value
    refused(f"'{name}' holds numbers that are not finite in torch.float32", **{name: array})


@pytest.mark.parametrize("length", [-3, 3.7, [3, 4], float("nan"), float("inf"), 3j])
def test_a_length_that_is_none(length):
    refused("'l_kernel' is a length, one whole number", l_kernel=length)


@pytest.mark.parametrize("opts", ["{broken", "5", 5, "f()", "{'disc'}"])
def test_options_that_are_no_mapping(opts):
    refused("'opts' is a mapping", opts=opts)


def test_arrays_that_are_no_mapping():
    with pytest.raises(UsageError, match="takes a mapping from name to array, got list"):
        load_published(S4(2, 8), [1.0])


def test_complex_arrays_are_read_as_pairs():
    arrays = case("s4.npz", "s4_legs")
    joined = {name: arrays[name][..., 0] + 1j * arrays[name][..., 1] for name in "BCP"}
    joined["C"] = torch.as_tensor(joined["C"].conj()).conj()
    pairs, complexes = load_published(S4(2, 8), arrays), load_published(S4(2, 8), arrays | joined)
    for name in "BCP":
        assert torch.equal(pairs.state_dict()[name], complexes.state_dict()[name]), name
    refused("'A_real' has shape", A_real=arrays["A_real"] + 0j)


def test_tensors_that_learn_or_are_half():
    arrays = {name: torch.as_tensor(value) for name, value in case("s4.npz", "s4d_lin_zoh").items() if name in NAMES}
    learning = {name: value.clone().requires_grad_() for name, value in arrays.items()}
    halves = {name: value.bfloat16() for name, value in arrays.items()}
    for given in (learning, halves):
        layer = load_published(S4D(3, 8), given)
        for name, value in given.items():
            parameter = dict(layer.named_parameters())[name]
            assert torch.equal(parameter.detach(), value.detach().float().reshape(parameter.shape)), name


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "text",
        object(),
        {},
        lambda x: x,
        np.array([None, 1.0]),
        np.array(["a"]),
        np.array([object()]),
        torch.zeros(4, dtype=torch.bool),
        torch.zeros(4).to_sparse(),
        torch.zeros(4, device="meta"),
        [[1.0], [1.0, 2.0]],
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_that_hold_no_numbers_are_told(wrong):
    layer = S4D(4, d_state=4)
    arrays = {name: value.detach() for name, value in layer.named_parameters()}
    before = {name: value.clone() for name, value in arrays.items()}
    with pytest.raises(UsageError, match="inv_dt"):
        load_published(layer, {**arrays, "inv_dt": wrong})
    assert all(torch.equal(value, before[name]) for name, value in layer.named_parameters())


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_quantised_tensor_is_told():
    layer = S4D(4, d_state=4)
    arrays = {name: value.detach() for name, value in layer.named_parameters()}
    arrays["inv_dt"] = torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)
    with pytest.raises(UsageError, match=r"'inv_dt'.*dequantize"):
        load_published(layer, arrays)
