"""Samples at uneven times: `dt_scale` of shape (B, L) stretches the step of each position.

A slow signal is read on an even grid of 400 samples, and again at 200 of these times chosen at random, each with the
time since the one before as its step. The outputs at the last time agree better than if the gaps were ignored.

    python examples/irregular_sampling.py
"""

import torch

from fractal_ssm import S5


def main() -> tuple[float, float]:
    torch.manual_seed(0)
    layer = S5(4, d_state=32, dt_min=0.001, dt_max=0.01).eval()
    t = torch.arange(400.0)
    u = torch.stack([torch.sin(t / 60 + phase) for phase in range(4)], dim=1)[None]

    kept = torch.cat([torch.randperm(399)[:199].sort().values, torch.tensor([399])])
    gaps = torch.diff(t[kept], prepend=torch.tensor([-1.0]))[None]
    with torch.no_grad():
        even, _ = layer(u)
        uneven, _ = layer(u[:, kept], dt_scale=gaps)
        ignored, _ = layer(u[:, kept])
    last = even[:, -1]
    error = ((uneven[:, -1] - last).norm() / last.norm()).item()
    without = ((ignored[:, -1] - last).norm() / last.norm()).item()
    print(f"error at the last time: {error:.3f} with the gaps, {without:.3f} without")
    return error, without


if __name__ == "__main__":
    main()
