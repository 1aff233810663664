"""A simulated year of the real control plane: its journal, accounts and backend, with modelled agents, users and clock.

``python -m tests.live.year --days 365 --home DIR`` submits 20,000 jobs a day, so that about 2,000 are live, and prints
by day the resident memory, the sizes on disk and the CPU seconds. Each day's figures are appended to ``year.jsonl`` in
the home; a run that was stopped goes on from there. At the end it opens the home again, in another process, and
measures that.
"""

import argparse
import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from tests.live.year_site import DAY, HEARTBEAT, Site

from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.home import Settings, open_control_plane
from shoal.live.job_lists import JobFilter
from shoal.scenario.scenario import Scenario
from shoal.store.segments import archived
from shoal.wire.messages import Dependency, Submission

TENANTS = 20
_GANGS = [1] * 16 + [2, 2, 4, 8]
"""GPUs that jobs ask for, each as often as it stands here; one job in a thousand asks for two nodes."""

_MEAN_GPUS = sum(_GANGS) / len(_GANGS)
_LOOK_EVERY = 3600.0
"""Seconds between two looks of people at their jobs, the nodes and the metrics."""


@dataclass(slots=True)
class YearClock:
    """A clock that the simulation sets."""

    time: float = 0.0

    def now(self) -> float:
        """Return the simulated time."""
        return self.time


