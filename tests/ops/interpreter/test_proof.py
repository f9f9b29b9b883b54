"""The real kernels pass their own case, and kernels with one wrong number in them do not."""

import pytest
import torch
import triton.language as tl

from fractal_ssm.ops import cauchy, scan, vandermonde
from fractal_ssm.ops.cauchy import triton as cauchy_backend
from fractal_ssm.ops.runtime import proof
from fractal_ssm.ops.scan import triton as scan_backend
from fractal_ssm.ops.vandermonde import triton as vandermonde_backend

CPU = torch.device("cpu")
CASES = {"scan": scan.interface.prove, "vandermonde": vandermonde.interface.prove, "cauchy": cauchy.interface.prove}


@pytest.fixture(autouse=True)
def nothing_proven(monkeypatch):
    monkeypatch.setattr(proof, "_found", {})


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_are_right(name):
    assert proof.doubt(name, CPU, CASES[name]) == ""


def test_a_scan_that_forgets_its_chunks_is_found(monkeypatch):
    launch = scan_backend._launch

    def without_starts(*arguments, starts=None, **options):
        return launch(*arguments, starts=None if starts is None else torch.zeros_like(starts), **options)

    def plan(batch, length, width, processors, adjoint):
        return scan_backend.Plan(block_l=32, block_w=8, rows=64, chunks=-(-length // 64))

    monkeypatch.setattr(scan_backend, "plan", plan)
    assert proof.doubt("scan", CPU, CASES["scan"]) == ""
    proof._found.clear()
    monkeypatch.setattr(scan_backend, "_launch", without_starts)
    assert "wrong results" in proof.doubt("scan", CPU, CASES["scan"])


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("vandermonde", vandermonde_backend, "expand"),
        ("vandermonde", vandermonde_backend, "collapse"),
        ("cauchy", cauchy_backend, "pole_sums"),
        ("cauchy", cauchy_backend, "pole_gradients"),
    ],
)
def test_a_wrong_kernel_is_found(monkeypatch, name, module, function):
    right = getattr(module, function)

    def slightly_wrong(*arguments):
        results = right(*arguments)
        if isinstance(results, torch.Tensor):
            return results * 1.01
        return *results[:-1], results[-1] * 1.01

    monkeypatch.setattr(module, function, slightly_wrong)
    assert "wrong results" in proof.doubt(name, CPU, CASES[name])


def test_a_kernel_that_does_not_compile_is_found(monkeypatch):
    def no_such_function(*arguments):
        return tl.no_such_function(*arguments)

    monkeypatch.setattr(vandermonde_backend, "expand", no_such_function)
    found = proof.doubt("vandermonde", CPU, CASES["vandermonde"])
    assert "failed on a small case (AttributeError" in found
