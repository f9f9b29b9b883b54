"""Which backend a Vandermonde or Cauchy sum takes."""

import pytest
import torch
from fractal_ssm import S4, S4D, UsageError
from fractal_ssm.ops.runtime import sum_backends
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_automatic_choice(monkeypatch):
    assert sum_backends.choose("sums", "auto", CPU) == "torch"
    monkeypatch.setattr(sum_backends, "_triton_reason", str)
    assert sum_backends.choose("sums", "auto", CPU) == "torch"
    assert sum_backends.choose("sums", "auto", CUDA) == "triton"
    monkeypatch.setattr(sum_backends, "_triton_reason", lambda: "no triton.")
    assert sum_backends.choose("sums", "auto", CUDA) == "torch"


def test_triton_without_a_device_says_so():
    if sum_backends._triton_reason() == "":
        pytest.skip("a GPU is here")
    w = torch.ones(2, 3, dtype=torch.complex128)
    for call in (
        lambda: vandermonde(w.to(torch.complex64), w, 4, "triton"),
        lambda: vandermonde_sum(torch.ones(2, 4), w, backend="triton"),
        lambda: S4D(4, 8, backend="triton"),
        lambda: S4(4, 8, backend="triton"),
    ):
        with pytest.raises(UsageError, match="cannot run here: triton needs a CUDA or ROCm device"):
            call()


def test_tensors_have_to_be_on_the_device(monkeypatch):
    monkeypatch.setattr(sum_backends, "_triton_reason", str)
    monkeypatch.setattr(sum_backends, "interpreting", lambda: False)
    with pytest.raises(UsageError, match="these are on cpu"):
        sum_backends.choose("sums", "triton", CPU)


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setattr(sum_backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install triton"):
        sum_backends.check("sums", "triton")
