"""Data loaders whose order depends only on the seed and the epoch, for any number of workers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset, Sampler

from ..config import TrainingConfig
from ..data.base import SPLITS, Batch, SequenceData, missing_like
from ..data.contract import check_batch, check_split
from ..errors import UsageError
from .seeding import derived_seed
from .signals import ended_by_parent

# Samples are sorted by length within pools of this many batches, so that a batch has similar lengths and stays random.
_POOL = 50


class TrainBatches(Sampler[list[int]]):
    """Batches of one epoch for one of `world` processes: shuffled, of full size, each sample at most once.

    Args:
        n: number of samples.
        batch_size: samples per batch.
        seed: of the order; epoch e of a seed is always the same.
        lengths: of the samples; if given, a batch holds samples of similar length.
        rank, world: index of this process and number of processes; batches are dealt out in turn, equally many to each.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int,
        lengths: np.ndarray | None = None,
        rank: int = 0,
        world: int = 1,
    ):
        self._n, self._batch_size, self._seed, self._lengths = n, batch_size, seed, lengths
        self._rank, self._world = rank, world
        self._epoch, self._first = 0, 0
        # Lightning calls `set_epoch` of `batch_sampler.sampler`.
        self.sampler = self
        if len(self) == 0:
            raise UsageError(
                f"The training split has {n} samples, too few for one batch of {batch_size} on each of {world} "
                f"process(es). Lower training.batch_size."
            )

    def start_at(self, epoch: int, batch: int) -> None:
        """Start inside an epoch: skip its first `batch` batches, in this epoch only."""
        self._epoch, self._first = epoch, batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order `iter` follows."""
        if epoch != self._epoch:
            self._epoch, self._first = epoch, 0

    def __len__(self) -> int:
        return self._n // self._batch_size // self._world

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng(derived_seed(self._seed, "order", self._epoch))
        order = random.permutation(self._n)
        if self._lengths is not None:
            pool = _POOL * self._batch_size
            parts = [order[start : start + pool] for start in range(0, self._n, pool)]
            order = np.concatenate([part[np.argsort(self._lengths[part], kind="stable")] for part in parts])
        n_batches = len(self) * self._world
        batches = order[: n_batches * self._batch_size].reshape(n_batches, self._batch_size)
        if self._lengths is not None:
            batches = batches[random.permutation(n_batches)]
        for batch in batches[self._rank :: self._world][self._first :]:
            yield batch.tolist()


class EvalBatches(Sampler[list[int]]):
    """Batches that hold every sample exactly once over all processes, in a fixed order.

    All processes must run equally many batches, so a process with one sample less gets the index n, which `EvalSamples`
    turns into a sample that is not scored.
    """

    def __init__(self, n: int, batch_size: int, lengths: np.ndarray | None = None, rank: int = 0, world: int = 1):
        order = np.arange(n) if lengths is None else np.argsort(lengths, kind="stable")
        own = order[rank::world].tolist()
        if len(own) < -(-n // world):
            own.append(n)
        self._batches = [own[start : start + batch_size] for start in range(0, len(own), batch_size)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


class EvalSamples(Dataset):
    """The samples of a split, and at index n a filler: the first sample with a target that is not scored.

    Args:
        samples: of the split.
        indices: of the samples to use, n in all.
        task: of the dataset, which determines the value of a missing target.
    """

    def __init__(self, samples: Dataset, indices: Sequence[int], task: str = "classification"):
        self._samples, self._indices, self._task = samples, indices, task

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index < len(self._indices):
            return self._samples[self._indices[index]]
        inputs, target = self._samples[self._indices[0]]
        return inputs, missing_like(target, self._task)


class _Collate:
    """The dataset's `collate`, which returns a UsageError: raised in a worker, it would come with two tracebacks."""

    def __init__(self, data: SequenceData):
        self._data = data

    def __call__(self, items: Any) -> Batch | UsageError:
        try:
            return self._data.collate(items)
        except UsageError as error:
            return error


def sample_lengths(samples: Dataset) -> np.ndarray:
    """Length of each sample, or of the longer document of a pair.

    Lengths come from the attribute `lengths` if the dataset has it (`PackedSequences`), else from reading all samples.
    """
    known = getattr(samples, "lengths", None)
    if known is not None:
        return np.asarray(known)
    inputs = (samples[index][0] for index in range(len(samples)))
    return np.array([max(map(len, x)) if isinstance(x, tuple) else len(x) for x in inputs])


