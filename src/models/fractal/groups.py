"""The option bank="features": block k reads and feeds only the features h with h mod K = k.

With bank="state", the default, every block reads and feeds all H features. With bank="features" B and C are stored only
for the G = H / K features of a mode's group and are zero elsewhere. The layer is then K layers of width G side by side,
and features of different groups mix only in the mixer that follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...errors import UsageError

BANKS = ("state", "features")


class FeatureGroups(nn.Module):
    """Spreads compact B (P, G) and C (G, P) over all features.

    Args:
        d_model: H, a multiple of K.
        counts: modes of each of the K blocks.
    Attributes:
        size: G = H / K, features of a group.
    Raises:
        UsageError: K does not divide H.
    """

    member: Tensor

    def __init__(self, d_model: int, counts: Sequence[int]):
        super().__init__()
        n_groups = len(counts)
        if d_model % n_groups:
            raise UsageError(
                f"bank='features' needs equal groups of features: n_alphas={n_groups} does not divide "
                f"d_model={d_model}. Use a divisor, or bank='state'."
            )
        self.size = d_model // n_groups
        block = torch.arange(n_groups, device="cpu").repeat_interleave(torch.tensor(counts, device="cpu"))
        member = torch.nn.functional.one_hot(block, n_groups).to(torch.get_default_device())
        # (P, K), 1 where a mode belongs to a group; every build computes it, so it is not saved with the weights.
        self.register_buffer("member", member, persistent=False)

    def spread_B(self, B: Tensor) -> Tensor:
        """(P, G) complex to (P, H): column g of a mode of block k goes to feature g K + k; the other features are 0."""
        return (B[:, :, None] * self.member[:, None, :]).flatten(1)

    def spread_C(self, C: Tensor) -> Tensor:
        """(G, P, 2) to (H, P, 2): row g of a mode of block k goes to feature g K + k; the other features are 0."""
        return (C[:, None] * self.member.t()[None, :, :, None]).flatten(0, 1)
