"""The compiled passes of the blocks against torch: values, both derivatives, and where they must not run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from fractal_ssm.models.blocks.mixer import MIXERS, build_mixer
from fractal_ssm.ops.pointwise import gated, gelu_tanh, interface

# Torch itself uses what it has deprecated when it first loads its forward-mode rules.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

# name -> (ours, torch's, number of inputs)
FUNCTIONS = {
    "gelu": (gelu_tanh, lambda x: F.gelu(x, approximate="tanh"), 1),
    "sigmoid": (gated, lambda v, w: v * w.sigmoid(), 2),
    "silu": (lambda v, w: gated(v, w, silu=True), lambda v, w: v * F.silu(w), 2),
}
# Whole vectors and a rest; a rest only; rows that do not join evenly.
SHAPES = [(3, 128, 100), (2, 1031, 17), (1, 1, 40000)]


@pytest.fixture
def small_too(monkeypatch):
    """The passes take tensors of any size."""
    monkeypatch.setattr(interface, "_SMALL", 1)


def draw(*shape, seed=0, dtype=torch.float64, scale=3.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(shape, count, dtype=torch.float64):
    return [draw(*shape, seed=i, dtype=dtype).requires_grad_() for i in range(count)]


def results(function, given, g):
    out = function(*given)
    return [out.detach(), *torch.autograd.grad(out, given, g.to(out.dtype))]


def is_compiled(out):
    """Whether `out` came from the compiled passes."""
    return type(out.grad_fn).__name__.startswith("_")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal_to_torch_in_double_precision(name, shape):
    ours, theirs, count = FUNCTIONS[name]
    given, g = inputs(shape, count), draw(*shape, seed=9)
    assert is_compiled(ours(*given))
    for found, expected in zip(results(ours, given, g), results(theirs, given, g), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def relative_errors(function, exact, given, g):
    pairs = zip(results(function, given, g), exact, strict=True)
    return [((found.double() - value).abs().max() / value.abs().max()).item() for found, value in pairs]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_exact_as_torch_in_single_precision(name):
    ours, theirs, count = FUNCTIONS[name]
    given, g = inputs((3, 200, 100), count, torch.float32), draw(3, 200, 100, seed=9, dtype=torch.float32)
    exact = results(theirs, [t.detach().double().requires_grad_() for t in given], g)
    errors = (relative_errors(function, exact, given, g) for function in (ours, theirs))
    for mine, torchs in zip(*errors, strict=True):
        assert mine <= 3 * torchs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_values_keep_their_digits(small_too, dtype):
    w = torch.linspace(-85, 85, 5001, dtype=dtype)
    exact = w.double().sigmoid()
    found = gated(torch.ones_like(w), w)
    assert ((found.double() - exact).abs() / exact).max() < 8 * torch.finfo(dtype).eps
    leaf = w.clone().requires_grad_()
    (slope,) = torch.autograd.grad(gated(torch.ones_like(w), leaf).sum(), leaf)
    exact = exact * (-w.double()).sigmoid()
    assert ((slope.double() - exact).abs() / exact).max() < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_torchs(small_too, name, dtype):
    ours, theirs, count = FUNCTIONS[name]
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([0.0, -0.0, inf, -inf, nan, 100, -100, 1e4, -1e4, 1e18, -1e18, 1e-42, -1e-42], dtype=dtype)
    grid = torch.cartesian_prod(*[values] * 2)
    given = [t.clone().requires_grad_() for t in grid.unbind(1)[:count]]
    g = torch.ones_like(theirs(*given))
    for found, expected in zip(results(ours, given, g), results(theirs, given, g), strict=True):
        # Where the sigmoid is so near 1 that torch has 0 for the rest, torch has 0 or, times inf, nan.
        known = ~expected.isnan()
        torch.testing.assert_close(found[known], expected[known], rtol=1e-5, atol=1e-25)
        assert (known | found.isnan() | found.isinf()).all()


@pytest.mark.parametrize("silu", [False, True])
def test_a_nan_of_any_bits_is_a_nan(small_too, silu):
    w = torch.tensor([0x7FC00001, 0x7F800001, 0x7FC000FF, -0x3FFFFD, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    assert w.isnan().all()
    v = torch.ones(5, requires_grad=True)
    y = gated(v, w, silu)
    assert y.isnan().all() and torch.autograd.grad(y.sum(), v)[0].isnan().all()


def test_the_zero_of_a_large_negative_number_is_negative(small_too):
    x = torch.tensor([-100.0, -0.0, 0.0])
    assert gelu_tanh(x).signbit().tolist() == F.gelu(x, approximate="tanh").signbit().tolist() == [True, True, False]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_and_gradients_of_any_strides(name):
    ours, theirs, count = FUNCTIONS[name]
    given = [t.detach().transpose(0, 1).requires_grad_() for t in inputs((40, 30, 34), count)]
    for g in (draw(40, 30, 34).transpose(0, 1), torch.ones(1, dtype=torch.float64).expand(30, 40, 34)):
        for found, expected in zip(results(ours, given, g), results(theirs, given, g), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(small_too, name):
    ours, _, count = FUNCTIONS[name]
    given = inputs((2, 3), count)
    assert torch.autograd.gradcheck(ours, given) and torch.autograd.gradgradcheck(ours, given)


def test_an_input_given_twice_or_made_of_the_other_is_counted_once(small_too):
    x = draw(5).requires_grad_()

    def second(function):
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return [first, *torch.autograd.grad(first.sum(), x)]

    for ours, theirs in (
        (lambda x: gated(x, x).sum(), lambda x: (x * x.sigmoid()).sum()),
        (lambda x: gated(x, x.square()).sum(), lambda x: (x * x.square().sigmoid()).sum()),
    ):
        torch.testing.assert_close(second(ours), second(theirs))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_and_tangents(small_too, name):
    ours, theirs, count = FUNCTIONS[name]
    given = tuple(t.detach() for t in inputs((2, 4), count))

    def all_of(function):
        every = tuple(range(len(given)))
        _, tangent = torch.func.jvp(function, given, given)
        gradients = torch.func.grad(lambda *given: function(*given).square().sum(), argnums=every)(*given)
        leaves = [t.clone().requires_grad_() for t in given]
        out = function(*leaves)
        seeds = torch.eye(out.numel(), dtype=out.dtype).view(-1, *out.shape)
        batched = torch.autograd.grad(out, leaves, seeds, is_grads_batched=True)
        return [tangent, *gradients, torch.vmap(function)(*given), *batched]

    torch.testing.assert_close(all_of(ours), all_of(theirs))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_hold_torchs_operators(small_too, name):
    ours, theirs, count = FUNCTIONS[name]
    given = tuple(t.detach() for t in inputs((2, 4), count))
    other = tuple(t + 1 for t in given)

    class Module(nn.Module):
        def forward(self, *given):
            return ours(*given)

    for graph in (
        torch.compile(ours, backend="aot_eager", fullgraph=True),
        torch.export.export(Module(), given).module(),
        torch.export.export(Module(), given, strict=True).module(),
        make_fx(lambda *given: ours(*given))(*given),
        torch.jit.trace(ours, given),
    ):
        graph(*given)
        torch.testing.assert_close(graph(*other), theirs(*other))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_the_passes_do_not_take_is_left_to_torch(name):
    ours, theirs, count = FUNCTIONS[name]
    for dtype in (torch.bfloat16, torch.float16):
        given = inputs((3, 128, 100), count, dtype)
        assert not is_compiled(ours(*given)) and torch.equal(ours(*given), theirs(*given))
    meta = [t.to("meta") for t in inputs((3, 128, 100), count)]
    assert ours(*meta).shape == (3, 128, 100)
    empty = inputs((0, 128, 100), count)
    assert ours(*empty).shape == (0, 128, 100)
    small = inputs((1, 100), count)
    assert not is_compiled(ours(*small))


def test_operands_of_two_kinds_are_left_to_torch():
    v, w = draw(3, 128, 100, dtype=torch.float32), draw(3, 128, 100, dtype=torch.bfloat16, seed=1)
    assert torch.equal(gated(v, w), v * w.sigmoid())
    assert torch.equal(gated(v, v[:1, :1]), v * v[:1, :1].sigmoid())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_for_any_number_of_threads(name):
    ours, _, count = FUNCTIONS[name]
    given, g = inputs((3, 128, 100), count, torch.float32), draw(3, 128, 100, seed=9)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(results(ours, given, g))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


# Their place in the blocks


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_are_the_same_without_numba(monkeypatch, name):
    torch.manual_seed(0)
    mixer = build_mixer(name, 64, 0.2, "flax").double()
    y, z = draw(3, 256, 64).requires_grad_(), draw(3, 256, 64, seed=1).requires_grad_()

    def run():
        torch.manual_seed(1)
        out = mixer(y, z)
        return [out, *torch.autograd.grad(out.square().sum(), (y, z, *mixer.parameters()), allow_unused=True)]

    found = run()
    assert name in ("mlp", "glu") or is_compiled(found[0])
    monkeypatch.setattr(interface, "numba_obstacle", lambda: "not there")
    expected = run()
    assert not is_compiled(expected[0])
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
