"""Which backend an operation takes, what it says when it cannot, and how a GPU kernel proves itself first."""

import logging

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fractal_ssm import S4, S4D, UsageError
from fractal_ssm.ops import cauchy, scan, vandermonde
from fractal_ssm.ops.runtime import backends, proof
from fractal_ssm.ops.vandermonde import vandermonde_sum

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NO_GPU = pytest.mark.skipif(torch.cuda.is_available() or backends.interpreting(), reason="Triton runs here")
CASES = {"scan": scan.interface.prove, "vandermonde": vandermonde.interface.prove, "cauchy": cauchy.interface.prove}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture
def triton_everywhere(monkeypatch):
    """As on a machine with a GPU, and nothing said or proven yet."""
    monkeypatch.setattr(backends, "obstacle", lambda backend, device_type: "")
    monkeypatch.setattr(backends, "_said", set())
    monkeypatch.setattr(proof, "_found", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_the_automatic_choice(triton_everywhere, monkeypatch):
    assert backends.choose("vandermonde", "auto", CPU) == "torch"
    assert backends.choose("vandermonde", "auto", CUDA) == "triton"
    assert backends.choose("vandermonde", "auto", torch.device("mps")) == "torch"
    monkeypatch.setattr(backends, "obstacle", lambda backend, device_type: "no triton")
    assert backends.choose("vandermonde", "auto", CUDA) == "torch"


def test_limits_turn_auto_away_and_refuse_a_name():
    limits = {"native": "it is for something else"}
    assert backends.choose("cauchy", "auto", CPU, limits) == "torch"
    with pytest.raises(UsageError, match="cannot run on cpu: it is for something else. Or use backend='auto'"):
        backends.choose("cauchy", "native", CPU, limits)


def test_code_that_reads_memory_is_not_for_tensors_without_any():
    with FakeTensorMode():
        assert backends.choose("convolve", "auto", torch.empty(3)) == "torch"
    assert backends.choose("convolve", "auto", torch.empty(3)) == "native"


@NO_GPU
def test_triton_without_a_device_says_so():
    w = torch.ones(2, 3, dtype=torch.complex128)
    for call in (
        lambda: vandermonde.vandermonde(w.to(torch.complex64), w, 4, "triton"),
        lambda: vandermonde_sum(torch.ones(2, 4), w, backend="triton"),
        lambda: S4D(4, 8, backend="triton"),
        lambda: S4(4, 8, backend="triton"),
    ):
        with pytest.raises(UsageError, match="cannot run .*: triton needs tensors on a CUDA or ROCm device"):
            call()


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(backends, "_find_triton", lambda: False)
    with pytest.raises(UsageError, match="pip install triton"):
        backends.check("vandermonde", "triton")


def test_every_preference_is_a_backend_of_its_operation():
    for operation in backends.OPERATIONS.values():
        assert set(operation.preferred.values()) | {"torch"} <= set(operation.backends)


# Proof: on this machine the "kernels" are torch's forms, told to err


def in_place_of_triton(case, change=lambda results: results):
    """The case with torch on the CPU as every backend, and what stands for Triton's results changed."""

    def run(backend, device):
        results = case("torch", CPU)
        return change(results) if backend == "triton" else results

    return run


def wrong_in(index):
    def change(results):
        results[index] = results[index] * 1.01
        return results

    return change


def broken(results):
    raise RuntimeError("out of registers")


def nothing(results):
    return [torch.full_like(result, float("nan")) for result in results]


@every_case
def test_kernels_that_are_right_are_taken(triton_everywhere, caplog, case):
    with caplog.at_level(logging.INFO, logger="fractal_ssm.backends"):
        assert backends.choose("vandermonde", "auto", CUDA, proof=in_place_of_triton(case)) == "triton"
    assert [record.levelname for record in caplog.records] == ["INFO"]


@every_case
@pytest.mark.parametrize("change", [wrong_in(0), wrong_in(-1), broken, nothing])
def test_kernels_that_are_wrong_give_way_to_torch_with_one_warning(triton_everywhere, caplog, case, change):
    calls = []

    def counted(backend, device):
        calls.append(backend)
        return in_place_of_triton(case, change)(backend, device)

    for _ in range(3):
        assert backends.choose("vandermonde", "auto", CUDA, proof=counted) == "torch"
    assert calls == ["torch", "triton"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "vandermonde on cuda: backend 'torch' instead of 'triton'" in record.message
    with pytest.raises(UsageError, match="on a small case"):
        backends.choose("vandermonde", "triton", CUDA, proof=counted)
    assert calls == ["torch", "triton"]


def test_a_case_leaves_the_caller_s_modes_and_random_numbers_alone(triton_everywhere):
    before = torch.get_rng_state()
    with torch.inference_mode():
        assert backends.choose("cauchy", "auto", CUDA, proof=in_place_of_triton(CASES["cauchy"])) == "triton"
        assert torch.is_inference_mode_enabled()
    with torch.no_grad():
        assert backends.choose("scan", "auto", CUDA, proof=in_place_of_triton(CASES["scan"])) == "triton"
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_settled_where_nothing_can_be_computed(triton_everywhere, monkeypatch):
    def never(backend, device):
        pytest.fail("a case was run")

    with FakeTensorMode():
        assert backends.choose("scan", "auto", CUDA, proof=never) == "triton"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert backends.choose("scan", "auto", CUDA, proof=never) == "torch"
    assert not proof._found
