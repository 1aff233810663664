"""A user's data loader, changed to serve any part of an epoch to any number of ranks.

Data set, collation and loader workers are the user's. The order of samples and their division among ranks come from
``samples``, so that an epoch uses each sample once, however often the job is moved, resized or changes its batch size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, tee
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from shoal.core.errors import InputError
from shoal.trainer.samples import Cursor, Epochs, Pass

_AHEAD = 64
"""Number of steps planned at once."""


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Division of steps: batch size over all ranks, this rank, the number of ranks, and the most samples of a pass."""

    batch: int
    rank: int
    world: int
    most_local: int


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of this rank: its passes, the samples used by all ranks, and the position after it."""

    passes: Sequence[Pass]
    samples: int
    after: Cursor


@dataclass(frozen=True, slots=True)
class DataFeed:
    """A data loader with the sample order its sampler stands for; ``short`` says whether a short last step is used."""

    loader: Any
    epochs: Epochs
    short: bool

    def begin(self, at: Cursor, cut: StepSplit) -> tuple[Iterator[RankStep], Iterator[Any]]:
        """Iterators over the steps from ``at`` to the end of the epoch and over the data of their passes."""
        planned = self._steps(at, cut)
        # Planning several steps at once keeps the planning code and data in the CPU caches.
        ahead = chain.from_iterable(iter(lambda: list(islice(planned, _AHEAD)), []))
        steps, loaded = tee(ahead)
        return steps, self._data(at.epoch, loaded)

    def _steps(self, at: Cursor, cut: StepSplit) -> Iterator[RankStep]:
        epoch = at.epoch
        while at.epoch == epoch:
            samples = min(cut.batch, self.epochs.size - at.position)
            if samples < cut.batch and not self.short:
                return
            passes = self.epochs.passes(at, cut.batch, cut.rank, cut.world, cut.most_local)
            at = self.epochs.after(at, samples)
            yield RankStep(passes, samples, at)

    def _data(self, epoch: int, steps: Iterator[RankStep]) -> Iterator[Any]:
        loader = self.loader
        # A generator of its own, so that resuming within an epoch draws nothing from the script's random numbers.
        chance = torch.Generator().manual_seed(epoch)
        busy = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
        return iter(
            DataLoader(
                loader.dataset,
                batch_sampler=_PassIndices(steps),
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=chance,
                **busy,
            )
        )


@dataclass(frozen=True, slots=True)
class _PassIndices:
    """Batch sampler that yields the indices of each pass."""

    steps: Iterator[RankStep]

    def __iter__(self) -> Iterator[list[int]]:
        return (part.indices.tolist() for step in self.steps for part in step.passes)


def make_feed(loader: Any) -> DataFeed:
    """The feed of a loader; raises ``InputError`` for a loader whose order cannot be reproduced after a restart."""
    if not isinstance(loader, DataLoader):
        hint = "give batches() the torch.utils.data.DataLoader itself: it is cut for this rank there"
        raise InputError("loader", type(loader).__name__, hint)
    if isinstance(loader.dataset, IterableDataset):
        hint = "its samples cannot be counted, so it cannot be resumed in the middle; use a map-style data set"
        raise InputError("loader.dataset", type(loader.dataset).__name__, hint)
    if loader.batch_size is None:
        raise InputError("loader.batch_sampler", loader.batch_sampler, "give the loader a batch_size instead")
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        seed = sampler.seed if sampler.shuffle else None
    elif isinstance(sampler, RandomSampler) and not sampler.replacement:
        seed = 0
    elif isinstance(sampler, SequentialSampler):
        seed = None
    else:
        hint = "its order cannot be kept over restarts; use shuffle=, or a DistributedSampler"
        raise InputError("loader.sampler", type(sampler).__name__, hint)
    return DataFeed(loader, Epochs(len(loader.dataset), seed), short=not loader.drop_last)
