"""In the code base of state-spaces/s4: a layer of ours by a line of its registry and a line of its configuration.

The classes in the middle stand for that code base: its registry of layers, its residual block, its optimizer's groups.

python examples/s4_registry.py
"""

import importlib
from collections import defaultdict

import torch
from torch import nn

# Line 1: src/utils/registry.py, in the dict `layer`.
REGISTRY = {"fractal_ssm": "fractal_ssm.interop.s4.SequenceModule"}
# Line 2: configs/model/layer/fractal.yaml.
LAYER = {"_name_": "fractal_ssm", "layer": {"name": "fractal", "d_state": 32}, "mixer": "glu"}


def instantiate(config: dict, *args, **kwargs) -> nn.Module:
    module, _, name = REGISTRY[config["_name_"]].rpartition(".")
    options = {key: value for key, value in config.items() if key != "_name_"}
    return getattr(importlib.import_module(module), name)(*args, **options, **kwargs)


class Backbone(nn.Module):
    """Pre-norm residual blocks on (B, H, L), as that code runs them."""

    def __init__(self, d_model: int, n_layers: int):
        super().__init__()
        self.layers = nn.ModuleList(instantiate(LAYER, d_model, transposed=True, dropout=0.1) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(layer.d_output) for layer in self.layers)
        self.encoder, self.decoder = nn.Linear(1, d_model), nn.Linear(d_model, 2)

    def forward(self, u: torch.Tensor, **kwargs) -> torch.Tensor:
        x = self.encoder(u).transpose(1, 2)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            z = norm(x.transpose(1, 2)).transpose(1, 2)
            x = x + layer(z, state=None, **kwargs)[0]
        return self.decoder(x.mean(dim=2))

    def default_state(self, *batch_shape: int, device=None) -> list:
        return [layer.default_state(*batch_shape, device=device) for layer in self.layers]

    def step(self, u_t: torch.Tensor, states: list) -> tuple[torch.Tensor, list]:
        x, new = self.encoder(u_t), []
        for norm, layer, state in zip(self.norms, self.layers, states, strict=True):
            y, state = layer.step(norm(x), state)
            x = x + y
            new.append(state)
        return x, new


def optimizer_groups(model: nn.Module, lr: float, weight_decay: float) -> list[dict]:
    """One group for each kind of mark: parameters ask for their own rates in `_optim`."""
    groups = defaultdict(list)
    for parameter in model.parameters():
        groups[tuple(sorted(getattr(parameter, "_optim", {}).items()))].append(parameter)
    common = {"lr": lr, "weight_decay": weight_decay}
    return [{**common, **dict(marks), "params": parameters} for marks, parameters in groups.items()]


def batch(size: int, length: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(2, (size,))
    t = torch.arange(length) + 100 * torch.rand(size, 1)
    u = torch.sin(2 * torch.pi * t / torch.where(labels == 0, 30.0, 6.0)[:, None])
    return (u + 0.3 * torch.randn(size, length))[..., None], labels


def main() -> float:
    torch.manual_seed(0)
    model = Backbone(d_model=16, n_layers=2)
    groups = optimizer_groups(model, lr=1e-2, weight_decay=0.05)
    for group in groups:
        print(f"lr {group['lr']}, weight decay {group['weight_decay']}: {len(group['params'])} tensors")
    optimizer = torch.optim.AdamW(groups)
    for _ in range(40):
        u, labels = batch(16)
        loss = nn.functional.cross_entropy(model(u), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        u, labels = batch(200)
        accuracy = (model(u).argmax(dim=1) == labels).float().mean().item()
        _, states = model.step(u[:, 0], model.default_state(200))
    print(f"accuracy {accuracy:.2f}; {len(states)} states after one step")
    return accuracy


if __name__ == "__main__":
    main()
