"""Forecasting: predict the next value at every position, then let the model run on its own, one step at a time.

python examples/forecast.py
"""

import torch
from torch import nn

from fractal_ssm import Fractal


class Forecaster(nn.Module):
    """u (B, L, 1) to the next value at every position (B, L, 1)."""

    def __init__(self, d_model: int = 16):
        super().__init__()
        self.encoder = nn.Linear(1, d_model)
        self.layer = Fractal(d_model, d_state=32)
        self.head = nn.Linear(d_model, 1)

    def forward(self, u: torch.Tensor, state=None) -> tuple[torch.Tensor, object]:
        y, state = self.layer(self.encoder(u), state)
        return self.head(y), state

    def step(self, u_t: torch.Tensor, state) -> tuple[torch.Tensor, object]:
        y_t, state = self.layer.step(self.encoder(u_t), state)
        return self.head(y_t), state


def signal(length: int) -> torch.Tensor:
    t = torch.arange(length, dtype=torch.float32)
    return (torch.sin(t / 4) + 0.5 * torch.sin(t / 11 + 1))[None, :, None]


def main() -> float:
    torch.manual_seed(0)
    series, model = signal(500), Forecaster()
    past, future = series[:, :400], series[:, 400:]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        predicted, _ = model(past[:, :-1])
        loss = (predicted - past[:, 1:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        predicted, state = model(past)
        values = [predicted[:, -1]]
        for _ in range(19):  # each prediction is the next input
            value, state = model.step(values[-1], state)
            values.append(value)
    error = (torch.stack(values, dim=1) - future[:, :20]).square().mean().sqrt().item()
    print(f"one step ahead {loss.item() ** 0.5:.3f}, twenty steps on its own {error:.3f}")
    return error / series.std().item()


if __name__ == "__main__":
    main()
