"""One model, three ways to run it: the whole sequence, in chunks, one sample at a time.

python examples/streaming.py
"""

import torch

from fractal_ssm import Fractal


def main() -> float:
    torch.manual_seed(0)
    layer = Fractal(8, d_state=32).eval()
    u = torch.randn(2, 1000, 8)
    with torch.no_grad():
        whole, _ = layer(u)

        chunks, state = [], layer.initial_state(batch_size=2)
        for chunk in u.split(300, dim=1):
            y, state = layer(chunk, state)
            chunks.append(y)

        samples, state = [], layer.initial_state(batch_size=2)
        for u_t in u.unbind(dim=1):
            y_t, state = layer.step(u_t, state)
            samples.append(y_t)

    largest = whole.abs().max()
    by_chunks = ((torch.cat(chunks, dim=1) - whole).abs().max() / largest).item()
    by_samples = ((torch.stack(samples, dim=1) - whole).abs().max() / largest).item()
    print(f"largest difference, relative: chunks {by_chunks:.1e}, single samples {by_samples:.1e}")
    return max(by_chunks, by_samples)


if __name__ == "__main__":
    main()
