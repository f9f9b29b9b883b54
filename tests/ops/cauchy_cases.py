"""Random DPLR systems in double precision."""

import torch


def draw(rank=1, directions=1, H=2, P=3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.complex128, generator=generator)

    Lambda = torch.complex(-0.1 - torch.rand(H, P, generator=generator).double(), 5 * normal(H, P).real)
    low_rank = normal(rank, H, P)
    dt = 0.05 + 0.3 * torch.rand(H, generator=generator).double()
    values = (Lambda, low_rank, low_rank + 0.1 * normal(rank, H, P), normal(H, P), normal(directions, H, P), dt)
    return [value.requires_grad_() for value in values]
