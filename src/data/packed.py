"""Token sequences of different lengths in the memory-mapped arrays `<name>.npy`, `<name>_offsets.npy`, `labels.npy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .mapped import MappedDataset


class PackedWriter:
    """Append sequences to `<name>.npy` without holding them in memory; a context manager.

    Args:
        folder: where to write.
        name: of the array.
        dtype: of the ids.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype | str):
        self._path, self._offsets_path = folder / f"{name}.npy", folder / f"{name}_offsets.npy"
        self._dtype = np.dtype(dtype)
        self._lengths: list[int] = []

    def __enter__(self) -> PackedWriter:
        self._file = open(self._path, "wb")
        self._header(0)
        return self

    def append(self, ids: np.ndarray) -> None:
        """Add one sequence (L,)."""
        self._file.write(np.ascontiguousarray(ids, dtype=self._dtype).tobytes())
        self._lengths.append(len(ids))

    def __exit__(self, *exception) -> None:
        self._file.seek(0)
        self._header(sum(self._lengths))
        self._file.close()
        offsets = np.zeros(len(self._lengths) + 1, dtype=np.int64)
        np.cumsum(self._lengths, out=offsets[1:])
        np.save(self._offsets_path, offsets)

    def _header(self, length: int) -> None:
        # numpy leaves room in the header for a shape of any size, so the second header is as long as the first.
        description = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": description, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


class PackedSequences(MappedDataset):
    """Samples (ids, label) of a cache written with `PackedWriter` and `labels.npy`.

    Args:
        folder: of the cache.
        indices: of the samples, in order.
        names: of the packed arrays; with several, a sample is (tuple of ids, label).
    """

    def __init__(self, folder: Path, indices: Sequence[int] | np.ndarray, names: tuple[str, ...] = ("tokens",)):
        self.names = names
        super().__init__(folder, indices)

    def _open(self) -> None:
        super()._open()
        self._arrays = [(self._array(name), np.array(self._array(f"{name}_offsets"))) for name in self.names]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) length of every sample (of the longer sequence of a pair), from the offsets without reading samples."""
        return np.max([np.diff(offsets)[self.indices] for _, offsets in self._arrays], axis=0)

    def __getitem__(self, index: int):
        sample = self.indices[index]
        # Copy from the memory map: torch warns about read-only arrays.
        ids = tuple(np.array(array[offsets[sample] : offsets[sample + 1]]) for array, offsets in self._arrays)
        return (ids if len(ids) > 1 else ids[0]), int(self._labels[sample])
