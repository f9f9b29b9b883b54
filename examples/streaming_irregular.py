"""A stream of samples with irregular time stamps, answered after every one; stored and taken up again on the way.

The time since the sample before, in steps of training's rate, is the `dt_scale` of a step: one number a sample of the
batch. All together they are the `dt_scale` (B, L) of `forward`, which gives the same answers.

    python examples/streaming_irregular.py
"""

import torch

from fractal_ssm import SequenceModel
from fractal_ssm.state import from_real, to_real


def main() -> float:
    torch.manual_seed(0)
    model = SequenceModel({"name": "fractal", "d_state": 32}, n_classes=3, d_input=2, d_model=16, n_layers=2).eval()
    # Two sensors, each with time stamps of its own.
    stamps = torch.rand(2, 120).mul(4).cumsum(dim=1)
    gaps = torch.diff(stamps, prepend=torch.zeros(2, 1), dim=1)
    values = torch.randn(2, 120, 2)

    answers = []
    with torch.no_grad():
        state = model.initial_state(batch_size=2)
        for position in range(120):
            answer, state = model.step(values[:, position], state, dt_scale=gaps[:, position])
            answers.append(answer)
            if position == 60:
                # Plain real tensors, as they would go to a file or a data base.
                stored = to_real(state)
                state = from_real(stored, like=model.initial_state(1))

        # The whole prefix at once, at a few positions.
        difference = 0.0
        for length in (1, 2, 61, 120):
            whole = model(values[:, :length], dt_scale=gaps[:, :length])
            difference = max(difference, (answers[length - 1] - whole).abs().max().item())
    print(f"largest difference between the stream and forward on the prefix: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
