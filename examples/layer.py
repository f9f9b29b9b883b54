"""A layer alone, in a model of your own: learn whether a noisy sine is fast or slow.

python examples/layer.py
"""

import torch
from torch import nn

from fractal_ssm import Fractal


class Model(nn.Module):
    def __init__(self, d_model: int = 16):
        super().__init__()
        self.encoder = nn.Linear(1, d_model)
        self.layer = Fractal(d_model, d_state=32)  # S5, S4D, S4, DSS and LRU take its place
        self.head = nn.Linear(d_model, 2)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        y, _ = self.layer(self.encoder(u))  # (B, L, H) -> (B, L, H), and the state to go on from
        return self.head(torch.nn.functional.gelu(y).mean(dim=1))


def batch(size: int, length: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Sines of period 20 (class 0) or 12 (class 1) with a random phase under noise: u (B, L, 1), labels (B,)."""
    labels = torch.randint(2, (size,))
    period = torch.where(labels == 0, 20.0, 12.0)[:, None]
    t = torch.arange(length) + period * torch.rand(size, 1)
    return (torch.sin(2 * torch.pi * t / period) + torch.randn(size, length))[..., None], labels


def main() -> float:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        u, labels = batch(32)
        loss = nn.functional.cross_entropy(model(u), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        u, labels = batch(500)
        accuracy = (model(u).argmax(dim=1) == labels).float().mean().item()
    print(f"accuracy on new sines: {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
