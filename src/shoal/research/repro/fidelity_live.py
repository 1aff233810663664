"""Run a queue of real jobs on the embedded cluster, and measure its starts, ends and passes.

Measurements come from the journal and from files that the jobs wrote: the time from a start command to the first step,
from the last step to the completion event, and of passes. None of them is a scheduling outcome.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from shoal.core.commands import Decided, Resize, Start, Stop
from shoal.core.errors import ShoalError
from shoal.core.events import EventBatch, JobCompleted, JobProfiled, JobStopped, JobSubmitted, NodeReturned
from shoal.core.units import Seconds
from shoal.demo.cluster import running_cluster
from shoal.live.home import JOURNAL, Settings
from shoal.provider.local import LocalNodes
from shoal.scenario.scenario import Scenario
from shoal.store.codec import Header
from shoal.store.journal import JournalFile
from shoal.wire.client import Client
from shoal.wire.messages import JobRow, Submission, Submitted

_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.25


class QueueFailed(ShoalError):
    """A job of the queue failed or timed out; the message names the folder of its logs."""


def run_queue(
    home: Path, scenario: Scenario, queue: Sequence[tuple[float, Submission]], announce: Callable[[str], None]
) -> None:
    """Run a queue until all jobs are done; each job is submitted the given seconds after the cluster is up.

    All files, including the journal, are in ``home``.
    """
    settings = Settings(home, scenario, roots=(str(home),))
    with running_cluster(settings) as (local, client):
        _submit(client, local, queue)
        _wait_until_done(client, local, home, announce)


def _submit(client: Client, local: LocalNodes, queue: Sequence[tuple[float, Submission]]) -> None:
    origin = time.monotonic()
    for at, submission in queue:
        while (left := origin + at - time.monotonic()) > 0:
            local.ensure_running()
            time.sleep(min(left, _POLL_SECONDS))
        client.post("/v1/jobs", submission, Submitted)


def _wait_until_done(client: Client, local: LocalNodes, home: Path, announce: Callable[[str], None]) -> None:
    begin, ended = time.monotonic(), -1
    while True:
        local.ensure_running()
        rows = client.get("/v1/jobs?all=true&limit=1000", list[JobRow])
        over = [row for row in rows if row.ended is not None]
        if len(over) > ended:
            ended = len(over)
            announce(f"{ended} of {len(rows)} done")
        failed = next((row for row in over if row.state != "completed"), None)
        if failed is not None or time.monotonic() - begin > _TIMEOUT_SECONDS:
            what = f"{failed.id} {failed.state}" if failed else "the queue did not end"
            raise QueueFailed(f"{what}; its logs are in {home}/nodes")
        if len(over) == len(rows):
            return
        time.sleep(_POLL_SECONDS)


def job_environment() -> dict[str, str]:
    """Return the jobs' environment.

    One thread per rank, since the ranks of all jobs share a few processors. No gate: a job that loads before its GPUs
    are free costs its predecessor no time, which the simulator does not model.
    """
    path = os.environ.get("PYTHONPATH", "")
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path, "SHOAL_GATE": "off"}


@dataclass(frozen=True, slots=True)
class QueueTimings:
    """Measurements of one run of a queue, in seconds: medians of starts and ends, means of passes.

    ``up`` is when the node came up. ``first`` is from the command that starts a job to its first step; ``again`` from
    the command that freed GPUs for a later start, or that resized a job, to the first step after it; ``end`` from the
    last step to the completion event. Of ``first`` and ``again``, one without a measurement has the value of the other:
    on a busy machine every first start may be stopped before its first step. ``passes`` are by model, ranks and samples
    on each; ``noise`` is the median reported noise scale by model.
    """

    up: Seconds
    submitted: dict[str, Seconds]
    first: Seconds
    again: Seconds
    end: Seconds
    passes: dict[tuple[str, int, int], Seconds]
    noise: dict[str, float]


@dataclass(slots=True)
class _JournalTimes:
    """Times in a journal: when each incarnation was commanded, submissions, completions and reported noise scales."""

    epoch: float = 0.0
    up: Seconds = 0.0
    models: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    submitted: dict[str, Seconds] = field(default_factory=dict)
    ordered: dict[tuple[str, int], Seconds] = field(default_factory=dict)
    completed: dict[str, Seconds] = field(default_factory=dict)
    noise: dict[str, list[float]] = field(default_factory=dict)
    stops: dict[int, Seconds] = field(default_factory=dict)

    def read(self, journal: Path) -> None:
        last = EventBatch(0.0, ())
        for record in JournalFile(journal).read():
            if isinstance(record, Header):
                self.epoch = float(record.settings["epoch"])
            elif isinstance(record, EventBatch):
                last = record
                self._read_events(record)
            elif isinstance(record, Decided):
                self._read_commands(record, last)

    def _read_events(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, JobSubmitted):
                self.ids.append(event.spec.id)
                self.models.append(event.spec.model or "")
                self.submitted[event.spec.id] = event.at
            elif isinstance(event, NodeReturned):
                self.up = event.at
            elif isinstance(event, JobCompleted):
                self.completed[self.ids[event.job]] = event.at
            elif isinstance(event, JobProfiled):
                self.noise.setdefault(self.models[event.job], []).append(event.report.noise)

    def _read_commands(self, decided: Decided, batch: EventBatch) -> None:
        # A job started on GPUs that others freed has waited since those were commanded to stop.
        vacated = [self.stops.pop(e.job) for e in batch.events if isinstance(e, JobStopped) and e.job in self.stops]
        for command in decided.commands:
            if isinstance(command, Stop):
                self.stops[command.job] = batch.now
            elif isinstance(command, Start | Resize):
                since = min(vacated, default=batch.now) if isinstance(command, Start) else batch.now
                self.ordered[self.ids[command.job], command.incarnation] = since


def read_timings(home: Path) -> QueueTimings:
    """Return the measurements of the run in ``home``."""
    times = _JournalTimes()
    times.read(home / JOURNAL)
    first: list[float] = []
    again: list[float] = []
    ends: list[float] = []
    passes: dict[tuple[str, int, int], tuple[int, float]] = {}
    for job, model in zip(times.ids, times.models, strict=True):
        runs = [json.loads(path.read_text()) for path in (home / "jobs" / job).glob("passes-*.json")]
        for run in runs:
            taken = run["began"] - times.epoch - times.ordered[job, run["incarnation"]]
            (first if run["incarnation"] == 1 else again).append(taken)
            for world, samples, count, seconds in run["passes"]:
                before = passes.get((model, world, samples), (0, 0.0))
                passes[model, world, samples] = before[0] + count, before[1] + seconds
        ends.append(times.completed[job] - (max(run["ended"] for run in runs) - times.epoch))
    return QueueTimings(
        times.up,
        times.submitted,
        median(first or again),
        median(again or first),
        median(ends),
        {key: seconds / count for key, (count, seconds) in passes.items()},
        {model: median(values) for model, values in times.noise.items()},
    )
