"""Benches of the trainer: what it costs a step, and what a change of workers costs those that train on, by the clock.

Workers are processes of this machine that meet over gloo; a step takes about 10 ms and the state is 2 MB. Medians over
every worker that trained on and over many changes. Torch is needed, and imported only when a bench is run.
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

_PATIENCE_SECONDS = 120.0
_CHANGES = 15
_NEVER_STARTED = (90, 91)
_WINDOW_SECONDS = 0.5


@contextmanager
def _pair() -> Iterator["TrialJob"]:
    """Two workers that train on and on."""
    from shoal.research.trials.elastic_job import TrialTask, job

    task = TrialTask(samples=1600, epochs=1000, most_local=16, seconds_per_pass=0.01, hidden=25_000, fingerprints=False)
    with job(task) as made:
        made.order(made.start(2, founders=True))
        _until(lambda: len(made.lines(0)) > 5)
        yield made


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ShoalError(f"a trainer bench waited {_PATIENCE_SECONDS:.0f} s in vain; is this machine too busy?")
        time.sleep(0.02)


def _steps(trained: "TrialJob", worker: int) -> list[dict[str, Any]]:
    return [line for line in trained.lines(worker) if "number" in line]


def switches() -> tuple[list[float], list[float]]:
    """Seconds that two workers pause each time two more join them, and each time these leave again."""
    with _pair() as trained:
        for _ in range(_CHANGES):
            joining = trained.start(2)
            trained.order([0, 1, *joining])
            _until(lambda: _last_world(trained) == 4)
            trained.order([0, 1])
            _until(lambda: _last_world(trained) == 2)
        told = [line["switch"] for worker in (0, 1) for line in _steps(trained, worker) if line["switch"]]
    larger = [switch["seconds"] for switch in told if switch["after"] > switch["before"]]
    smaller = [switch["seconds"] for switch in told if switch["after"] < switch["before"]]
    assert len(larger) == len(smaller) == 2 * _CHANGES
    return larger, smaller


def _last_world(trained: "TrialJob") -> int:
    return min(int(_steps(trained, worker)[-1]["world"]) for worker in (0, 1))


def expand() -> dict[str, float]:
    """The pause when a group of two becomes one of four; the budget is 10 ms."""
    larger, _ = switches()
    return {"seconds": median(larger), "worst": max(larger)}


def shrink() -> dict[str, float]:
    """The pause when a group of four becomes one of two; the budget is 3 ms."""
    _, smaller = switches()
    return {"seconds": median(smaller), "worst": max(smaller)}


def cancel() -> dict[str, float]:
    """What orders to expand that are called off again cost each step, beside the length of an undisturbed one.

    Twelve times a second two workers are to join that never come, and again are not. Windows with such orders and
    without take turns, so that whatever else the machine does falls on both alike; without them, as many files are
    written where nobody reads them.
    """
    from shoal.trainer.elastic.orders import Order, write_order

    windows: list[tuple[bool, float, float]] = []
    with _pair() as trained:
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


def longer(way: str) -> dict[str, float]:
    """By how much a step on four ranks is longer than a plain one; the budgets are 1 and 3 % of ten milliseconds."""
    from shoal.research.trials.step_overhead import extra_seconds

    found = extra_seconds()
    return {"seconds": max(0.0, found[way]), "plain_step": found["plain"], "extra": found[way]}
