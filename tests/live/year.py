"""A simulated year of the real control plane: its journal, accounts and backend, with modelled agents and clock.

``python -m tests.live.year --days 14`` submits 20,000 jobs a day, so that about 2,000 are live, and prints by day the
resident memory, the sizes on disk and the CPU seconds; at the end it opens the home again and measures that. With the
``--home`` of an earlier run it goes on from there, so that a year can be run in parts.
"""

import argparse
import contextlib
import gc
import heapq
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.home import Settings, open_control_plane
from shoal.scenario.scenario import Scenario
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, RankExit, RunReport, Submission

DAY = 86_400.0
TENANTS = 20
_SILENCE = 1800.0
"""Seconds after which an idle agent reports again."""


@dataclass(slots=True)
class YearClock:
    """A clock that the simulation sets."""

    time: float = 0.0

    def now(self) -> float:
        """Return the simulated time."""
        return self.time


@dataclass(slots=True)
class Year:
    """A control plane in simulated time, with agents that report runs as running until their time is up."""

    plane: ControlPlane
    clock: YearClock
    per_day: int
    live: int
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    submitted: int = 0
    ends: list[tuple[float, int, int, str]] = field(default_factory=list)
    """When runs end: time, job, incarnation, node."""
    running: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    """By node: the time of its last report, and the generation of the orders it has."""

    def resume(self) -> None:
        """Go on with the jobs of an earlier run; those that run get a new random time."""
        accounts, nodes = self.plane.accounts, self.plane.backend.topology.nodes
        self.submitted = accounts.submitted
        for account in accounts.live.values():
            if account.placement is not None:
                self.begin(account.number, account.incarnation, nodes[account.placement.nodes[0]].name)

    def begin(self, job: int, incarnation: int, node: str) -> None:
        """Run a job on a node for a random time."""
        self.running.setdefault(node, set()).add((job, incarnation))
        seconds = self.chance.uniform(0.5, 1.5) * DAY * self.live / self.per_day
        heapq.heappush(self.ends, (self.clock.time + seconds, job, incarnation, node))

    def hello(self) -> None:
        """Register every agent."""
        for node in self.plane.backend.topology.nodes:
            self.plane.hello(Hello(PROTOCOL, node.name, "boot", node.kind, node.gpus, "127.0.0.1"))
            self.running.setdefault(node.name, set())
        self.settle()

    def settle(self) -> None:
        """Run cycles until nothing is left to decide."""
        backend = self.plane.backend
        while backend._runs.events or backend._acks or self.plane._loop.review_at <= self.clock.time:
            self.plane.step()

    def sync(self, node: str, ended: tuple[int, int] | None = None) -> None:
        """Let a node's agent report its runs, one of which may have ended, and take up its orders."""
        here = self.running[node]
        runs = [RunReport(job=j, incarnation=i, phase="running") for j, i in here if (j, i) != ended]
        if ended is not None:
            exits = [RankExit(0, 0)]
            runs.append(RunReport(job=ended[0], incarnation=ended[1], phase="ended", exits=exits, finished=True))
        report = AgentReport(protocol=PROTOCOL, node=node, boot="boot", known=0, runs=runs)
        orders = {(o.job, o.incarnation): o for o in self.plane.sync(report).runs}
        self.heard[node] = self.clock.time
        here &= orders.keys() - {ended}
        for key, order in orders.items():
            if key not in here and key != ended and order.phase == "go":
                self.begin(*key, node)

    def sync_changed(self) -> None:
        """Let the agents report that have new orders or were silent for long."""
        for agent, node in zip(self.plane.backend._runs.agents, self.plane.backend.topology.nodes, strict=True):
            name = node.name
            while agent.generation != self.known.get(name):
                self.known[name] = agent.generation
                self.sync(name)
                self.settle()
            if self.clock.time - self.heard[name] > _SILENCE:
                self.sync(name)

    def advance(self, until: float) -> None:
        """Submit and end jobs up to a time."""
        while True:
            arrival = self.submitted * DAY / self.per_day
            at = min(arrival, self.ends[0][0] if self.ends else arrival)
            if at > until:
                self.clock.time = until
                return
            self.clock.time = max(self.clock.time, at)
            if arrival <= at:
                wanted = Submission(command=["train"], name="job", key=f"key-{self.submitted}")
                self.plane.submit([wanted], f"tenant-{self.submitted % TENANTS}")
                self.submitted += 1
            else:
                _, job, incarnation, node = heapq.heappop(self.ends)
                if (job, incarnation) in self.running[node]:
                    self.sync(node, (job, incarnation))
            self.settle()
            self.sync_changed()


@contextlib.contextmanager
def opened(home: Path, clock: YearClock, keep: float, cluster: str) -> Iterator[ControlPlane]:
    """Open a control plane whose loop the caller drives by ``step``, in simulated time."""
    settings = Settings(home, Scenario(parse_cluster(cluster), "fifo"), lease=3600.0, keep=keep)
    run, ControlPlane._run = ControlPlane._run, lambda _: None  # type: ignore[method-assign, assignment]
    try:
        with open_control_plane(settings) as plane:
            clock.time = max(clock.time, plane.scheduler.state.now)
            plane.backend.clock = clock
            yield plane
    finally:
        ControlPlane._run = run  # type: ignore[method-assign]


def resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def disk_mb(home: Path) -> dict[str, float]:
    """Return the size in MB of the journal, the archive and the ended jobs."""
    sizes = {"journal": 0.0, "archive": 0.0, "ended": 0.0}
    for path in (p for p in home.rglob("*") if p.is_file()):
        part = "archive" if path.parent.name == "archive" else path.name.split(".")[0]
        if part in sizes:
            sizes[part] += path.stat().st_size / 2**20
    return sizes


def show(day: int, plane: ControlPlane, seconds: float, home: Path) -> None:
    """Print the figures of a day."""
    accounts, sizes = plane.accounts, ", ".join(f"{part} {size:.0f}" for part, size in disk_mb(home).items())
    print(
        f"day {day:3d}: {accounts.submitted:,} submitted, {accounts.completed:,} completed, "
        f"{len(accounts.live):,} live, {len(accounts.accounts):,} in memory, "
        f"{plane.compaction.ended.count():,} on disk; "
        f"resident {resident_mb():.0f} MB; disk MB: {sizes}; {seconds:.0f} CPU s",
        flush=True,
    )


def main() -> None:
    """Run the days and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--per-day", type=int, default=20_000)
    parser.add_argument("--live", type=int, default=2_000)
    parser.add_argument("--keep-days", type=float, default=30.0)
    parser.add_argument("--home", type=Path, help="a new folder, or that of an earlier run; a temporary one by default")
    options = parser.parse_args()
    clock, cluster = YearClock(), f"gpu:{-(-options.live // 32) + 1}x32"
    with contextlib.ExitStack() as stack:
        home = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with opened(home, clock, options.keep_days * DAY, cluster) as plane:
            year = Year(plane, clock, options.per_day, options.live)
            year.resume()
            year.hello()
            for day in range(int(clock.time // DAY) + 1, options.days + 1):
                began = time.process_time()
                year.advance(day * DAY)
                show(day, plane, time.process_time() - began, home)
        gc.collect()
        began = time.process_time()
        with opened(home, clock, options.keep_days * DAY, cluster) as plane:
            print(f"restart: {time.process_time() - began:.2f} CPU s, {len(plane.accounts.live):,} live jobs")
    print(f"peak resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
