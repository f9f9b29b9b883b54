"""The Vandermonde and Cauchy kernels on a GPU, single precision against double precision on the CPU."""

import pytest
import torch
from gpu_cases import as_precision, deviation, with_gradients

from fractal_ssm.ops.cauchy import dplr_response
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum

pytestmark = pytest.mark.gpu

LENGTHS = (1, 2, 15, 16, 17, 63, 65, 255, 1023, 1024, 1025, 4095, 4097, 16384, 65537)
SIZES = ((3, 1), (5, 16), (2, 17), (256, 32), (3, 100))  # (H, N)
# The largest case that double precision on a CPU is given: one second.
_MOST = 1 << 25


def cases(tiny):
    for length in (2, 17) if tiny else LENGTHS:
        for H, N in ((2, 3),) if tiny else SIZES:
            if H * N * length <= _MOST:
                yield H, N, length


def modes(H, N):
    """Coefficients (1, H, N) and w (H, N) in double precision, 1 - |w| between 1e-5 and 0.1."""
    radius = 1 - 10 ** (-5 + 4 * torch.rand(H, N, dtype=torch.float64))
    w = torch.polar(radius, 6.3 * torch.rand(H, N, dtype=torch.float64))
    return torch.randn(1, H, N, dtype=torch.complex128), w


def check(function, tensors, device, limit, low=True):
    """function(backend, device) of tensors, which `low` rounds to single precision."""
    weight = torch.randn_like(function("torch", "cpu")(*tensors))
    given = [as_precision(t, not low, device) for t in tensors]
    out = function("triton", device)
    found = with_gradients(out, given, [weight.to(out(*given))])
    assert deviation(found, with_gradients(function("torch", "cpu"), tensors, [weight])) < limit


def test_vandermonde(device, tiny):
    for H, N, length in cases(tiny):
        C, w = modes(H, N)
        check(lambda b, d, w=w, n=length: lambda c: vandermonde(c, w.to(d), n, b), [C], device, 2e-5)
        # w stays in double precision: its powers are what single precision would lose.
        low = C.to(torch.complex64)
        check(lambda b, d, c=low, n=length: lambda w: vandermonde(c.to(d), w, n, b), [w], device, 2e-5, low=False)


def test_vandermonde_sum(device, tiny):
    for H, N, length in cases(tiny):
        w, u = modes(H, N)[1], torch.randn(2, H, length, dtype=torch.float64)
        for last in (False, True):
            check(lambda b, d, w=w, k=last: lambda s: vandermonde_sum(s, w.to(d), k, b), [u], device, 2e-5)


def poles(H, N):
    """Lambda, P, Q, B, C, dt of a DPLR system in double precision, P = Q, rank 1."""

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.complex128)

    Lambda = torch.complex(-0.1 - torch.rand(H, N).double(), 30 * torch.randn(H, N).double())
    P = normal(1, H, N)
    return [Lambda, P, P, normal(H, N), normal(1, H, N), 0.01 + 0.1 * torch.rand(H).double()]


def test_cauchy(device, tiny):
    for H, N, length in cases(tiny):
        # At one point the step cancels out of the response, and its gradient is rounding alone. Next to a pole single
        # precision keeps three digits, in the plain form too.
        if length > 1:
            check(
                lambda b, d, n=length: lambda *p: torch.fft.irfft(dplr_response(*p, n, b), n), poles(H, N), device, 1e-3
            )
