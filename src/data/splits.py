"""Assign samples to splits by named conventions, and fingerprint the result.

s4_seed42: one `torch.randperm` with a private generator seeded with 42, cut into consecutive chunks, as the S4 and S5
    repositories split.
lra_sequential: consecutive chunks in the order of the files, as the benchmark's own pipelines split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..errors import UsageError, unknown

CONVENTIONS = ("lra_sequential", "s4_seed42")


def chunks(n: int, sizes: Sequence[int], convention: str) -> list[np.ndarray]:
    """Indices 0..n-1 cut into consecutive chunks of the given sizes, int64, in the order of the convention.

    Args:
        n: number of samples.
        sizes: sizes of the chunks; they add up to n.
        convention: "s4_seed42" or "lra_sequential".
    Raises:
        UsageError: an unknown convention, or sizes that do not add up.
    >>> [part.tolist() for part in chunks(5, (3, 2), "lra_sequential")]
    [[0, 1, 2], [3, 4]]
    """
    check_convention(convention)
    if sum(sizes) != n or min(sizes) < 0:
        raise UsageError(f"Split sizes {list(sizes)} do not add up to the {n} samples.")
    order = permutation(n) if convention == "s4_seed42" else np.arange(n)
    return np.split(order, np.cumsum(sizes)[:-1])


def check_convention(convention: str) -> None:
    """Refuse a name that is not among CONVENTIONS."""
    if convention not in CONVENTIONS:
        raise unknown("split", convention, CONVENTIONS)


def consecutive(counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Splits that lie one after the other: name -> indices.

    >>> consecutive({"train": 2, "test": 1})["test"].tolist()
    [2]
    """
    ends = np.cumsum(list(counts.values()))
    return dict(zip(counts, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))


def tenth_held_out(n_train: int, n: int, convention: str) -> dict[str, np.ndarray]:
    """Split -> indices, where the first `n_train` of `n` samples are the training part and the others are for test.

    In the convention's order, the first int(0.9 n_train) of the training part are for training and the others for
    validation, as in the S4 and S5 repositories.
    """
    kept = int(n_train * 0.9)
    train, val = chunks(n_train, (kept, n_train - kept), convention)
    return {"train": train, "val": val, "test": np.arange(n_train, n)}


def permutation(n: int, seed: int = 42) -> np.ndarray:
    """(n,) int64: the permutation that `torch.utils.data.random_split` draws with a generator seeded with `seed`."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


def stratified_holdout(labels: np.ndarray, share: float, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices (kept, held out); `share` of every class, rounded to whole samples, is held out at random.

    Args:
        labels: (n,) class of every sample.
        share: part held out, in (0, 1).
        seed: of the permutation that chooses the samples.
    """
    if not 0.0 < share < 1.0:
        raise UsageError(f"The held-out share must lie between 0 and 1, got {share}.")
    order = permutation(len(labels), seed)
    held = []
    for value in np.unique(labels):
        members = order[labels[order] == value]
        held.append(members[: round(share * len(members))])
    held_out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def fingerprint(*parts: np.ndarray) -> str:
    """16 hexadecimal digits that identify the members of the splits and their order.

    >>> fingerprint(np.arange(3)) == fingerprint(np.array([0, 2, 1]))
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]
