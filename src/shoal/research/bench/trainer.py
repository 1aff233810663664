"""Benchmarks of the trainer, in wall-clock seconds: its overhead per step, and the pause when workers join or leave.

Workers are processes of this machine that communicate over gloo; a step takes about 10 ms and the state is 2 MB.
Figures are medians over all workers that kept training and over many changes. Torch is imported only when a benchmark
runs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.research.trials.elastic_job import TrialJob

_TIMEOUT_SECONDS = 120.0
_CHANGES = 15
_NEVER_STARTED = (90, 91)
_WINDOW_SECONDS = 0.5


@contextmanager
def _two_workers() -> Iterator["TrialJob"]:
    """A job of two workers with practically unlimited work."""
    from shoal.research.trials.elastic_job import TrialTask, trial_job

    task = TrialTask(samples=1600, epochs=1000, most_local=16, seconds_per_pass=0.01, hidden=25_000, fingerprints=False)
    with trial_job(task) as made:
        made.order(made.start(2, founders=True))
        _wait_for(lambda: len(made.lines(0)) > 5)
        yield made


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ShoalError(f"a trainer bench waited {_TIMEOUT_SECONDS:.0f} s in vain; is this machine too busy?")
        time.sleep(0.02)


def _steps(trained: "TrialJob", worker: int) -> list[dict[str, Any]]:
    return [line for line in trained.lines(worker) if "number" in line]


def switches() -> tuple[list[float], list[float]]:
    """Seconds for which two workers pause each time two more join, and each time these leave."""
    with _two_workers() as trained:
        for _ in range(_CHANGES):
            joining = trained.start(2)
            trained.order([0, 1, *joining])
            _wait_for(lambda: _last_world(trained) == 4)
            trained.order([0, 1])
            _wait_for(lambda: _last_world(trained) == 2)
        found = [line["switch"] for worker in (0, 1) for line in _steps(trained, worker) if line["switch"]]
    larger = [switch["seconds"] for switch in found if switch["after"] > switch["before"]]
    smaller = [switch["seconds"] for switch in found if switch["after"] < switch["before"]]
    assert len(larger) == len(smaller) == 2 * _CHANGES
    return larger, smaller


def _last_world(trained: "TrialJob") -> int:
    return min(int(_steps(trained, worker)[-1]["world"]) for worker in (0, 1))


def expand() -> dict[str, float]:
    """Pause when a group of two becomes one of four; the budget is 10 ms."""
    larger, _ = switches()
    return {"seconds": median(larger), "worst": max(larger)}


def shrink() -> dict[str, float]:
    """Pause when a group of four becomes one of two; the budget is 3 ms."""
    _, smaller = switches()
    return {"seconds": median(smaller), "worst": max(smaller)}


def cancel() -> dict[str, float]:
    """Seconds that orders to expand add to each step when they are withdrawn again.

    Twelve times a second two workers that never start are ordered to join, and then removed. Windows with and without
    such orders alternate, so that other load on the machine affects both; windows without them write the same number of
    order files to a folder that is not read.
    """
    from shoal.trainer.elastic.orders import Order, write_order

    windows: list[tuple[bool, float, float]] = []
    with _two_workers() as trained:
        for number in range(24):
            begin, disturbed = time.monotonic(), number % 2 == 1
            while time.monotonic() < begin + _WINDOW_SECONDS:
                for members in ((0, 1, *_NEVER_STARTED), (0, 1)):
                    if disturbed:
                        trained.order(members)
                    else:
                        write_order(trained.folder / "unread", Order(1, members))
                    time.sleep(0.04)
            windows.append((disturbed, begin, time.monotonic()))
        at = [line["at"] for line in _steps(trained, 0)]
    took = {True: list[float](), False: list[float]()}
    for before, after in pairwise(at):
        for disturbed, begin, end in windows:
            if begin <= before and after <= end:
                took[disturbed].append(after - before)
    quiet = median(took[False])
    return {"seconds": max(0.0, median(took[True]) - quiet), "quiet_step": quiet, "disturbed_step": median(took[True])}


def overhead(mode: str) -> dict[str, float]:
    """Seconds a step on four ranks takes beyond a plain one; the budgets are 1 and 3 % of ten milliseconds."""
    from shoal.research.trials.step_overhead import extra_seconds

    found = extra_seconds()
    return {"seconds": max(0.0, found[mode]), "plain_step": found["plain"], "extra": found[mode]}
