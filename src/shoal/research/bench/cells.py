"""A million GPUs under one ring and under several side by side, each with a cell of the cluster.

Jobs are routed to cells as they arrive, by the GPUs that each cell's live jobs ask for, which the router reads once a
minute. The loss against one ring is the time that jobs wait in a full cell while another has free GPUs.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from time import process_time

import numpy as np

from shoal.core.topology import parse_cluster
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.schema import Job, Workload

_NODES, _GPUS = 125_000, 8
_GANGS = (8, 16, 32, 64, 128, 256, 512, 1024)
_READ_SECONDS = 60.0
"""Seconds between two readings of the cells' loads by the router."""

_LOAD = 1.05
"""GPUs asked for on average, over those there are: some jobs always wait."""


def million_gpus(cells: int, jobs: int = 12_000, policy: str = "fifo") -> dict[str, float]:
    """Simulate ``jobs`` jobs on a million GPUs under ``cells`` rings; times are in simulated seconds.

    ``seconds`` are the CPU seconds of the busiest ring.
    """
    work = _workload(jobs)
    routes = _routed(work, cells)
    took, jct, waited = [], [], []
    for cell in range(cells):
        mine = [job for job, route in zip(work, routes, strict=True) if route == cell]
        begin = process_time()
        scenario = Scenario(parse_cluster(f"gpu:{_NODES // cells}x{_GPUS}"), policy, restart_cost="0")
        results = run(scenario, Workload(f"cell {cell}", tuple(mine))).jobs
        took.append(process_time() - begin)
        jct.append(results.jct)
        waited.append(results.queueing)
    times, waits = np.concatenate(jct), np.concatenate(waited)
    return {
        "seconds": max(took),
        "cpu_s_all": sum(took),
        "avg_jct": float(times.mean()),
        "p99_jct": float(np.quantile(times, 0.99)),
        "avg_wait": float(waits.mean()),
        "p99_wait": float(np.quantile(waits, 0.99)),
    }


def _workload(jobs: int) -> list[Job]:
    """Return jobs with Poisson arrivals that ask for ``_LOAD`` of the cluster; lognormal run times, median 4 h."""
    rng = np.random.default_rng(21)
    gangs = rng.choice(_GANGS, jobs, p=np.array([8, 7, 6, 5, 4, 3, 2, 1]) / 36)
    hours = rng.lognormal(np.log(4.0), 1.0, jobs)
    every = float((gangs * hours).mean()) * 3600 / (_NODES * _GPUS * _LOAD)
    arrivals = np.cumsum(rng.exponential(every, jobs))
    return [
        Job(id=f"j{i}", submitted=float(arrivals[i]), gpus=int(gangs[i]), work=float(3600 * hours[i]))
        for i in range(jobs)
    ]


@dataclass(slots=True)
class _CellLoad:
    """The load of a cell as its router sees it: the GPUs its live jobs ask for. A cell serves jobs as they come."""

    free: int
    asked: int = 0
    seen: int = 0
    """GPUs asked for at the router's last reading."""
    _waiting: deque[tuple[int, float]] = field(default_factory=deque)
    _ends: list[tuple[float, int]] = field(default_factory=list)

    def submit(self, gpus: int, seconds: float) -> None:
        self.asked += gpus
        self.seen += gpus
        self._waiting.append((gpus, seconds))

    def advance(self, now: float) -> None:
        """Let jobs start and end until ``now``."""
        at = now
        while True:
            while self._waiting and self._waiting[0][0] <= self.free:
                gpus, seconds = self._waiting.popleft()
                self.free -= gpus
                heappush(self._ends, (at + seconds, gpus))
            if not self._ends or self._ends[0][0] > now:
                return
            at, gpus = heappop(self._ends)
            self.free += gpus
            self.asked -= gpus


def _routed(work: Sequence[Job], cells: int) -> list[int]:
    """Return the cell of each job: the one with the least asked for when the router last read the loads."""
    loads = [_CellLoad(_NODES // cells * _GPUS) for _ in range(cells)]
    routes, read_at = [], 0.0
    for job in work:
        if job.submitted >= read_at + _READ_SECONDS:
            read_at = job.submitted
            for load in loads:
                load.advance(read_at)
                load.seen = load.asked
        cell = min(range(cells), key=lambda number: loads[number].seen)
        loads[cell].submit(job.gpus, job.work or 0.0)
        routes.append(cell)
    return routes