@dataclass(slots=True)
class Year:
    """A control plane in simulated time: jobs arrive evenly over the day, one in twenty submissions is an array."""

    plane: ControlPlane
    clock: YearClock
    per_day: int
    live: int
    grain: float = 0.0
    """Seconds in which all that happens is taken to happen at their end, so that fewer decisions are made."""
    site: Site = field(init=False)
    submitted: int = 0
    looked_at: float = 0.0

    def __post_init__(self) -> None:
        self.submitted = self.plane.accounts.submitted
        self.looked_at = self.clock.time
        self.site = Site(self.plane, DAY * self.live / self.per_day, self.clock.time)

    def hello(self) -> None:
        """Register every agent; runs of an earlier part of the year are lost with its agents and start again."""
        self.site.connect()
        self.settle()

    def settle(self) -> None:
        """Run cycles of the control plane until nothing is left to decide and no agent has new orders."""
        backend, loop = self.plane.backend, self.plane._loop
        while True:
            self.site.react()
            backend._silence.tick(self.clock.time)
            if not (backend._runs.events or backend._acks or loop.review_at <= self.clock.time):
                return
            self.plane.step()

    def advance(self, until: float) -> None:
        """Let jobs arrive and end up to a time."""
        backend, loop = self.plane.backend, self.plane._loop
        while True:
            at = min(self.submitted * DAY / self.per_day, self.site.next, loop.review_at, backend._silence.next_tick())
            at = max(self.clock.time, at if not self.grain else ceil(at / self.grain) * self.grain)
            if at > until:
                self.clock.time = self.site.now = until
                return
            self.clock.time = self.site.now = at
            while self.submitted * DAY / self.per_day <= at:
                self.submit()
            self.site.act(self.clock.time)
            self.settle()
            if self.clock.time - self.looked_at > _LOOK_EVERY:
                self.look()

    def submit(self) -> None:
        """Submit the next job, or a whole array of jobs."""
        number = self.submitted
        chance = random.Random(number)
        tenant, week = f"tenant-{chance.randrange(TENANTS)}", int(self.clock.time // (7 * DAY))
        count = chance.randrange(10, 40) if chance.random() < 0.05 / 24 * 20 / 19 else 1
        name, script = f"study{week}-{'abcdefghij'[chance.randrange(10)]}", f"train{week}.py"
        gpus = 16 if chance.random() < 0.001 else chance.choice(_GANGS)
        after = self._earlier(tenant) if chance.random() < 0.02 else None
        jobs = [
            Submission(
                command=["python", script, "--seed", str(number + one)],
                name=f"{name}-{number + one}",
                gpus=gpus,
                key=f"key-{number + one}",
                app=f"search-{number}" if count > 1 else None,
                array=f"array-{number}" if count > 1 else None,
                most_at_once=8 if count > 1 else None,
                after=after,
            )
            for one in range(count)
        ]
        self.plane.submit(jobs, tenant)
        self.submitted += count

    def _earlier(self, tenant: str) -> list[Dependency] | None:
        """Return a dependency on the latest live job of a tenant, if it has one."""
        live = (account for account in reversed(self.plane.accounts.live.values()) if account.spec.tenant == tenant)
        found = next(live, None)
        return None if found is None else [Dependency(found.spec.id, "any")]

    def look(self) -> None:
        """Read what people and monitoring read."""
        self.looked_at, plane = self.clock.time, self.plane
        for tenant in (None, "tenant-3"):
            rows = plane.jobs(tenant, ended=True, only=JobFilter(limit=100))
            plane.job(rows[-1].id, tenant)
            plane.nodes(tenant)
            plane.share(tenant)
            plane.pages.seats(tenant)
        plane.cluster()
        plane.figures()


@contextlib.contextmanager
def opened(home: Path, clock: YearClock, keep: float, cluster: str) -> Iterator[ControlPlane]:
    """Open a control plane whose loop the caller drives by ``step``, in simulated time."""
    settings = Settings(home, Scenario(parse_cluster(cluster), "fifo"), lease=min(3600.0, 2 * HEARTBEAT), keep=keep)
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


def figures(day: int, plane: ControlPlane, seconds: float, home: Path) -> dict[str, float]:
    """Return the figures of a day."""
    accounts = plane.accounts
    return {
        "day": day,
        "submitted": accounts.submitted,
        "completed": accounts.completed,
        "crashes": accounts.crashes,
        "live": len(accounts.live),
        "running": len(accounts.placed),
        "in_memory": len(accounts.accounts),
        "on_disk": plane.compaction.ended.count(),
        "segments": len(archived(plane.journal.path)),
        "decisions": accounts.decisions.count,
        "resident_mb": round(resident_mb(), 1),
        "cpu_seconds": round(seconds, 1),
        **{f"{part}_mb": round(size, 1) for part, size in disk_mb(home).items()},
    }


def cluster_for(live: int) -> str:
    """Return nodes of 8 GPUs on which this many jobs can run at a time, with a tenth to spare."""
    return f"gpu:{int(live * _MEAN_GPUS * 1.1 / 8) + 2}x8"


def measured_restart(home: Path, arguments: list[str]) -> str:
    """Open the home in another process; return the line in which it says what that took."""
    command = [sys.executable, "-m", "tests.live.year", *arguments, "--home", str(home), "--days", "0"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Run the days and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--per-day", type=int, default=20_000)
    parser.add_argument("--live", type=int, default=2_000)
    parser.add_argument("--keep-days", type=float, default=30.0)
    parser.add_argument("--grain", type=float, default=0.0, help="seconds in which events come together; 0: each alone")
    parser.add_argument("--home", type=Path, help="a new folder, or that of an earlier run; a temporary one by default")
    options = parser.parse_args()
    clock, cluster = YearClock(), cluster_for(options.live)
    with contextlib.ExitStack() as stack:
        home = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        before, began = resident_mb(), time.process_time()
        with opened(home, clock, options.keep_days * DAY, cluster) as plane:
            seconds, gained = time.process_time() - began, resident_mb() - before
            print(f"opened: {seconds:.2f} CPU s, {len(plane.accounts.live):,} live jobs, {gained:.0f} MB", flush=True)
            if options.days:
                year = Year(plane, clock, options.per_day, options.live, options.grain)
                year.hello()
                for day in range(int(clock.time // DAY) + 1, options.days + 1):
                    began = time.process_time()
                    year.advance(day * DAY)
                    line = json.dumps(figures(day, plane, time.process_time() - began, home))
                    print(line, flush=True)
                    with (home / "year.jsonl").open("a") as file:
                        print(line, file=file)
        if options.days:
            gc.collect()
            sizes = ["--per-day", str(options.per_day), "--live", str(options.live)]
            print("restart", measured_restart(home, [*sizes, "--keep-days", str(options.keep_days)]), end="")


if __name__ == "__main__":
    main()
