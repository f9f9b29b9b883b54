"""The fused SSM kernels compile for the GPUs we name, spill nothing and stay within their bounds."""

import pytest
import torch
from compiled import costs


def check(rows: list[dict]) -> None:
    assert len(rows) >= 7
    for row in rows:
        assert row["spills"] == 0, row
        assert row["shared"] < 48 * 1024, row
        assert row["registers"] <= (512 if row["target"].startswith("hip") else 255), row


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_blocks_of_the_widest_layers(target):
    check(costs("fused", target))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_all_blocks_the_launcher_can_choose(target):
    check(costs("fused", target, "--all"))


def test_the_rule():
    """Off by default; on, for constant gates in single precision, long sequences and at most 256 features."""
    from fractal_ssm.ops.ssm import triton as triton_backend
    from fractal_ssm.ops.ssm.arguments import Arguments

    def applies(length=4096, features=128, out_features=128, modes=64, dtype=torch.float32, gates=1):
        full = torch.promote_types(dtype, torch.complex64)
        with torch.device("meta"):
            u, a = torch.empty(4, length, features, dtype=dtype), torch.empty(1, gates, modes, dtype=full)
            B_bar, C = torch.empty(modes, features, dtype=full), torch.empty(out_features, modes, dtype=full)
        return triton_backend.applies(Arguments(u, a, B_bar, C))

    assert not triton_backend.FUSED and not applies()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_backend, "FUSED", True)
        assert applies() and applies(256) and applies(features=256) and applies(dtype=torch.bfloat16)
        assert not applies(255) and not applies(features=257) and not applies(out_features=512)
        assert not applies(dtype=torch.float64) and not applies(gates=4096) and not applies(modes=0)
