"""Scans along any axis, and of sequences packed behind each other."""

from __future__ import annotations

import math

import pytest
import torch

from fractal_ssm import UsageError, scan

BACKENDS = ["native", "torch", "reference"]
dtypes = pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.complex128, 1e-12), (torch.complex64, 1e-5)],
)
# Lengths 1, 2, odd, a tile of the native kernel, one more.
LENGTHS = [1, 2, 7, 16, 17, 40]


def draw(*shape, dtype=torch.float64, seed=1):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def gates(*shape, dtype):
    values = draw(*shape, dtype=dtype, seed=2)
    return 0.95 * values / (0.1 + values.abs()) if values.numel() else values


def boundaries(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def one_by_one(a, b, x0, lengths, reverse):
    ends, found = boundaries(lengths), []
    for s in range(len(lengths)):
        part = slice(ends[s], ends[s + 1])
        own = a[:, part] if a.dim() == 3 and a.shape[1] > 1 else a[part] if a.dim() == 2 else a
        found.append(scan(own, b[:, part], None if x0 is None else x0[s : s + 1], reverse, "reference"))
    return torch.cat(found, dim=1)


@dtypes
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("modes", [1, 19])
def test_packed_sequences_are_separate_sequences(dtype, tolerance, backend, reverse, varies, modes):
    total = sum(LENGTHS)
    a = gates(*((total, modes) if varies else (modes,)), dtype=dtype).requires_grad_()
    b, x0 = (draw(*size, modes, dtype=dtype).requires_grad_() for size in ((1, total), (len(LENGTHS),)))
    weight = draw(1, total, modes, dtype=dtype, seed=3)
    for start in (None, x0):
        found = scan(a, b, start, reverse, backend, cu_seqlens=boundaries(LENGTHS))
        expected = one_by_one(a, b, start, LENGTHS, reverse)
        inputs = [a, b] if start is None else [a, b, x0]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10)
        for one, other in zip(
            torch.autograd.grad((found * weight).sum().real, inputs),
            torch.autograd.grad((expected * weight).sum().real, inputs),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=tolerance * 10, atol=tolerance * 100)


@pytest.mark.parametrize("lengths", [[1], [5], [1, 1, 1], [3, 1]])
def test_few_positions_and_int32(lengths):
    a, b = gates(4, dtype=torch.float64), draw(1, sum(lengths), 4)
    expected = one_by_one(a, b, None, lengths, False)
    for backend in BACKENDS:
        torch.testing.assert_close(scan(a, b, backend=backend, cu_seqlens=boundaries(lengths).int()), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_nan_stays_in_its_sequence(backend, reverse):
    a, b = gates(30, 3, dtype=torch.float64), draw(1, 30, 3)
    b[:, 12] = math.nan
    found = scan(a, b.requires_grad_(), None, reverse, backend, cu_seqlens=torch.tensor([0, 10, 20, 30]))
    assert found[:, :10].isfinite().all() and found[:, 20:].isfinite().all()
    assert not found[:, 12].isfinite().any()


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_scans_have_second_derivatives(reverse):
    ends = torch.tensor([0, 1, 4, 6])
    tensors = [
        gates(6, 2, dtype=torch.complex128),
        draw(1, 6, 2, dtype=torch.complex128),
        draw(3, 2, dtype=torch.complex128),
    ]
    tensors = [t.requires_grad_() for t in tensors]
    run = lambda a, b, x0: scan(a, b, x0, reverse, "native", cu_seqlens=ends)
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)
    constant = [gates(2, dtype=torch.complex128).requires_grad_(), *tensors[1:]]
    assert torch.autograd.gradgradcheck(run, constant)


