"""Time that the trainer adds to a step: the same small training in three modes, on four ranks of this machine.

A step is extended to ten milliseconds, as if a GPU computed. The modes alternate every fifty steps, so that other load
on the machine affects all of them.
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

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import ShoalError
from shoal.trainer.environment import RankEnvironment
from shoal.trainer.session import Session
from shoal.trainer.torch.adaptation import Adaptation
from shoal.trainer.torch.training import Training

MODES = ("plain", "session", "noise")
"""A plain loop, one under Shoal, and one under Shoal that also measures its noise scale and may change its batch."""

STEP_SECONDS = 0.010
_WARM_UP = 2
_TIMEOUT_SECONDS = 600.0
_LOCAL = 16
_WIDTH = 256


def extra_seconds(ranks: int = 4, rounds: int = 60, steps: int = 50) -> dict[str, float]:
    """Seconds of a plain step, and seconds added by each other mode: medians over rounds of a round's mean."""
    with tempfile.TemporaryDirectory() as folder:
        context = get_context("spawn")
        workers = [
            context.Process(target=_run_rank, args=(rank, ranks, rounds, steps, folder)) for rank in range(ranks)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(_TIMEOUT_SECONDS)
            if any(worker.exitcode for worker in workers):
                codes = [worker.exitcode for worker in workers]
                raise ShoalError(f"ranks ended with {codes} (None: still running after {_TIMEOUT_SECONDS:.0f} s)")
        finally:
            for worker in workers:
                worker.kill()
        took: dict[str, list[float]] = json.loads((Path(folder) / "took").read_text())
    plain = took["plain"]
    extra = {mode: median(a - b for a, b in zip(took[mode], plain, strict=True)) for mode in MODES[1:]}
    return {"plain": median(plain), **extra}


def _run_rank(rank: int, ranks: int, rounds: int, steps: int, folder: str) -> None:
    """Run one rank: all modes in turn; rank 0 writes the seconds of their steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    modes = {mode: _run_mode(mode, rank, ranks, steps * (rounds + _WARM_UP), Path(folder)) for mode in MODES}
    took: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(rounds + _WARM_UP):
        for mode in MODES[turn % len(MODES) :] + MODES[: turn % len(MODES)]:
            seconds = [next(modes[mode]) for _ in range(steps)]
            if turn >= _WARM_UP:
                took[mode].append(fmean(seconds))
    if rank == 0:
        (Path(folder) / "took").write_text(json.dumps(took))
    dist.barrier()


def _run_mode(mode: str, rank: int, ranks: int, steps: int, folder: Path) -> Iterator[float]:
    """Train in one mode and yield the seconds of each step."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(_LOCAL * ranks * (steps + 1), _WIDTH))
    loader = DataLoader(data, batch_size=_LOCAL, sampler=DistributedSampler(data, ranks, rank))
    return _timed(_batches(mode, model, optimizer, loader, rank, ranks, folder / mode), model, optimizer)


def _batches(
    mode: str, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, rank: int, ranks: int, folder: Path
) -> Iterator[Any]:
    if mode == "plain":
        return iter(loader)
    folder.mkdir(exist_ok=True)
    batch = _LOCAL * ranks
    limits = BatchLimits(batch, batch, 1, _LOCAL)
    environment = RankEnvironment(
        mode, 1, rank, ranks, folder=folder, progress=folder / "progress", lease=folder / "lease", batch=0
    )
    adapt = Adaptation(limits=limits) if mode == "noise" else None
    run = Training(model, optimizer, adapt=adapt, session=Session(environment))
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
