"""The DPLR frequency response against a dense float64 system: values, wrap-around, gradients, backends."""

import shutil

import pytest
import torch
from cauchy_cases import draw
from torch._subclasses.fake_tensor import FakeTensorMode

from fractal_ssm.errors import UsageError
from fractal_ssm.ops.cauchy import dplr_response
from fractal_ssm.ops.cauchy import interface as cauchy
from fractal_ssm.ops.runtime import backends

NAMES = ("Lambda", "P", "Q", "B", "C", "dt")


def dense_kernel(Lambda, P, Q, B, C, dt, length, wrapped):
    """C A_bar^l B_bar of the full, paired system; with `wrapped`, C (I - A_bar^length)^-1 in the place of C."""

    def pair(vector):
        return torch.cat((vector, vector.conj()), dim=-1)

    kernels = []
    for h in range(len(dt)):
        A = torch.diag(pair(Lambda[h])) - pair(P[:, h]).T @ pair(Q[:, h]).conj()
        identity = torch.eye(len(A), dtype=A.dtype)
        inverse = torch.linalg.inv(identity - 0.5 * dt[h] * A)
        A_bar, x = inverse @ (identity + 0.5 * dt[h] * A), inverse @ (dt[h] * pair(B[h]))
        row = pair(C[:, h])
        if wrapped:
            row = row @ torch.linalg.inv(identity - torch.linalg.matrix_power(A_bar, length))
        outputs = []
        for _ in range(length):
            outputs.append((row @ x).real)
            x = A_bar @ x
        kernels.append(torch.stack(outputs, dim=-1))
    return torch.stack(kernels, dim=1)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 33])
@pytest.mark.parametrize(("rank", "directions"), [(1, 1), (2, 2), (3, 1)])
def test_wrapped_kernel_and_gradients(length, rank, directions):
    values = draw(rank, directions)
    kernel = torch.fft.irfft(dplr_response(*values, length), n=length)
    wanted = dense_kernel(*values, length, wrapped=True)
    torch.testing.assert_close(kernel, wanted, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(wanted)
    ours = torch.autograd.grad(kernel, values, weight)
    theirs = torch.autograd.grad(wanted, values, weight)
    for name, a, b in zip(NAMES, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


def test_tiles_of_features_give_the_same(monkeypatch):
    values = draw(H=5)
    whole = dplr_response(*values, 16, "torch")
    gradients = torch.autograd.grad(whole.abs().square().sum(), values)
    monkeypatch.setattr(cauchy, "_CPU_TILE", 2 * 3 * 9)
    blocks = dplr_response(*values, 16, "torch")
    torch.testing.assert_close(blocks, whole)
    for a, b in zip(torch.autograd.grad(blocks.abs().square().sum(), values), gradients, strict=True):
        torch.testing.assert_close(a, b)


# Points: 1, 16 and 17 of a vector of 16, and several vectors; tasks of one thread and of two.
@pytest.mark.parametrize(
    ("length", "directions", "H", "P"), [(1, 1, 1, 1), (30, 2, 3, 5), (33, 1, 2, 32), (2050, 4, 9, 3)]
)
def test_native_gives_the_same(length, directions, H, P):
    values = draw(directions=directions, H=H, P=P)
    assert length < 2050 or directions * H * (length // 2 + 1) * 2 > 16384
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        native, expected = (dplr_response(*values, length, backend) for backend in ("native", "torch"))
        weight = torch.randn_like(expected)
        found, wanted = (torch.autograd.grad(response, values, weight) for response in (native, expected))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(native, expected, rtol=1e-11, atol=1e-11)
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        atol = 1e-11 * float(b.abs().max()) + 1e-13
        torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def test_native_error_in_single_precision():
    """At most 1.5 times that of the sums by torch, both against double precision, slow and fast poles together."""
    exact = draw(H=8, P=32)
    with torch.no_grad():
        exact[0].copy_(torch.complex(torch.full((8, 32), -0.5).double(), -torch.arange(32).double() * torch.pi))
        exact[2].copy_(exact[1])
        exact[5].copy_(torch.logspace(-3, -1, 8))
    weight = torch.randn(1, 8, 2049, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))

    def run(values, backend):
        response = dplr_response(*values, 4096, backend)
        return (response, *torch.autograd.grad(response, values, weight.to(response.dtype)))

    single = [v.detach().to(torch.complex64 if v.is_complex() else torch.float32).requires_grad_() for v in exact]
    wanted = run(exact, "torch")
    errors = [
        [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(run(single, backend), wanted, strict=True)]
        for backend in ("native", "torch")
    ]
    for ours, theirs in zip(*errors, strict=True):
        assert ours < 1.5 * theirs < 1e-4


def test_tensors_without_memory_go_through_torch():
    with FakeTensorMode():
        values = [torch.empty(1, 2, 3, dtype=torch.complex64, requires_grad=True) for _ in range(5)]
        Lambda, P, Q, B, C = values[0][0], *values[1:3], values[3][0], values[4]
        response = dplr_response(Lambda, P, Q, B, C, torch.empty(2), 9)
        response.real.sum().backward()
    assert response.shape == (1, 2, 5)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_nothing_is_singular_at_minus_one(backend):
    values = [value.detach() for value in draw()]
    single = [value.to(torch.complex64 if value.is_complex() else torch.float32) for value in values]
    response, exact = dplr_response(*single, 8, backend)[..., -1], dplr_response(*values, 8, backend)[..., -1]
    assert response.isfinite().all()
    assert ((response - exact).abs() < 1e-5 * exact.abs()).all()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_second_derivatives_are_refused(backend):
    values = draw()
    with pytest.raises(UsageError, match="first derivatives only"):
        torch.autograd.grad(dplr_response(*values, 4, backend).real.sum(), values[0], create_graph=True)


def test_refusals(monkeypatch):
    values = draw()
    with pytest.raises(UsageError, match="Did you mean 'keops'"):
        dplr_response(*values, 4, backend="keop")
    with pytest.raises(UsageError, match="length >= 1"):
        dplr_response(*values, 0)
    with pytest.raises(UsageError, match="this one has rank 2"):
        dplr_response(*draw(rank=2), 4, backend="native")
    monkeypatch.setattr(backends, "numba_obstacle", lambda: "Run: pip install numba")
    with pytest.raises(UsageError, match="pip install numba"):
        dplr_response(*values, 4, backend="native")
    assert dplr_response(*values, 4).isfinite().all()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"g\+\+"):
        dplr_response(*values, 4, backend="keops")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="KeOps compiles with g++")
def test_keops_gives_the_same(capfd):
    values = draw(rank=2)
    ours, theirs = (dplr_response(*values, 9, backend) for backend in ("keops", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert capfd.readouterr().out == ""
