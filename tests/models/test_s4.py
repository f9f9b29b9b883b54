"""S4: published starts, every way to the kernel against a dense float64 system, folding, precision, refusals."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fractal_ssm import S4, UsageError, hippo
from fractal_ssm.models.s4.init import initial_low_rank

GOLDEN = Path(__file__).parents[1] / "golden"
INITS = [
    "legs",
    "legt",
    "fourier",
    "lagt",
    {"name": "legs"},
    {"name": "fractional", "alpha": 0.5},
    {"name": "fractional-tau", "alpha": 0.5},
    {"name": "fractional-galerkin", "alpha": 0.5},
]


def dense_kernel(layer, length):
    """C A_bar^l B_bar of the full, paired system of every feature."""

    def pair(vector):
        return torch.cat((vector, vector.conj()), dim=-1)

    system, kernels = layer.system(), []
    C = system.unfolded()
    for h in range(layer.d_model):
        A = torch.diag(pair(system.Lambda[h])) - pair(system.P[:, h]).T @ pair(system.Q[:, h]).conj()
        dt, identity = system.dt[h], torch.eye(len(A), dtype=A.dtype)
        inverse = torch.linalg.inv(identity - 0.5 * dt * A)
        A_bar, x, outputs = inverse @ (identity + 0.5 * dt * A), inverse @ (dt * pair(system.B[h])), []
        for _ in range(length):
            outputs.append((pair(C[:, h]) @ x).real)
            x = A_bar @ x
        kernels.append(torch.stack(outputs, dim=-1))
    return torch.stack(kernels, dim=1)


def kernel_gradients(layer, kernel):
    parameters = [parameter for name, parameter in layer.named_parameters() if name != "D"]
    weight = torch.randn(kernel.shape, generator=torch.Generator().manual_seed(5)).to(kernel)
    return torch.autograd.grad((kernel * weight).sum(), parameters)


@pytest.mark.parametrize("init", INITS, ids=str)
@pytest.mark.parametrize("backend", ["powers", "cauchy"])
@pytest.mark.parametrize("fold_length", [None, 16])
def test_kernels_and_gradients(init, backend, fold_length):
    torch.manual_seed(0)
    layer = S4(4, 8, init=init, n_ssm=2, backend=backend, fold_length=fold_length, dt_min=0.01, bidirectional=True)
    layer = layer.double()
    for length in (1, 2, 5, 16, 17):
        kernel, wanted = layer.kernel(length), dense_kernel(layer, length)
        torch.testing.assert_close(kernel, wanted, rtol=1e-8, atol=1e-10)
        for ours, theirs in zip(kernel_gradients(layer, kernel), kernel_gradients(layer, wanted), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_a_dense_kernel_in_numbers():
    # LegS N = 4 in its real basis, C = (1, 1, 1, 1), dt = 0.1, bilinear: computed in float64 from the dense matrices.
    half = hippo.dplr(hippo.operator("legs", 4)).half()
    layer = S4(1, 4, init={"name": "legs"}).double()
    with torch.no_grad():
        layer.inv_dt.fill_(math.log(0.1))
        layer.C.copy_(torch.view_as_real(torch.from_numpy(np.ones(4) @ half.V))[None, None])
    wanted = torch.tensor([0.547052, 0.223439, 0.063994, -0.004599, -0.025622], dtype=torch.float64)
    torch.testing.assert_close(layer.kernel(5).flatten(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["legs", "fout"])
def test_published_starts(name):
    with np.load(GOLDEN / "s4.npz") as arrays:
        recorded = {key.split("/")[1]: arrays[key] for key in arrays.files if key.startswith(f"s4_{name}/")}
    layer = S4(2, 8, init=name)
    for key in ("A_real", "A_imag"):
        np.testing.assert_allclose(getattr(layer, key).detach().numpy(), recorded[key], rtol=1e-6)
    for key in ("B", "P"):
        ours = torch.view_as_complex(getattr(layer, key).detach()).numpy().reshape(-1, 2, 4)
        theirs = recorded[key].reshape(-1, 2, 4, 2) @ [1, 1j]
        # LAPACK leaves the phase of an eigenvector open.
        np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-5)


@pytest.mark.parametrize("name", ["legs", "legt", "fourier"])
def test_published_matrix_is_the_measure(name):
    # Lambda - P P^H of the start, over all pairs, has the eigenvalues of the published A (up to its damping floor).
    with np.load(GOLDEN / "s4.npz") as arrays:
        A = arrays[f"hippo/{name}/8/A"]
    modes = initial_low_rank(name, 8)
    Lambda = torch.cat((modes.Lambda, modes.Lambda.conj()))
    P = torch.cat((modes.P, modes.P.conj()), dim=1)
    rebuilt = torch.linalg.eigvals(torch.diag(Lambda) - P.T @ P.conj()).numpy()
    wanted = np.linalg.eigvals(A)
    tolerance = {"legs": 1e-6, "legt": 2e-3, "fourier": 1e-2}[name]
    assert max(np.abs(rebuilt - value).min() for value in wanted) < tolerance * np.abs(wanted).max()


def test_folding_changes_the_parameter_and_not_the_function():
    torch.manual_seed(0)
    plain = S4(3, 8).double()
    folded = S4(3, 8, fold_length=20).double()
    folded.load_state_dict({**plain.state_dict(), "folded_at": torch.tensor(20)})
    folded.fold(plain.C.detach())
    assert not torch.allclose(folded.C, plain.C)
    for length in (7, 20, 33):
        torch.testing.assert_close(folded.kernel(length), plain.kernel(length), rtol=1e-9, atol=1e-12)
    # Another rate is another step, but C was folded with the old one.
    torch.testing.assert_close(folded.kernel(9, 2.0), plain.kernel(9, 2.0), rtol=1e-9, atol=1e-12)
    u = torch.randn(2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(folded(u)[1], plain(u)[1])


def test_float32_against_float64_at_long_length():
    torch.manual_seed(0)
    single = S4(2, 64)
    double = S4(2, 64).double()
    double.load_state_dict(single.state_dict())
    with torch.no_grad():
        exact = double.kernel(16384)
        assert (single.kernel(16384) - exact).abs().max() < 1e-6 * exact.abs().max()
        single.backend = "cauchy"
        assert (single.kernel(16384) - exact).abs().max() < 1e-3 * exact.abs().max()


@pytest.mark.parametrize("name", ["inv_dt", "A_real", "C"])
@pytest.mark.parametrize("value", [-20.0, 0.0, 10.0])
def test_extremes_stay_finite(name, value):
    layer = S4(2, 8)
    torch.nn.init.constant_(getattr(layer, name), value)
    y, _ = layer(torch.randn(2, 50, 2, generator=torch.Generator().manual_seed(0)))
    y.square().mean().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"init": "legss"}, "Did you mean 'legs'"),
        ({"init": {"theta": 1.0}}, "needs a 'name'"),
        ({"init": {"name": "legs", "N": 8}}, "no option 'N'"),
        ({"d_state": 7}, "even"),
        ({"n_ssm": 3}, "3 does not divide 4"),
        ({"backend": "power"}, "Did you mean 'powers'"),
        ({"fold_length": 0}, "fold_length"),
        ({"dt_transform": "log"}, "exp, softplus"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(UsageError, match=words):
        S4(**{"d_model": 4, "d_state": 8, **options})


@torch.no_grad()
def test_weights_bring_their_fold_length_along():
    u = torch.randn(2, 12, 4, dtype=torch.float64)
    for trained, other in ((8, 20), (8, None), (None, 8)):
        source, target = S4(4, 8, fold_length=trained).double(), S4(4, 8, fold_length=other).double()
        target.load_state_dict(source.state_dict(), strict=True)
        assert target.fold_length == trained
        torch.testing.assert_close(target(u)[0], source(u)[0], rtol=1e-12, atol=1e-12)
        again = copy.deepcopy(target)
        again.load_state_dict(S4(4, 8, fold_length=5).double().state_dict())
        assert (again.fold_length, target.fold_length) == (5, trained)
        again.fold_length = 6
        assert again.state_dict()["folded_at"] == 6


def test_a_step_of_zero_is_refused():
    layer = S4(4, 8)
    for scale in (torch.tensor(0.0), torch.tensor([1.0, 0.0])):
        with pytest.raises(UsageError, match="dt_scale of 0"):
            layer(torch.ones(2, 5, 4), dt_scale=scale)


@pytest.mark.parametrize("init", ["legs", "legt"])
@pytest.mark.parametrize("length", [129, 256, 600])
def test_the_state_of_a_long_sequence_is_that_of_single_steps(init, length):
    torch.manual_seed(0)
    layer = S4(3, 8, init=init).double()
    u = torch.randn(2, length, 3, dtype=torch.float64, requires_grad=True)
    y, state = layer(u)
    x, outputs = torch.zeros_like(state), []
    system = layer.system()
    for u_k in u.unbind(1):
        x, y_k = system.step(x, u_k)
        outputs.append(y_k + layer.D * u_k)
    torch.testing.assert_close(state, x, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(y, torch.stack(outputs, dim=1), rtol=1e-9, atol=1e-11)
    inputs = [u, *(parameter for name, parameter in layer.named_parameters() if name not in ("C", "D"))]
    gradients = [torch.autograd.grad(z.real.sum() + z.imag.sum(), inputs) for z in (state, x)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_kernel_by_powers_has_second_derivatives():
    torch.manual_seed(0)
    layer = S4(1, 4, dt_min=0.05).double()
    parameters = {name: p.detach().requires_grad_() for name, p in layer.named_parameters() if name != "D"}

    def of(*values):
        given = dict(zip(parameters, values, strict=True))
        call = torch.func.functional_call
        y, state = call(layer, given, (torch.linspace(-1, 1, 40, dtype=torch.float64).view(1, 40, 1),))
        return y, torch.view_as_real(state)

    assert torch.autograd.gradgradcheck(of, tuple(parameters.values()), atol=1e-5)
