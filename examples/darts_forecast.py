"""In the forecasting library darts: our block in place of its recurrent network, the rest of the library as it is.

pip install 'darts>=0.48'; python examples/darts_forecast.py
"""

import logging

import numpy as np
import torch
from darts import TimeSeries
from darts.models import BlockRNNModel
from darts.models.forecasting.block_rnn_model import CustomBlockRNNModule
from darts.utils.data.torch_datasets.utils import PLModuleInput, PLModuleOutput
from torch import nn

from fractal_ssm import Block, Fractal, parameter_groups


class FractalModule(CustomBlockRNNModule):
    """(B, input_chunk_length, series) to (B, output_chunk_length, series, parameters of the likelihood)."""

    def __init__(self, **options):
        super().__init__(**options)
        self.encoder = nn.Linear(self.input_size, self.hidden_dim)
        self.block = Block(Fractal(self.hidden_dim, d_state=32), mixer="silu_gate")
        self.head = nn.Linear(self.hidden_dim, self.output_chunk_length * self.target_size * self.nr_params)

    def forward(self, x_in: PLModuleInput) -> PLModuleOutput:
        x, _ = self.block(self.encoder(x_in.past_target), return_state=False)
        shape = (-1, self.output_chunk_length, self.target_size, self.nr_params)
        return PLModuleOutput(prediction=self.head(x[:, -1]).view(shape))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameter_groups(self, lr=1e-2, weight_decay=0.01))


def main() -> float:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    t = np.arange(600)
    series = TimeSeries.from_values((np.sin(t / 4) + 0.5 * np.sin(t / 11 + 1)).astype(np.float32))
    model = BlockRNNModel(
        model=FractalModule,
        input_chunk_length=60,
        output_chunk_length=20,
        hidden_dim=16,
        n_epochs=4,
        batch_size=32,
        random_state=0,
        pl_trainer_kwargs={
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        },
    )
    past, future = series.split_before(500)
    model.fit(past, verbose=False)
    error = float(np.sqrt(np.mean((model.predict(20, verbose=False).values() - future[:20].values()) ** 2)))
    print(f"twenty values ahead: error {error:.3f}, the series' deviation {series.values().std():.3f}")
    return error / float(series.values().std())


if __name__ == "__main__":
    main()
