"""Whole training steps of the published S5 model on a batch of full length: ours, and its peers in their frameworks.

All contenders start from the weights of our model and see the same batch; a step is a cross-entropy over token ids, its
gradient, and AdamW with the published groups. Data loader and lightning, which the peers lack, are left out;
`scripts.profile_step` shows them. The loss of the first step and the gradient of every parameter, under our names, are
compared.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fractal_ssm.config import Config, compose
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.models.build import build_model
from fractal_ssm.training.optim import parameter_groups
from fractal_ssm.training.optimizers import build_optimizer

from . import jax_step
from .timing import Table, forget_peak, peak_mb, resident_mb, time_cpu

N_TOKENS, N_CLASSES = 18, 10
Gradients = dict[str, Tensor]


@dataclass
class Problem:
    """A configuration, the model it builds, and a batch, for a shape (B, L, H, blocks)."""

    shape: tuple[int, ...]
    config: Config = field(init=False)
    model: SequenceModel = field(init=False)

    def __post_init__(self) -> None:
        batch, length, d_model, n_layers = self.shape
        self.config = compose(["experiment=lra/s5-listops", f"model.d_model={d_model}", f"model.n_layers={n_layers}"])
        torch.manual_seed(0)
        facts = {"n_classes": N_CLASSES, "n_tokens": N_TOKENS, "d_input": None, "l_max": length}
        self.model = build_model(self.config.model, {**facts, "task": "classification"})
        self.inputs = torch.randint(1, N_TOKENS, (batch, length))
        self.targets = torch.randint(N_CLASSES, (batch,))
        self.lengths = torch.full((batch,), length)


@dataclass
class Step:
    """step: one whole training step; gradients: the loss and its gradient by name, without an update."""

    step: Callable[[], object]
    gradients: Callable[[], tuple[float, Gradients]]


def ours(problem: Problem) -> Step:
    return _in_torch(problem, _named_gradients)


def s5_pytorch(problem: Problem) -> Step:
    """Our model with the layer of s5-pytorch in each block, with our weights."""
    for block in problem.model.blocks:
        block.layer = _PeerLayer(block.layer)
    return _in_torch(problem, _peer_gradients)


def jax_s5(problem: Problem) -> Step:
    return Step(*jax_step.build(problem))


def exact(problem: Problem) -> tuple[float, Gradients]:
    """The loss and its gradients in double precision."""
    problem.model.double()
    return _in_torch(problem, _named_gradients).gradients()


# Contender -> the module it needs, and its factory.
CONTENDERS: dict[str, tuple[str, Callable[[Problem], Step]]] = {
    "ours": ("torch", ours),
    "s5-pytorch": ("s5", s5_pytorch),
    "jax S5-style": ("jax", jax_s5),
}


def missing(name: str) -> str:
    """Why a contender cannot run here; empty if it can."""
    module = CONTENDERS[name][0]
    return "" if importlib.util.find_spec(module) else f"{module} is not installed"


def bench(
    shape: tuple[int, ...],
    table: Table,
    seconds: float,
    only_ours: bool,
    peak_of: Callable[[str], float] | None,
    clock: str,
    common: dict[str, object],
) -> None:
    """Rows of one case: verify every contender, then time it."""
    loss, gradients = exact(Problem(shape))
    for name, (_, make) in CONTENDERS.items():
        if missing(name) or (only_ours and name != "ours"):
            if not only_ours:
                table.add(contender=name, note=missing(name), **common)
            continue
        contender = make(Problem(shape))
        found_loss, found = contender.gradients()
        error = max(((found[key] - g).abs().max() / g.abs().max()).item() for key, g in gradients.items())
        timing = time_cpu(contender.step, 3 * seconds, clock)
        table.add(contender=name, what="training step", ms=timing.median, p20=timing.p20, p80=timing.p80,
                  samples_s=1e3 * shape[0] / timing.median, peak_mb=peak_of(name) if peak_of else "",
                  error=abs(found_loss - loss) / abs(loss), gradient_error=error,
                  note="" if error < 1e-2 else "gradients are wrong", **common)  # fmt: skip


def peak_over_idle(shape: tuple[int, ...], name: str) -> float:
    """Peak memory of a step in MB over the process before the model is built: weights, moments and batch included."""
    make = CONTENDERS[name][1]
    # Run a small problem first, so that compilers and thread pools count as idle.
    make(Problem((2, 16, 8, 1))).step()
    idle = resident_mb()
    contender = make(Problem(shape))
    contender.step()
    forget_peak()
    contender.step()
    return peak_mb() - idle


def _in_torch(problem: Problem, named: Callable[[nn.Module], Gradients]) -> Step:
    model = problem.model
    config = problem.config.optimizer
    # The fused optimizer refuses complex parameters, which only a peer has.
    fused = not any(p.is_complex() for p in model.parameters())
    optimizer = build_optimizer(parameter_groups(model, config), config, fused)

    def backward() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(problem.inputs, problem.lengths), problem.targets)
        loss.backward()
        return loss

    def step() -> Tensor:
        loss = backward()
        optimizer.step()
        return loss

    def gradients() -> tuple[float, Gradients]:
        return backward().item(), named(model)

    return Step(step, gradients)


def _named_gradients(model: nn.Module) -> Gradients:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


class _PeerLayer(nn.Module):
    """The layer of s5-pytorch with the interface that a block calls. Its output is Re(C x), so its C is twice ours."""

    roles = {"inner.seq.Lambda": "A", "inner.seq.B": "B", "inner.seq.C": "C", "inner.seq.log_step": "dt"}

    def __init__(self, layer: nn.Module):
        super().__init__()
        import s5

        self.causal, self.d_model = False, layer.d_model
        self.inner = s5.S5(layer.d_model, layer.n_modes, bidir=True)
        with torch.no_grad():
            self.inner.seq.Lambda.copy_(layer.Lambda)
            self.inner.seq.B.copy_(layer.B)
            self.inner.seq.C.copy_(2 * torch.cat([layer.C_tilde, torch.view_as_complex(layer.C_backward)], dim=1))
            self.inner.seq.D.copy_(layer.D)
            self.inner.seq.log_step.copy_(layer.log_dt)

    def forward(self, u: Tensor, state: None, lengths: None, dt_scale: float) -> tuple[Tensor, None]:
        return self.inner(u), None


def _peer_gradients(model: nn.Module) -> Gradients:
    found = {}
    for name, gradient in _named_gradients(model).items():
        layer, _, parameter = name.rpartition("inner.seq.")
        if parameter == "Lambda":
            found |= {layer + "Lambda_re": gradient.real, layer + "Lambda_im": gradient.imag}
        elif parameter == "C":
            forward, backward = (2 * torch.view_as_real(gradient)).chunk(2, dim=1)
            found |= {layer + "C": forward, layer + "C_backward": backward}
        else:
            found[layer + {"log_step": "log_dt"}.get(parameter, parameter) if layer else name] = gradient
    return found
