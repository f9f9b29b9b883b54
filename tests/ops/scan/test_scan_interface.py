"""What `scan` refuses and says, which backend it takes, and how it passes through torch.compile and torch.export."""

import logging

import pytest
import torch
from scan_cases import errors, make, oracle, run

from fractal_ssm import UsageError, scan
from fractal_ssm.ops.runtime import backends, presence

FAST = ("torch", "native")


@pytest.mark.parametrize(
    ("a", "b", "x0", "says"),
    [
        ((3,), (2, 4), None, r"b of shape \(B, L, P\)"),
        ((3,), (2, 0, 3), None, "L >= 1"),
        ((4,), (2, 5, 3), None, r"\(3,\), \(5, 3\) or \(2, 5, 3\)"),
        ((2, 3), (2, 5, 3), None, r"got \(2, 3\)"),
        ((2, 4, 3), (2, 5, 3), None, r"got \(2, 4, 3\)"),
        ((), (2, 5, 3), None, r"got \(\)"),
        ((3,), (2, 5, 3), (3,), r"x0 of shape \(2, 3\), got \(3,\)"),
    ],
)
def test_shapes_that_do_not_fit(a, b, x0, says):
    with pytest.raises(UsageError, match=says):
        scan(torch.zeros(a), torch.zeros(b), None if x0 is None else torch.zeros(x0))


@pytest.mark.parametrize("a", [0.5, [0.5, 0.5], None, torch.ones(2).numpy()])
def test_what_is_no_tensor_is_refused(a):
    b = torch.ones(1, 3, 2)
    with pytest.raises(UsageError, match="scan takes tensors, got a of type"):
        scan(a, b)
    with pytest.raises(UsageError, match="scan takes tensors, got b of type"):
        scan(torch.ones(2), a)
    if a is not None:
        with pytest.raises(UsageError, match="scan takes tensors, got x0 of type"):
            scan(torch.ones(2), b, a)


def test_sparse_tensors_are_refused():
    with pytest.raises(UsageError, match=r"got b of layout torch.sparse_coo: use b.to_dense\(\)"):
        scan(torch.ones(2), torch.ones(1, 3, 2).to_sparse())


def test_integers_are_refused():
    with pytest.raises(UsageError, match="floating-point"):
        scan(torch.ones(2, dtype=torch.int64), torch.ones(1, 3, 2))


def test_other_devices_are_refused():
    with pytest.raises(UsageError, match="one device"):
        scan(torch.ones(2, device="meta"), torch.ones(1, 3, 2))


def test_an_unknown_backend_names_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'native'"):
        scan(torch.ones(2), torch.ones(1, 3, 2), backend="nativ")


def without_packages(monkeypatch):
    monkeypatch.setattr(presence.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(backends, "numba_obstacle", presence._find_obstacle.__wrapped__)
    monkeypatch.setattr(backends, "_find_triton", backends._find_triton.__wrapped__)


def test_a_backend_that_cannot_run_says_why_and_what_to_do(monkeypatch):
    monkeypatch.setattr(backends, "interpreting", lambda: False)
    with pytest.raises(UsageError, match="CUDA or ROCm device.*backend='auto'"):
        scan(torch.ones(2), torch.ones(1, 3, 2), backend="triton")
    without_packages(monkeypatch)
    with pytest.raises(UsageError, match="pip install numba"):
        scan(torch.ones(2), torch.ones(1, 3, 2), backend="native")
    with pytest.raises(UsageError, match="pip install triton"):
        scan(torch.ones(2), torch.ones(1, 3, 2), backend="triton")


def test_auto_says_once_what_it_chose(monkeypatch, caplog):
    monkeypatch.setattr(backends, "_said", set())
    with caplog.at_level(logging.INFO, logger="fractal_ssm.backends"):
        for _ in range(3):
            scan(torch.ones(2), torch.ones(1, 3, 2))
    assert [record.message for record in caplog.records] == ["scan on cpu: backend 'native', the fastest here."]


def test_auto_falls_back_to_torch_with_one_message(monkeypatch, caplog):
    monkeypatch.setattr(backends, "_said", set())
    without_packages(monkeypatch)
    case = make("constant", torch.float64, 9)
    for _ in range(2):
        assert max(errors(run(case, scan), oracle(case))) < 1e-12
    assert len(caplog.records) == 1
    assert "backend 'torch' instead of 'native': numba is not installed" in caplog.records[0].message


@pytest.mark.parametrize("backend", FAST)
def test_operator_contract(backend):
    """torch's own checks of a custom operator: schema, fake tensors, autograd registration, compiled dispatch."""
    for mode in ("constant", "full"):
        case = make(mode, torch.complex128, 6)
        a = case.a.detach()[(None,) * (3 - case.a.dim())].requires_grad_()
        torch.library.opcheck(torch.ops.fractal_ssm.scan.default, (a, case.b, case.x0, False, backend))
        torch.library.opcheck(torch.ops.fractal_ssm.scan.default, (a, case.b, None, True, backend))


class Recurrence(torch.nn.Module):
    """Complex inside, real at both ends, as a layer is."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(scan(torch.view_as_complex(a), torch.view_as_complex(b)))


def real_inputs(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    case = make("constant", torch.complex64, length, x0=False)
    a, b, g = (torch.view_as_real(t.detach()).clone() for t in (case.a, case.b, case.g))
    return a.requires_grad_(), b.requires_grad_(), g


def test_compiled_gradients_equal_eager_ones():
    """The case that inductor's complex code gets silently wrong; three lengths in a row, so shapes go dynamic."""
    module = Recurrence()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for length in (20, 30, 40):
        a, b, g = real_inputs(length)
        expected = torch.autograd.grad(module(a, b), (a, b), g)
        for one, other in zip(torch.autograd.grad(compiled(a, b), (a, b), g), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_inductor_gradients_equal_eager_ones():
    module = Recurrence()
    a, b, g = real_inputs(64)
    expected = torch.autograd.grad(module(a, b), (a, b), g)
    for one, other in zip(torch.autograd.grad(torch.compile(module)(a, b), (a, b), g), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_export_keeps_one_opaque_operator():
    a, b, _ = real_inputs(16)
    program = torch.export.export(Recurrence(), (a.detach(), b.detach()))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count("fractal_ssm.scan.default") == 1
    torch.testing.assert_close(program.module()(a.detach(), b.detach()), Recurrence()(a, b).detach())
