"""With lightning: a LightningModule around a named model, with the optimizer's groups that its layers need.

python examples/lightning_module.py
"""

import logging
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from fractal_ssm import SequenceModel, create_model, parameter_groups


class Classifier(LightningModule):
    def __init__(self, model: SequenceModel, lr: float = 1e-2):
        super().__init__()
        self.model, self.lr = model, lr

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        u, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(u), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameter_groups(self, lr=self.lr, weight_decay=0.05))


def data(size: int, length: int = 128) -> TensorDataset:
    labels = torch.randint(2, (size,))
    t = torch.arange(length) + 100 * torch.rand(size, 1)
    u = torch.sin(2 * torch.pi * t / torch.where(labels == 0, 20.0, 12.0)[:, None])
    return TensorDataset((u + 0.5 * torch.randn(size, length))[..., None], labels)


def main() -> float:
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    model = create_model("s4d", n_classes=2, d_input=1, d_model=16, n_layers=2, layer={"d_state": 16})
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(
        Classifier(model), DataLoader(data(960), batch_size=16, shuffle=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = SequenceModel.from_pretrained(folder)
    u, labels = data(200).tensors
    with torch.no_grad():
        accuracy = (model(u).argmax(dim=1) == labels).float().mean().item()
    print(f"accuracy {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main()
