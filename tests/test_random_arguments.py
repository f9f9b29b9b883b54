"""Random wrong arguments to every public name: what comes back is an answer or a UsageError, never a raw traceback."""

from __future__ import annotations

import inspect
import math
import random

import numpy as np
import pytest
import torch

import fractal_ssm
from fractal_ssm import DSS, LRU, S4, S4D, S5, Attention, Fractal, UsageError, hippo
from fractal_ssm.ops.convolution import convolve
from fractal_ssm.ops.discretize import discretize
from fractal_ssm.ops.ssm import bidirectional_ssm, ssm
from fractal_ssm.ops.vandermonde import vandermonde, vandermonde_sum

CALLS = 40


def values():
    operator = hippo.operator("legs", 4)
    u, ones = torch.zeros(2, 4, 4), np.ones((2, 3))
    return [
        *(None, 0, 1, -1, 3, 8, 2.5, True, False, 1j, math.nan, math.inf, 2**70, -(2**70), 1e300, "", "x", "legs"),
        *(b"a", object(), len, int, range(3), [], [1], [1.0, 2.0], (), {}, {"name": "legs"}, {"name": 3}),
        *(np.zeros(3), ones, np.array(["a"]), np.array([None]), np.zeros(0), np.float32(1), np.int64(4), np.array(1j)),
        *(u, u[0], u[0, 0], u.long(), u.bool(), u.to(torch.complex64), u.to("meta"), u.to_sparse(), torch.tensor(1j)),
        *(torch.zeros(0), torch.nn.Linear(2, 2), operator, hippo.diagonalize(operator), hippo.dplr(operator)),
    ]


def targets():
    """Name -> (function, arguments that it takes)."""
    operator, times, u = hippo.operator("legs", 4), np.arange(1.0, 4.0), torch.ones(2, 4, 4)
    signal = {"u": np.ones(3), "t": times, "measure": "legs", "N": 4}
    half = torch.full((4,), 0.5 + 0j)
    system = {"u": u, "Lambda_bar": half, "B": u[0] + 0j, "C": u[0] + 0j}
    known = {
        "operator": {"name": "legs", "N": 4},
        "project": signal,
        "true_projection": signal,
        "reconstruct": {"x": np.ones(4), "times": 0.5, "t": 1.0, "measure": "legs", "N": 4},
        "diagonalize": {"operator": operator},
        "dplr": {"operator": operator},
        "calibrated_range": {"system": operator, "shortest": 1.0, "longest": 2.0},
        "imaginary_parts": {"kind": "lin", "n": 3},
        "scan": {"a": half.real, "b": u},
        "load_published": {"module": S4D(4, d_state=4)},
        "convolve": {"u": u, "kernel": u[0]},
        "discretize": {"Lambda": -half, "dt": half.real},
        "vandermonde": {"coefficient": u[0] + 0j, "w": 0.5 * u[0] + 0j, "length": 3},
        "ssm": system,
        "bidirectional_ssm": {**system, "C_backward": u[0] + 0j},
        **{kind.__name__: {"d_model": 4} for kind in (S4, S4D, S5, DSS, LRU, Fractal, Attention)},
    }
    functions = [getattr(fractal_ssm, name) for name in fractal_ssm.__all__ if not name.startswith(("hippo", "list"))]
    functions += [getattr(hippo, name) for name in hippo.__all__ if not name.startswith(("register", "list"))]
    functions += [convolve, discretize, vandermonde, vandermonde_sum, ssm, bidirectional_ssm]
    functions = [f for f in functions if callable(f) and f is not UsageError and not inspect.isabstract(f)]
    found = {
        getattr(f, "__qualname__", str(f)).replace("Registry.register", "register"): (f, known.get(f.__name__, {}))
        for f in functions
    }
    layers = [S4(4, d_state=4), S4D(4, d_state=4), S5(4, d_state=4, blocks=1), DSS(4, d_state=2, l_max=8)]
    layers += [LRU(4, d_state=2), Attention(4, n_heads=2), Fractal(4, d_state=8, n_alphas=2, time="ltv")]
    for layer in layers:
        found[f"{type(layer).__name__}.forward"] = layer.forward, {"u": u}
        found[f"{type(layer).__name__}.step"] = layer.step, {"u_t": u[:, 0], "state": layer.initial_state(2)}
        found[f"{type(layer).__name__}.initial_state"] = layer.initial_state, {}
    return found


@pytest.mark.filterwarnings("ignore")
def test_random_arguments():
    chance, pool = random.Random(0), values()
    for name, (function, known) in targets().items():
        parameters = {
            key: parameter
            for key, parameter in inspect.signature(function).parameters.items()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        }
        for _ in range(CALLS):
            arguments = {key: chance.choice(pool) for key in parameters if chance.random() < 0.2}
            arguments[chance.choice(list(parameters))] = chance.choice(pool)
            arguments = {**known, **arguments}
            for key, parameter in parameters.items():
                if parameter.default is parameter.empty and key not in arguments:
                    arguments[key] = chance.choice(pool)
            try:
                function(**arguments)
            except UsageError as error:
                assert len(str(error)) > 20
            except Exception as error:
                raise AssertionError(f"{name}({arguments})") from error
