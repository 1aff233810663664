"""What the library costs a step: the same small training in three ways that take turns, in four ranks of this machine.

A step is drawn out to ten milliseconds, as if a GPU computed. Ways take turns by fifty steps, so that whatever else
the machine does falls on all of them alike.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from shoal.core.errors import ShoalError
from shoal.core.job import BatchLimits
from shoal.trainer.environment import RankEnvironment
from shoal.trainer.session import Session
from shoal.trainer.torch.adaptation import Adaptation
from shoal.trainer.torch.training import Training

WAYS = ("plain", "session", "noise")
"""A plain loop; one under Shoal; one under Shoal that also measures its noise scale and could change its batch."""

STEP_SECONDS = 0.010
_WARM_UP = 2
_PATIENCE_SECONDS = 600.0
_LOCAL = 16
_WIDTH = 256


def extra_seconds(ranks: int = 4, turns: int = 60, steps: int = 50) -> dict[str, float]:
    """How long a plain step is, and by how much it is longer another way: medians over turns, of means over a turn."""
    with tempfile.TemporaryDirectory() as folder:
        context = get_context("spawn")
        workers = [context.Process(target=_work, args=(rank, ranks, turns, steps, folder)) for rank in range(ranks)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(_PATIENCE_SECONDS)
            if any(worker.exitcode for worker in workers):
                codes = [worker.exitcode for worker in workers]
                raise ShoalError(f"ranks ended with {codes} (None: still at it after {_PATIENCE_SECONDS:.0f} s)")
        finally:
            for worker in workers:
                worker.kill()
        took: dict[str, list[float]] = json.loads((Path(folder) / "took").read_text())
    plain = took["plain"]
    extra = {way: median(a - b for a, b in zip(took[way], plain, strict=True)) for way in WAYS[1:]}
    return {"plain": median(plain), **extra}


def _work(rank: int, ranks: int, turns: int, steps: int, folder: str) -> None:
    """One rank: all ways in turns; the first one writes how long their steps took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    ways = {way: _way(way, rank, ranks, steps * (turns + _WARM_UP), Path(folder)) for way in WAYS}
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(turns + _WARM_UP):
        for way in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
            seconds = [next(ways[way]) for _ in range(steps)]
            if turn >= _WARM_UP:
                took[way].append(fmean(seconds))
    if rank == 0:
        (Path(folder) / "took").write_text(json.dumps(took))
    dist.barrier()


def _way(way: str, rank: int, ranks: int, steps: int, folder: Path) -> Iterator[float]:
    """Train in one way, yielding how long each step took."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(_LOCAL * ranks * (steps + 1), _WIDTH))
    loader = DataLoader(data, batch_size=_LOCAL, sampler=DistributedSampler(data, ranks, rank))
    return _timed(_batches(way, model, optimizer, loader, rank, ranks, folder / way), model, optimizer)


def _batches(
    way: str, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, rank: int, ranks: int, folder: Path
) -> Iterator[Any]:
    if way == "plain":
        return iter(loader)
    folder.mkdir(exist_ok=True)
    batch = _LOCAL * ranks
    limits = BatchLimits(batch, batch, 1, _LOCAL)
    place = RankEnvironment(
        way, 1, rank, ranks, folder=folder, progress=folder / "progress", lease=folder / "lease", batch=0
    )
    adapt = Adaptation(limits=limits) if way == "noise" else None
    run = Training(model, optimizer, adapt=adapt, session=Session(place))
    return (batch for _ in run.epochs(1) for batch in run.batches(loader))


def _timed(batches: Iterator[Any], model: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Iterator[float]:
    while True:
        begin = time.perf_counter()
        (inputs,) = next(batches)
        due = time.perf_counter() + STEP_SECONDS
        optimizer.zero_grad()
        torch.autograd.backward(model(inputs).square().mean())
        optimizer.step()
        time.sleep(max(0.0, due - time.perf_counter()))
        yield time.perf_counter() - begin