def test_the_packed_operator_keeps_the_rules():
    a, b, x0 = (t.requires_grad_() for t in (gates(1, 1, 3, dtype=torch.float64), draw(1, 6, 3), draw(2, 3)))
    torch.library.opcheck(torch.ops.fractal_ssm.packed_scan, (a, b, x0, torch.tensor([0, 2, 6]), False))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0, 6], "as an int64 tensor"),
        (torch.tensor([0.0, 6.0]), "int64 or int32"),
        (torch.tensor([[0, 6]]), r"shape \(sequences \+ 1,\)"),
        (torch.tensor([0]), r"shape \(sequences \+ 1,\)"),
        (torch.tensor([0, 3, 3, 6]), "at least one position"),
        (torch.tensor([0, 5]), "from 0 to 6"),
        (torch.tensor([1, 6]), "from 0 to 6"),
        (torch.tensor([0, 7, 6]), "from 0 to 6"),
    ],
)
def test_wrong_boundaries_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        scan(torch.ones(2), torch.ones(1, 6, 2), cu_seqlens=wrong)


def test_packed_sequences_are_one_sample():
    ends = torch.tensor([0, 6])
    with pytest.raises(UsageError, match="one sample"):
        scan(torch.ones(2), torch.ones(2, 6, 2), cu_seqlens=ends)
    with pytest.raises(UsageError, match=r"x0 of shape \(1, 2\)"):
        scan(torch.ones(2), torch.ones(1, 6, 2), torch.ones(2, 2), cu_seqlens=ends)
    with pytest.raises(UsageError, match="no dim"):
        scan(torch.ones(2), torch.ones(1, 6, 2), cu_seqlens=ends, dim=1)


@dtypes
@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 5, 3), (2, 4, 5, 3), (2, 1, 5, 2, 3), (1, 1), (0, 3, 2)])
@pytest.mark.parametrize("reverse", [False, True])
def test_any_axis_of_any_tensor(dtype, tolerance, shape, reverse):
    for dim in range(-len(shape), len(shape)):
        if shape[dim] == 0:
            continue
        kinds = [shape, shape[-1:], (), tuple(n if i == dim % len(shape) else 1 for i, n in enumerate(shape))]
        b = draw(*shape, dtype=dtype).requires_grad_()
        x0 = draw(*shape[: dim % len(shape)], *shape[dim % len(shape) + 1 :], dtype=dtype, seed=5).requires_grad_()
        weight = draw(*shape, dtype=dtype, seed=6)
        for kind in kinds:
            a = gates(*kind, dtype=dtype).requires_grad_()
            found = scan(a, b, x0, reverse, dim=dim)
            state, states = x0, []
            pairs = list(zip(a.expand(shape).unbind(dim), b.unbind(dim), strict=True))
            for gate, value in reversed(pairs) if reverse else pairs:
                state = gate * state + value
                states.append(state)
            expected = torch.stack(states[::-1] if reverse else states, dim)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10)
            for one, other in zip(
                torch.autograd.grad((found * weight).sum().real, [a, b, x0]),
                torch.autograd.grad((expected * weight).sum().real, [a, b, x0]),
                strict=True,
            ):
                torch.testing.assert_close(one, other, rtol=tolerance * 10, atol=tolerance * 100)


def test_axes_that_do_not_fit_are_refused():
    b = torch.ones(2, 3, 4, 5)
    for dim in (4, -5, 1.0, True, "1"):
        with pytest.raises(UsageError, match="dim as an axis of b"):
            scan(torch.ones(5), b, dim=dim)
    with pytest.raises(UsageError, match="broadcasts to b's"):
        scan(torch.ones(4), b, dim=1)
    with pytest.raises(UsageError, match=r"without axis 1, \(2, 4, 5\)"):
        scan(torch.ones(5), b, torch.ones(2, 5), dim=1)
    with pytest.raises(UsageError, match="L >= 1"):
        scan(torch.ones(5), torch.ones(2, 0, 5), dim=1)
    with pytest.raises(UsageError, match=r"b of shape \(B, L, P\)"):
        scan(torch.ones(4), torch.ones(2, 4))
