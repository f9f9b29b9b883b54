"""Every backend of the scan against a double-precision loop: values, gradients, lengths, layouts, precision."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scan_cases import LENGTHS, MODES, Case, errors, make, oracle, run

from fractal_ssm import scan

FAST = ("torch", "native")
DTYPES = (torch.float64, torch.complex128)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_oracle_equals_autograd_through_the_loop(mode, dtype, reverse):
    case = make(mode, dtype, 9, reverse=reverse)
    assert max(errors(run(case, scan, backend="reference"), oracle(case))) < 1e-13


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("x0", [False, True])
def test_backends_agree_with_the_oracle(backend, mode, dtype, reverse, x0):
    for length in (1, 2, 3, 15, 16, 17, 65):
        case = make(mode, dtype, length, reverse=reverse, x0=x0, seed=length)
        assert max(errors(run(case, scan, backend=backend), oracle(case))) < 1e-11, length


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_in_single_precision(backend, length):
    for mode, reverse in (("constant", False), ("shared", True), ("full", False)):
        case = make(mode, torch.complex64, length, reverse=reverse, seed=length)
        poison(case)
        x, *gradients = errors(run(case, scan, backend=backend), oracle(case))
        assert x < 1e-4
        assert max(gradients) < 1e-3


def poison(case: Case) -> None:
    """Leave freed memory of the sizes in use full of NaN, for code that allocates behind torch's back."""
    freed = [torch.full_like(case.b, float("nan")) for _ in range(4)]
    del freed


@pytest.mark.parametrize("backend", ("reference", *FAST))
class TestExactValues:
    """Seven steps worked out by hand-checkable arithmetic; a mirror-image input would hide a swapped operand."""

    a = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
    b = (1.0, -2.0, 3.0, -1.0, 2.0, 5.0, -4.0)

    def case(self, x0=None, reverse=False) -> Case:
        a, b = (torch.tensor(v, dtype=torch.float64)[:, None] for v in (self.a, self.b))
        start = None if x0 is None else torch.tensor([[x0]], dtype=torch.float64, requires_grad=True)
        return Case(a.requires_grad_(), b[None].requires_grad_(), start, torch.ones_like(b[None]), reverse)

    def check(self, case: Case, backend: str, *expected) -> None:
        found = run(case, scan, backend=backend)
        for one, values in zip(found, expected, strict=False):
            np.testing.assert_allclose(one.ravel(), values, rtol=1e-12, atol=1e-14)

    def test_forward(self, backend):
        self.check(
            self.case(),
            backend,
            [1, -1.2, 2.16, 0.296, 2.148, 5.8592, -2.24224],
            [0, 2.4392, -2.4672, 3.8016, 0.44992, 2.7924, 5.8592],
            [2.95136, 2.4392, 2.056, 1.76, 1.52, 1.3, 1],
        )

    def test_reverse(self, backend):
        self.check(self.case(reverse=True), backend, [1.97488, 1.0832, 3.854, 1.22, 3.7, 3.4, -4])

    def test_initial_state(self, backend):
        self.check(
            self.case(x0=2.0),
            backend,
            [2.8, 0.24, 3.168, 0.9008, 2.4504, 5.98016, -2.205952],
            [5.90272, 6.82976, 0.49344, 5.57568, 1.369216, 3.18552, 5.98016],
            [2.95136, 2.4392, 2.056, 1.76, 1.52, 1.3, 1],
            [2.656224],
        )

    def test_constant_gate(self, backend):
        x = scan(torch.tensor([0.5]), torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1), backend=backend)
        assert x.flatten().tolist() == [1, 2.5, 4.25, 6.125]


