"""Forecasting: the distribution of the next value at every position, then the model on its own, one step at a time.

python examples/forecast.py
"""

import torch

from fractal_ssm import SequenceModel
from fractal_ssm.training.tasks import Regression


def signal(length: int) -> torch.Tensor:
    """Two sines in noise, (1, length, 1)."""
    t = torch.arange(length, dtype=torch.float32)
    noise = 0.02 * torch.randn(length, generator=torch.Generator().manual_seed(1))
    return (torch.sin(t / 4) + 0.5 * torch.sin(t / 11 + 1) + noise)[None, :, None]


def main() -> float:
    torch.manual_seed(0)
    # forward: (B, L, d_input) to (B, L, d_target, 2), mean and variance of each value at each position.
    model = SequenceModel(
        {"name": "fractal", "d_state": 32},
        task="regression",
        d_input=1,
        d_target=1,
        per_position=True,
        output="gaussian",
        causal=True,
        d_model=16,
        n_layers=1,
        norm="layer",
    )
    task = Regression(d_target=1, output="gaussian")
    series = signal(320)
    past, future = series[:, :300], series[:, 300:]
    targets = past[:, 1:].clone()
    # A missing value is NaN, which enters neither the loss nor a gradient.
    targets[:, 100:120] = torch.nan
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    for _ in range(800):
        loss, _ = task.score(model(past[:, :-1]), targets)
        optimizer.zero_grad()
        loss.backward()
        # The likelihood is steep where the variance is small.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    model.eval()
    with torch.no_grad():
        features, state = model.features(past)
        prediction = model.outputs(features[:, -1:])
        means, variances = [prediction[..., 0]], [prediction[..., 1]]
        for _ in range(19):  # each mean is the next input
            features, state = model.features(means[-1], state)
            prediction = model.outputs(features)
            means.append(prediction[..., 0])
            variances.append(prediction[..., 1])
    error = (torch.cat(means, dim=1) - future[:, :20]).square().mean().sqrt().item()
    print(
        f"negative log-likelihood of the next value {loss.item():.2f}, standard deviation told for it "
        f"{variances[0].sqrt().item():.3f}; root mean squared error of twenty steps on its own {error:.3f}"
    )
    return error / series.std().item()


if __name__ == "__main__":
    main()
