"""The CPU time of ``shoal advise`` on an invented month of a Slurm cluster, in all of its processes.

The month: 384 GPUs of three kinds, 40 users of 8 accounts, single jobs, gangs and array sweeps, busier by day than at
night and than on weekends; a third of the jobs failed, were cancelled or ran into their time limits. Jobs start in
order of arrival on their kind, with EASY backfilling by time limits, on the nodes with the fewest free GPUs that hold
them. Steps, jobs without a GPU and jobs that never started are lines of the file, too.
"""

import json
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

HOUR = 3600.0
_BEGIN = datetime(2026, 3, 2)
_DAYS = 30
_LOAD = 0.68
"""GPU-seconds that the jobs of a kind run, over those of its GPUs in the month."""

_KINDS = {"h100": (8, 8), "a100": (24, 8), "v100": (32, 4)}
"""Nodes and GPUs of a node, by kind."""

_COLUMNS = (
    "JobID|JobName|User|Account|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|Timelimit|ReqTRES|AllocTRES|"
    "NodeList"
)
_STATES = ("COMPLETED", "FAILED", "CANCELLED by 1007", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
_ODDS = (62, 20, 12, 4, 1.5, 0.5)
_LIMITS = (1, 4, 12, 24, 48, 72, 96)
"""Time limits in hours that users choose among; they take a multiple of the run time they expect."""

_DEPTH = 200
"""Waiting jobs behind the first that are tried for backfilling, as Slurm's ``bf_max_job_test`` limits them."""


@dataclass(slots=True)
class _SlurmJob:
    """A job of the month; times in seconds since its begin."""

    user: int
    kind: str
    gpus: int
    run: float
    limit: float
    state: str
    submitted: float
    task: int | None
    """Its number in its array, if it is of one."""
    name: str = ""
    started: float = -1.0
    nodes: tuple[int, ...] = ()


def advise(jobs: int = 20_000, processes: int = 2) -> dict[str, float]:
    """Return CPU seconds of ``shoal advise`` on such a month in all processes, and its wall-clock seconds."""
    with TemporaryDirectory(prefix="shoal-bench-") as folder:
        path = Path(folder, "sacct.txt")
        path.write_text("\n".join(slurm_month(jobs)) + "\n")
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
        command = [sys.executable, "-m", "shoal", "advise", str(path), "--json", "--html", f"{folder}/page.html"]
        out = subprocess.run([*command, "--parallel", str(processes)], check=True, stdout=subprocess.PIPE).stdout
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic() - began
    found = json.loads(out)
    return {
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": after.ru_maxrss / 1024,
        "wall_seconds": wall,
        "compared_jobs": found["compared"],
        "recorded_mean_wait_hours": found["recorded"]["figures"]["mean_wait"]["value"] / HOUR,
        **{f"cpu_{row['policy']}": row["cpu_seconds"] for row in found["policies"]},
    }


def slurm_month(jobs: int = 20_000, seed: int = 5) -> Iterator[str]:
    """Return the lines of an invented month of ``jobs`` GPU jobs, as ``sacct -P`` prints them."""
    draw = random.Random(seed)
    drawn = _submissions(jobs, draw)
    for kind in _KINDS:
        _run_kind(kind, [job for job in drawn if job.kind == kind])
    yield _COLUMNS
    for job in drawn:
        yield from _lines(job, draw)


def _submissions(count: int, draw: random.Random) -> list[_SlurmJob]:
    """Jobs in order of submission, their lengths scaled to the load."""
    jobs: list[_SlurmJob] = []
    users = [draw.paretovariate(1.1) for _ in range(40)]
    while len(jobs) < count:
        (user,) = draw.choices(range(len(users)), users)
        kind = draw.choices(tuple(_KINDS), (3, 6, 4))[0]
        gpus = draw.choices((1, 2, 4, 8, 16, 32), (66, 11, 12, 9, 1.7, 0.3))[0]
        at, tasks = _arrival(draw), 1 if gpus > 2 or draw.random() < 0.93 else draw.randint(5, 60)
        typical = draw.lognormvariate(8.2, 1.5)
        limit = next((h for h in _LIMITS if h * HOUR > typical * draw.uniform(1.5, 6)), _LIMITS[-1]) * HOUR
        for task in range(min(tasks, count - len(jobs))):
            state, run = draw.choices(_STATES, _ODDS)[0], typical * draw.lognormvariate(0, 0.4)
            if state != "COMPLETED":
                run *= draw.random() ** 2
            jobs.append(_SlurmJob(user, kind, gpus, run, limit, state, at, task if tasks > 1 else None))
    for kind, (nodes, size) in _KINDS.items():
        _scale([job for job in jobs if job.kind == kind], _LOAD * nodes * size * _DAYS * 86400)
    jobs.sort(key=lambda job: job.submitted)
    number = 1000
    for job in jobs:
        number += not job.task  # tasks of an array follow one another
        job.name = f"{number}" if job.task is None else f"{number}_{job.task}"
    return jobs


def _scale(jobs: list[_SlurmJob], work: float) -> None:
    """Scale the run times so that the jobs run this many GPU-seconds; those that reach their limit have timed out."""
    for _ in range(3):  # limits cut what is scaled beyond them
        factor = work / sum(job.gpus * job.run for job in jobs)
        for job in jobs:
            job.run = float(round(min(max(job.run * factor, 5.0), job.limit)))
    for job in jobs:
        if job.state == "TIMEOUT":  # a user who expected less asked for a shorter limit
            job.limit = min(h * HOUR for h in _LIMITS if h * HOUR >= job.run)
            job.state = "COMPLETED" if job.run < job.limit / 4 else job.state
        if job.state == "TIMEOUT" or job.run >= job.limit:
            job.state, job.run = "TIMEOUT", job.limit


def _arrival(draw: random.Random) -> float:
    """A whole second of the month, drawn by hour of the day and day of the week."""
    while True:
        at = draw.randrange(_DAYS * 86400)
        day, hour = at // 86400, at % 86400 / HOUR
        weight = (0.35 if day % 7 >= 5 else 1.0) * (1.0 if 9 <= hour < 19 else 0.35)
        if draw.random() < weight:
            return float(at)


@dataclass(slots=True)
class _Kind:
    """The nodes of one kind while the month passes."""

    free: list[int]
    ends: list[tuple[float, float, int, _SlurmJob]] = field(default_factory=list)
    """A heap of running jobs: end, end by the limit, number, job."""

    def start(self, job: _SlurmJob, now: float, number: int) -> bool:
        """Start a job on the fullest nodes that hold it; False if they do not."""
        size = min(job.gpus, max(self.free, default=0))
        if size < job.gpus:
            size = job.gpus if job.gpus < 4 else 8 if job.gpus % 8 == 0 and len(self.free) < 32 else 4
        needed = -(-job.gpus // size)
        fitting = sorted((free, node) for node, free in enumerate(self.free) if free >= size)[:needed]
        if len(fitting) < needed:
            return False
        job.started, job.nodes = now, tuple(node for _, node in fitting)
        for node in job.nodes:
            self.free[node] -= size
        heappush(self.ends, (now + job.run, now + job.limit, number, job))
        return True


def _run_kind(kind: str, jobs: list[_SlurmJob]) -> None:
    nodes, size = _KINDS[kind]
    cluster, waiting, next_job, number = _Kind([size] * nodes), list[_SlurmJob](), 0, 0
    while next_job < len(jobs) or waiting:
        arrives = jobs[next_job].submitted if next_job < len(jobs) else float("inf")
        ends = cluster.ends[0][0] if cluster.ends else float("inf")
        now = min(arrives, ends)
        while cluster.ends and cluster.ends[0][0] <= now:
            job = heappop(cluster.ends)[3]
            for node in job.nodes:
                cluster.free[node] += job.gpus // len(job.nodes)
        while next_job < len(jobs) and jobs[next_job].submitted <= now:
            waiting.append(jobs[next_job])
            next_job += 1
        reserved = _reservation(cluster, waiting, now)
        tried, waiting = waiting[:_DEPTH], waiting[_DEPTH:]
        left = list[_SlurmJob]()
        for job in tried:
            number += 1
            if (left and now + job.limit > reserved) or not cluster.start(job, now, number):
                left.append(job)
                if len(left) == 1:
                    reserved = _reservation(cluster, left, now)
        waiting = left + waiting


def _reservation(cluster: _Kind, waiting: list[_SlurmJob], now: float) -> float:
    """When the first waiting job has its GPUs if running jobs take their whole limits."""
    if not waiting:
        return float("inf")
    free = sum(cluster.free)
    by_limit = [(limit, job.gpus) for _, limit, _, job in cluster.ends]
    heapify(by_limit)
    at = now
    while free < waiting[0].gpus and by_limit:
        at, gpus = heappop(by_limit)
        free += gpus
    return at


def _lines(job: _SlurmJob, draw: random.Random) -> Iterator[str]:
    begin, user = job.submitted, f"user{job.user:02d}"
    account, end = f"lab{job.user % 8}", job.started + job.run
    submit, start, stop = (_text(at) for at in (begin, job.started, end))
    where = f"{job.kind}-[{','.join(f'{node:02d}' for node in sorted(job.nodes))}]"
    tres = f"billing={8 * job.gpus},cpu={8 * job.gpus},gres/gpu={job.gpus},gres/gpu:{job.kind}={job.gpus},mem=64G"
    limit = f"{int(job.limit // 86400)}-{int(job.limit % 86400 // 3600):02d}:00:00"
    head = f"train|{user}|{account}|{job.kind}"
    times = f"{submit}|{submit}|{start}|{stop}|{job.run:.0f}"
    yield f"{job.name}|{head}|{job.state}|{times}|{limit}|{tres}|{tres}|{where}"
    for step in ("batch", "extern"):
        yield f"{job.name}.{step}|{step}||{account}||{job.state.split()[0]}|{times}|||{tres}|{where}"
    chance = draw.random()
    if chance < 0.05:  # cancelled before it began
        yield f"9{job.name}|{head}|CANCELLED by 1007|{submit}|{submit}|None|{_text(begin + 60)}|0|{limit}|{tres}||None"
    elif chance < 0.15:
        yield f"8{job.name}|prepare|{user}|{account}|cpu|COMPLETED|{times}|{limit}|cpu=8,mem=16G|cpu=8,mem=16G|cpu-01"


def _text(seconds: float) -> str:
    return (_BEGIN + timedelta(seconds=seconds)).isoformat()
