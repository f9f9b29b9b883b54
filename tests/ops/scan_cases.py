"""Inputs and the oracle of the scan tests: a float64 loop over time with its adjoint written out, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

MODES = ("constant", "per_sample", "shared", "full")
LENGTHS = (1, 2, 3, 5, 7, 31, 33, 63, 65, 127, 129, 255, 257, 1000, 1023, 1025, 4095, 4097, 16384)


@dataclass
class Case:
    a: torch.Tensor
    b: torch.Tensor
    x0: torch.Tensor | None
    g: torch.Tensor
    reverse: bool

    def inputs(self) -> list[torch.Tensor]:
        return [t for t in (self.a, self.b, self.x0) if t is not None]


def make(
    mode: str,
    dtype: torch.dtype,
    length: int,
    *,
    batch: int = 3,
    modes: int = 5,
    x0: bool = True,
    reverse: bool = False,
    slowest: float = 1e-3,
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    """Random inputs; |a| lies between 0.9 and 1 - slowest, its first mode exactly at 1 - slowest."""
    generator = torch.Generator().manual_seed(seed)
    shape = {
        "constant": (modes,),
        "per_sample": (batch, 1, modes),
        "shared": (length, modes),
        "full": (batch, length, modes),
    }[mode]
    radius = 0.9 + (0.1 - slowest) * torch.rand(shape, generator=generator, dtype=torch.float64)
    radius[..., 0] = 1 - slowest
    sign = torch.where(torch.rand(shape, generator=generator) < 0.2, -1.0, 1.0)
    phase = torch.rand(shape, generator=generator, dtype=torch.float64) * 6
    a = torch.polar(radius, phase) if dtype.is_complex else radius * sign

    def normal(*size: int) -> torch.Tensor:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(*size, generator=generator, dtype=wide).to(device, dtype)

    return Case(
        a=a.to(device, dtype).requires_grad_(),
        b=normal(batch, length, modes).requires_grad_(),
        x0=normal(batch, modes).requires_grad_() if x0 else None,
        g=normal(batch, length, modes),
        reverse=reverse,
    )


def oracle(case: Case) -> list[np.ndarray]:
    """[x, da, db, dx0] in double precision from the inputs as they are (dx0 only with an x0)."""
    wide = np.complex128 if case.b.is_complex() else np.float64
    a, b, g = (t.detach().cpu().numpy().astype(wide) for t in (case.a, case.b, case.g))
    batch, length, modes = b.shape
    gates = np.broadcast_to(a, b.shape)
    start = np.zeros((batch, modes), wide) if case.x0 is None else case.x0.detach().cpu().numpy().astype(wide)
    order = range(length - 1, -1, -1) if case.reverse else range(length)
    x, state = np.empty_like(b), start
    for k in order:
        state = gates[:, k] * state + b[:, k]
        x[:, k] = state
    db, da = np.empty_like(b), np.empty_like(b)
    adjoint, steps = np.zeros((batch, modes), wide), list(order)
    for j in range(length - 1, -1, -1):
        k = steps[j]
        adjoint = adjoint + g[:, k]
        db[:, k] = adjoint
        da[:, k] = adjoint * np.conj(x[:, steps[j - 1]] if j else start)
        adjoint = np.conj(gates[:, k]) * adjoint
    shared = tuple(axis for axis in range(3) if ((1,) * (3 - a.ndim) + a.shape)[axis] != b.shape[axis])
    da = da.sum(axis=shared, keepdims=True).reshape(a.shape)
    return [x, da, db] + ([] if case.x0 is None else [adjoint])


def run(case: Case, scan, **options) -> list[np.ndarray]:
    """[x, da, db, dx0] of an implementation with the signature of `fractal_ssm.scan`."""
    x = scan(case.a, case.b, case.x0, case.reverse, **options)
    gradients = torch.autograd.grad(x, case.inputs(), case.g.to(x.dtype))
    return [t.detach().cpu().numpy() for t in (x, *gradients)]


def errors(found: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    """Largest deviation of each array over its largest entry (absolute if all are 0); NaN counts as infinite."""
    out = []
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        scale = np.abs(other).max() or 1.0
        error = np.abs(one - other).max() / scale
        out.append(float(np.where(np.isnan(error), np.inf, error)))
    return out
