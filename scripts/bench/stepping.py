"""Single steps of one layer, with a state and without gradients: each of our layers and its peers.

A peer has the weights of our layer. The reference is our layer's forward over the same sequence in double precision:
every contender is checked against it in double precision, timed, and its error in single precision reported.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fractal_ssm.registry import layers

from .timing import Table, Timing, summarise

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]
# Positions compared, and steps between two readings of the clock.
_COMPARED, _BLOCK = 40, 50
_CHUNK = 1000

# Our layers: contender -> registered name and options, with the published number of states if there is one.
LAYERS: dict[str, dict[str, Any]] = {
    "ours: S5, 128 modes": {"name": "s5"},
    "ours: S5, 32 modes": {"name": "s5", "d_state": 64},
    "ours: LRU, 256 modes": {"name": "lru"},
    "ours: LRU, 64 modes": {"name": "lru", "d_state": 64},
    "ours: FRACTAL": {"name": "fractal"},
    "ours: FRACTAL, d_state 256": {"name": "fractal", "d_state": 256},
    "ours: FRACTAL, fractional-tau": {"name": "fractal", "measure": "fractional-tau"},
    "ours: FRACTAL, learn_alpha": {"name": "fractal", "learn_alpha": True},
    "ours: FRACTAL, ltv": {"name": "fractal", "time": "ltv"},
    "ours: FRACTAL, convolution": {"name": "fractal-conv"},
    "ours: S4D": {"name": "s4d"},
    "ours: DSS": {"name": "dss"},
    "ours: S4": {"name": "s4"},
}


def _s5_pytorch(layer: nn.Module, batch: int) -> tuple[Step, Any]:
    """s5-pytorch, which discretises at every step; a batch by vmap."""
    import s5

    peer = s5.S5(layer.d_model, layer.n_modes)
    peer.seq.Lambda = nn.Parameter(layer.Lambda)
    peer.seq.C = nn.Parameter(2 * layer.C_tilde)
    peer.seq.B, peer.seq.D, peer.seq.log_step = layer.B, layer.D, layer.log_dt
    step = peer.seq.forward_rnn
    if batch == 1:
        return lambda u, x: tuple(part[None] for part in step(u[0], x[0])), layer.initial_state(1)
    return torch.vmap(step), layer.initial_state(batch)


def _plain_s4d(layer: nn.Module, batch: int) -> tuple[Step, Any]:
    """The published form of S4D's step (arXiv 2206.11893): discretised once, three complex einsums."""
    system = layer.system()
    A, B, C = (part.to(layer.D.dtype.to_complex()) for part in (system.Lambda_bar, system.B_bar, system.C))

    def step(u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.einsum("hn,bhn->bhn", A, x) + torch.einsum("hn,bh->bhn", B, u)
        return 2 * torch.einsum("chn,bhn->bch", C, x).real[:, 0] + layer.D * u, x

    return step, layer.initial_state(batch)


# Peer -> the module it needs, the contender of ours whose weights it takes, and its factory.
PEERS: dict[str, tuple[str, str, Callable[[nn.Module, int], tuple[Step, Any]]]] = {
    "s5-pytorch, 128 modes": ("s5", "ours: S5, 128 modes", _s5_pytorch),
    "s5-pytorch, 32 modes": ("s5", "ours: S5, 32 modes", _s5_pytorch),
    "published S4D, plain torch": ("torch", "ours: S4D", _plain_s4d),
}


@dataclass
class Contender:
    """A layer, whose forward is the reference, and a factory for the step and the state at rest of the contender."""

    layer: nn.Module
    make: Callable[[nn.Module, int], tuple[Step, Any]]

    def error(self, batch: int, dtype: torch.dtype) -> float:
        """Largest deviation from the layer's forward in double precision, divided by its largest output."""
        u = torch.randn(batch, _COMPARED, self.layer.d_model, generator=torch.Generator().manual_seed(0))
        expected = copy.deepcopy(self.layer).double()(u.double())[0]
        step, state = self.make(copy.deepcopy(self.layer).to(dtype), batch)
        found = torch.empty_like(expected)
        for position in range(_COMPARED):
            found[:, position], state = step(u[:, position].to(dtype), state)
        return ((found - expected).abs().max() / expected.abs().max()).item()


def _ours(layer: nn.Module, batch: int) -> tuple[Step, Any]:
    return layer.step, layer.initial_state(batch)


def contenders(d_model: int) -> dict[str, Contender]:
    """All contenders that are installed, with layers initialised from one seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = {
            name: layers.build(options, d_model=d_model, l_max=_CHUNK).eval().requires_grad_(False)
            for name, options in LAYERS.items()
        }
    found = {name: Contender(layer, _ours) for name, layer in built.items()}
    for name, (module, ours, make) in PEERS.items():
        if importlib.util.find_spec(module):
            found[name] = Contender(built[ours], make)
    return found


@torch.no_grad()
def bench(
    shape: tuple[int, ...],
    table: Table,
    seconds: float,
    only_ours: bool,
    clock: Callable[[], float],
    common: dict[str, object],
) -> None:
    """Rows of one case (B, H, positions seen before): verify every contender, then time it."""
    batch, d_model, seen = shape
    times: dict[str, float] = {}
    for name, contender in contenders(d_model).items():
        if name in PEERS and only_ours:
            continue
        wrong = not contender.error(batch, torch.float64) < 1e-9
        step, state = contender.make(contender.layer, batch)
        if seen:
            state = _state_after(contender.layer, batch, seen)
        timing = _timed(step, torch.randn(batch, d_model), state, seconds, clock)
        times[name] = timing.median
        ours = PEERS[name][1] if name in PEERS else name
        table.add(contender=name, what="step", ms=timing.median, p20=timing.p20, p80=timing.p80,
                  of_ours=timing.median / times[ours], error=contender.error(batch, torch.float32),
                  note="wrong" if wrong else "", **common)  # fmt: skip
    if not only_ours:
        for name, (module, _, _) in PEERS.items():
            if name not in times:
                table.add(contender=name, note=f"{module} is not installed", **common)


def _state_after(layer: nn.Module, batch: int, seen: int) -> Any:
    state = None
    for start in range(0, seen, _CHUNK):
        state = layer(torch.randn(batch, min(_CHUNK, seen - start), layer.d_model), state)[1]
    return state


def _timed(step: Step, u: Tensor, state: Any, seconds: float, clock: Callable[[], float]) -> Timing:
    """Milliseconds per step of a chain of steps, as in use; the clock is read once per _BLOCK steps."""
    for _ in range(_BLOCK):
        state = step(u, state)[1]
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < 5 or time.perf_counter() - began < seconds:
        start = clock()
        for _ in range(_BLOCK):
            state = step(u, state)[1]
        found.append((clock() - start) * 1e3 / _BLOCK)
    return summarise(found)