class _Loader(DataLoader):
    """A DataLoader whose workers can be ended explicitly.

    After an error, whose traceback makes a reference cycle, the garbage collector may close the pipes to the workers
    before the iterator sends the workers its request to end. The request would then go through descriptors that belong
    to another file by that time.
    """

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        self._latest = weakref.ref(iterator)
        return iterator

    def shut_down(self) -> None:
        """End the workers of the latest iterator, which then yields nothing any more."""
        iterator = self._latest() if hasattr(self, "_latest") else None
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class Loaders(LightningDataModule):
    """Loaders of a dataset (see data/base.py) for the trainer it is attached to.

    `test_dataloader` returns three loaders, in the order of `SPLITS`, all scored with the selected checkpoint: a fixed
    draw of training samples, the validation split and the test split.
    """

    def __init__(self, data: SequenceData, config: TrainingConfig, seed: int):
        super().__init__()
        self._data, self._config, self._seed = data, config, seed
        self._splits: dict[str, Dataset] = {}
        self._lengths: dict[str, np.ndarray] = {}
        self._made: list[_Loader] = []

    def shut_down(self) -> None:
        """End the workers of all loaders; call after each fit and test, even if it failed."""
        for loader in self._made:
            loader.shut_down()
        self._made.clear()

    def setup(self, stage: str) -> None:
        """Check every split before the first step: the first batch of the test split may come only after days."""
        if stage == "fit":
            for split in SPLITS:
                self._split(split)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Refuse a batch that violates the dataset's interface, while the batch is on the host."""
        split = "train" if self.trainer.training else "val" if self.trainer.validating else SPLITS[dataloader_idx]
        check_batch(batch, self._data, split, self._split(split))
        return batch

    def batches_per_epoch(self, world: int = 1) -> int:
        """Number of training batches per epoch for each of `world` processes, within the configured limit."""
        full = len(TrainBatches(len(self._split("train")), self._config.batch_size, self._seed, world=world))
        return min(full, self._config.limit_train_batches or full)

    def train_dataloader(self) -> DataLoader:
        batches = TrainBatches(
            len(self._split("train")),
            self._config.batch_size,
            self._seed,
            self._split_lengths("train"),
            self.trainer.global_rank,
            self.trainer.world_size,
        )
        # A loader with workers draws its first batches at once, before lightning has set the epoch.
        batches.start_at(self.trainer.current_epoch, self.trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        return self._loader(self._split("train"), batches)

    def val_dataloader(self) -> DataLoader:
        return self._eval_loader("val", range(len(self._split("val"))))

    def test_dataloader(self) -> list[DataLoader]:
        n_train = len(self._split("train"))
        draw = np.random.default_rng(derived_seed(self._seed, "train-eval")).permutation(n_train)
        indices = {split: range(len(self._split(split))) for split in SPLITS}
        indices["train"] = np.sort(draw[: self._config.train_eval_samples])
        return [self._eval_loader(split, indices[split]) for split in SPLITS]

    def _eval_loader(self, split: str, indices: Sequence[int]) -> DataLoader:
        lengths = self._split_lengths(split)
        batches = EvalBatches(
            len(indices),
            self._config.eval_batch_size or self._config.batch_size,
            None if lengths is None else lengths[np.asarray(indices)],
            self.trainer.global_rank,
            self.trainer.world_size,
        )
        return self._loader(EvalSamples(self._split(split), indices, self._data.task), batches)

    def _loader(self, samples: Dataset, batches: Sampler[list[int]]) -> DataLoader:
        loader = _Loader(
            samples,
            batch_sampler=batches,
            collate_fn=_Collate(self._data),
            num_workers=self._config.num_workers,
            worker_init_fn=ended_by_parent,
            pin_memory=self.trainer.strategy.root_device.type == "cuda",
            # Its own generator, so that making a loader does not advance torch's global generator.
            generator=torch.Generator().manual_seed(derived_seed(self._seed, "workers")),
        )
        self._made.append(loader)
        return loader

    def _split(self, name: str) -> Dataset:
        if name not in self._splits:
            samples = self._data.split(name)
            check_split(samples, self._data, name)
            self._splits[name] = samples
        return self._splits[name]

    def _split_lengths(self, name: str) -> np.ndarray | None:
        if not self._config.bucket_by_length:
            return None
        if name not in self._lengths:
            self._lengths[name] = sample_lengths(self._split(name))
        return self._lengths[name]