@pytest.mark.parametrize("backend", ("reference", *FAST))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradcheck_first_and_second(backend, mode, reverse):
    case = make(mode, torch.complex128, 3, batch=2, modes=1, reverse=reverse)

    def function(*inputs):
        return scan(*inputs, reverse, backend=backend)

    assert torch.autograd.gradcheck(function, case.inputs())
    assert torch.autograd.gradgradcheck(function, case.inputs())


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("mode", ["constant", "shared", "full"])
def test_views_give_what_their_copies_give(backend, mode):
    case = make(mode, torch.complex64, 33)
    expected = run(case, scan, backend=backend)
    base = case.b.detach()
    views = {
        "every second step": torch.stack([base, torch.full_like(base, 9)], 2).flatten(1, 2)[:, ::2],
        "transposed": base.transpose(1, 2).contiguous().transpose(1, 2),
        "lazily conjugated": base.conj().resolve_conj().conj(),
        "channel slice": torch.cat([base, base], 2)[..., : base.shape[2]],
    }
    for name, b in views.items():
        view = Case(case.a, b.requires_grad_(), case.x0, case.g, False)
        for one, other in zip(run(view, scan, backend=backend), expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
    # An expanded input gives the same rows, and the gradient of its source is the sum over the copies.
    row = base[:1].clone().requires_grad_()
    x = scan(case.a, row.expand(3, -1, -1), case.x0, backend=backend)
    again = scan(case.a, row.detach().repeat(3, 1, 1), case.x0, backend=backend)
    torch.testing.assert_close(x, again, rtol=0, atol=0)
    assert torch.autograd.grad(x.real.sum(), row)[0].shape == row.shape


@pytest.mark.parametrize("backend", FAST)
def test_a_dead_step_at_the_end_changes_no_gradient(backend):
    case = make("full", torch.complex64, 64)
    expected = run(case, scan, backend=backend)
    a = torch.cat([case.a.detach(), torch.full_like(case.a[:, :1], 0.5)], 1).requires_grad_()
    b = torch.cat([case.b.detach(), torch.zeros_like(case.b[:, :1])], 1).requires_grad_()
    x = scan(a, b, case.x0, backend=backend)
    da, db, dx0 = torch.autograd.grad(x[:, :64], (a, b, case.x0), case.g)
    for one, other in zip((x[:, :64], da[:, :64], db[:, :64], dx0), expected, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_gradients_flow_through_the_final_state(backend):
    case = make("constant", torch.complex128, 40)
    case.g[:, :-1] = 0
    x = scan(case.a, case.b, case.x0, backend=backend)
    gradients = torch.autograd.grad(x[:, -1], case.inputs(), case.g[:, -1])
    assert max(errors([g.numpy() for g in gradients], oracle(case)[1:])) < 1e-12


@pytest.mark.parametrize("backend", FAST)
def test_only_the_wanted_gradients_are_made(backend):
    case = make("full", torch.float64, 12)
    expected = oracle(case)
    for wanted in range(3):
        inputs = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(case.inputs())]
        x = scan(*inputs, backend=backend)
        (gradient,) = torch.autograd.grad(x, inputs[wanted], case.g)
        assert errors([gradient.numpy()], [expected[1 + wanted]])[0] < 1e-12


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 300, 1), (7, 3, 1), (1, 65, 97), (17, 4, 33), (0, 5, 3), (2, 5, 0)])
def test_odd_shapes(backend, shape):
    batch, length, modes = shape
    for mode in MODES:
        a = make(mode, torch.float64, length, batch=max(batch, 1), modes=max(modes, 1)).a.detach()
        a = (a[..., :modes] if a.dim() < 3 else a[:batch, :, :modes]).clone()
        b, g = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
        case = Case(a.requires_grad_(), b.requires_grad_(), None, g, False)
        found = run(case, scan, backend=backend)
        assert [one.shape for one in found] == [shape, tuple(a.shape), shape]
        if b.numel():
            assert max(errors(found, oracle(case))) < 1e-12


@pytest.mark.parametrize("backend", ("reference", *FAST))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single_and_rounded_once(backend, dtype):
    case = make("constant", torch.float32, 200, slowest=1e-2)
    a, b, x0 = (t.detach().to(dtype) for t in case.inputs())
    x = scan(a, b, x0, backend=backend)
    assert x.dtype == dtype
    torch.testing.assert_close(x, scan(a.float(), b.float(), x0.float(), backend=backend).to(dtype), rtol=0, atol=0)
    assert scan(a.to(torch.complex64), b, backend=backend).dtype == torch.complex64


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("length", [4097, pytest.param(65537, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["constant", "full"])
def test_gradients_near_the_unit_circle_lose_no_more_than_plain_torch(backend, length, mode):
    """|a| up to 1 - 1e-5, the error of each result at most 3 times that of the loop in the same precision."""
    case = make(mode, torch.complex64, length, slowest=1e-5, batch=2, modes=4)
    exact = oracle(case)
    plain = errors(run(case, scan, backend="reference"), exact)
    for ours, theirs in zip(errors(run(case, scan, backend=backend), exact), plain, strict=True):
        assert ours <= 3 * theirs + 1e-7


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("length", [65535, 65536, 65537, 131073])
def test_long_sequences(backend, length):
    case = make("constant", torch.float32, length, batch=1, modes=1, slowest=0.05)
    assert max(errors(run(case, scan, backend=backend), oracle(case))) < 1e-4


@pytest.mark.parametrize("backend", FAST)
def test_same_inputs_same_bits(backend):
    case = make("shared", torch.complex64, 1000, batch=8, modes=40)
    first = run(case, scan, backend=backend)
    for one, other in zip(run(case, scan, backend=backend), first, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_parallel_native_kernel(two_threads, mode, dtype, batch):
    """Large enough to be shared between threads, by samples, by blocks of modes or by groups of samples."""
    for modes in (5, 70):
        length = 20000 // modes
        case = make(mode, dtype, length, batch=batch, modes=modes, slowest=0.01)
        assert case.b.numel() > 16384
        assert max(errors(run(case, scan, backend="native"), oracle(case))) < 1e-4


KERNELS = """
import torch
from fractal_ssm.ops.scan import native
b = torch.ones(4, 2000, 32, dtype=torch.complex64)
a, out = torch.full((1, 1, 32), 0.5, dtype=torch.complex64), torch.empty_like(b)
for threads in (1, 2):
    torch.set_num_threads(threads)
    native.forward(a, b, None, False, out)
    native.backward(a, b, None, b, False, out, True)
for kernel in (native._forward, native._backward):
    for code in (kernel._serial, kernel._parallel):
        print(sum(code.stats.cache_hits.values()), sum(code.stats.cache_misses.values()))
"""


def test_the_cache_keeps_serial_and_parallel_code_apart(tmp_path):
    """numba files code under the function's name: under one name, a second process would load one for the other."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "2"}
    for expected in ("0 1", "1 0"):
        done = subprocess.run(
            [sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [expected] * 4
    code = {path.name: path.read_bytes() for path in tmp_path.rglob("*.nbc")}
    assert sum("_parallel_" in name for name in code) == sum("_serial_" in name for name in code) == 2
    # The entry of numba's scheduler, by which parallel code hands its work out.
    assert all((b"numba_parallel_for" in content) == ("_parallel_" in name) for name, content in code.items())
