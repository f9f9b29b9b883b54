"""The DPLR frequency response against a dense float64 system: values, wrap-around, gradients, backends."""

import shutil

import pytest
import torch
from fractal_ssm.errors import UsageError
from fractal_ssm.ops import cauchy
from fractal_ssm.ops.cauchy import dplr_response

NAMES = ("Lambda", "P", "Q", "B", "C", "dt")


def draw(rank=1, directions=1, H=2, P=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.complex128, generator=generator)

    Lambda = torch.complex(-0.1 - torch.rand(H, P, generator=generator).double(), 5 * normal(H, P).real)
    low_rank = normal(rank, H, P)
    dt = 0.05 + 0.3 * torch.rand(H, generator=generator).double()
    values = (Lambda, low_rank, low_rank + 0.1 * normal(rank, H, P), normal(H, P), normal(directions, H, P), dt)
    return [value.requires_grad_() for value in values]


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


def test_blocks_of_features_give_the_same(monkeypatch):
    values = draw(H=5)
    whole = dplr_response(*values, 16)
    gradients = torch.autograd.grad(whole.abs().square().sum(), values)
    monkeypatch.setattr(cauchy, "_CPU_BLOCK", 2 * 3 * 9)
    blocks = dplr_response(*values, 16)
    torch.testing.assert_close(blocks, whole)
    for a, b in zip(torch.autograd.grad(blocks.abs().square().sum(), values), gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_nothing_is_singular_at_minus_one():
    values = [value.detach() for value in draw()]
    single = [value.to(torch.complex64 if value.is_complex() else torch.float32) for value in values]
    response, exact = dplr_response(*single, 8)[..., -1], dplr_response(*values, 8)[..., -1]
    assert response.isfinite().all()
    assert ((response - exact).abs() < 1e-5 * exact.abs()).all()


def test_second_derivatives_are_refused():
    values = draw()
    with pytest.raises(UsageError, match="first derivatives only"):
        torch.autograd.grad(dplr_response(*values, 4).real.sum(), values[0], create_graph=True)


def test_refusals(monkeypatch):
    values = draw()
    with pytest.raises(UsageError, match="Did you mean 'keops'"):
        dplr_response(*values, 4, backend="keop")
    with pytest.raises(UsageError, match="length >= 1"):
        dplr_response(*values, 0)
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
