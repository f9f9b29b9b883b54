"""16-bit training: which values stay in float32, that every layer still learns, and what is refused on a CPU."""

from __future__ import annotations

import pytest
import torch

from fractal_ssm import UsageError
from fractal_ssm.config import compose
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.training.diagnosis import NotFinite, check_scale
from fractal_ssm.training.resume import load_checkpoint
from fractal_ssm.training.trainer import check_devices


def test_float16_is_refused_on_a_cpu():
    with pytest.raises(UsageError, match="16-mixed .* is for GPUs; .* trainer.precision=bf16-mixed"):
        check_devices(compose(["trainer=cpu", "trainer.precision=16-mixed"]))
    check_devices(compose(["trainer=cpu", "trainer.precision=bf16-mixed"]))


def test_a_scale_that_has_vanished_is_told():
    check_scale(2.0**16, 3)
    with pytest.raises(NotFinite, match="(?s)at step 3, although the loss is scaled by 0.0005.*bf16-mixed"):
        check_scale(2.0**-11, 3)


def losses(layer: str, enabled: bool) -> list[float]:
    torch.manual_seed(0)
    model = SequenceModel(
        layer={"name": layer}, n_classes=2, n_tokens=4, d_model=16, n_layers=1, norm="batch", l_max=32
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randint(4, (16, 32))
    found = []
    for _ in range(15):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = model(inputs)
        loss = torch.nn.functional.cross_entropy(logits.float(), (inputs % 2).float().mean(1).round().long())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_the_loss_falls_in_bfloat16_for_every_layer(built_in_layers):
    for layer in built_in_layers:
        half, single = losses(layer, True), losses(layer, False)
        assert half[-1] < 0.9 * half[0], (layer, half)
        # Results differ from float32, but only by rounding.
        assert half != single and half[-1] == pytest.approx(single[-1], abs=0.1), layer


def test_weights_and_moments_of_a_run_stay_in_float32(toy_config, tmp_path):
    from fractal_ssm.train import run

    facts = run(toy_config("trainer.precision=bf16-mixed", "training.max_epochs=2"), tmp_path)
    checkpoint = load_checkpoint(tmp_path / "checkpoints" / "last.ckpt")
    tensors = [*checkpoint["state_dict"].values()]
    tensors += [value for state in checkpoint["optimizer_states"][0]["state"].values() for value in state.values()]
    assert {value.dtype for value in tensors if value.is_floating_point()} == {torch.float32}
    assert facts["metrics"]["val"]["accuracy"] > facts["metrics"]["val"]["majority"]
