"""With accelerate: a model of your own that holds our layers, on whatever devices `accelerate launch` gives it.

pip install accelerate; accelerate launch examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fractal_ssm import Block, Fractal, explain_groups, parameter_groups


class Model(nn.Module):
    def __init__(self, d_model: int = 16):
        super().__init__()
        self.encoder = nn.Linear(1, d_model)
        self.blocks = nn.ModuleList(Block(Fractal(d_model, d_state=32), mixer="silu_gate") for _ in range(2))
        self.head = nn.Linear(d_model, 2)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        x = self.encoder(u)
        for block in self.blocks:
            x, _ = block(x, return_state=False)
        return self.head(x.mean(dim=1))


def data(size: int, length: int = 128) -> TensorDataset:
    labels = torch.randint(2, (size,))
    t = torch.arange(length) + 100 * torch.rand(size, 1)
    u = torch.sin(2 * torch.pi * t / torch.where(labels == 0, 30.0, 6.0)[:, None])
    return TensorDataset((u + 0.3 * torch.randn(size, length))[..., None], labels)


def main() -> float:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    groups = parameter_groups(model, lr=1e-2, weight_decay=0.05)
    accelerator.print(explain_groups(groups))
    optimizer = torch.optim.AdamW(groups)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(640), batch_size=16, shuffle=True))
    for u, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(u), labels))
            optimizer.step()
            optimizer.zero_grad()
    u, labels = data(200).tensors
    with torch.no_grad():
        scores = accelerator.unwrap_model(model)(u.to(accelerator.device))
    accuracy = (scores.argmax(dim=1).cpu() == labels).float().mean().item()
    accelerator.print(f"accuracy {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
