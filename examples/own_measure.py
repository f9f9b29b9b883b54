"""A measure of your own, by name in every layer that takes one.

python examples/own_measure.py
"""

import torch

from fractal_ssm import Fractal, hippo, register_measure


@register_measure("damped-legs")
def damped_legs(N: int, damping: float = 1.0) -> hippo.Operator:
    """HiPPO-LegS whose memory is shortened: every real part is raised by `damping`."""
    base = hippo.operator("legs", N)
    A = base.A.copy()
    A.flat[:: N + 1] += damping
    return hippo.Operator(name="damped-legs", A=A, B=base.B, options={"damping": damping})


def main() -> list[float]:
    slowest = []
    for damping in (0.0, 1.0, 4.0):
        measure = hippo.operator("damped-legs", 8, damping=damping)
        Lambda = hippo.diagonalize(measure).Lambda
        slowest.append(float(-Lambda.real.max()))
        print(f"damping {damping:g}: {len(Lambda)} modes, slowest real part {-slowest[-1]:.2f}")
    layer = Fractal(4, d_state=16, n_alphas=2, measure={"name": "damped-legs", "damping": 4.0})
    y, _ = layer(torch.randn(1, 50, 4))
    print(f"a layer on it: {tuple(y.shape)}")
    return slowest


if __name__ == "__main__":
    main()
