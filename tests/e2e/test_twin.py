"""The same workload in the simulator and on machines: the same decisions, and nearly the same times."""

import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.e2e.site import Site, until
from tests.e2e.trial import ready

from shoal.core.commands import Decided, Stop, Suspend
from shoal.core.events import EventBatch, JobCompleted, JobStopped, JobSubmitted
from shoal.core.topology import parse_cluster
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.store.journal import JournalFile
from shoal.wire.messages import ClusterRow, Submission, Submitted
from shoal.workload.schema import Job, Workload

POLICIES = ("fifo", "srtf")

TABLE = (
    (0.0, 2, 5.3), (0.6, 1, 5.8), (1.6, 1, 6.8), (5.9, 1, 5.4), (7.0, 1, 5.2), (9.7, 1, 3.9), (12.8, 2, 2.0),
    (14.4, 2, 2.9), (15.4, 1, 2.4), (16.5, 1, 6.2), (16.9, 1, 4.4), (18.3, 4, 2.8), (19.9, 1, 6.0), (23.2, 1, 6.7),
    (25.1, 1, 4.3), (27.9, 1, 2.5), (28.5, 2, 5.3), (31.1, 1, 5.3), (33.7, 1, 6.1), (35.3, 1, 4.9),
)  # fmt: skip
"""When each job is submitted, on how many GPUs it runs and for how many seconds: found by search, so that under either
policy no two events come closer than 0.4 s in the simulator, and their order is not a matter of chance."""

START_SECONDS = 0.06
"""What it takes from a decision to the job's process, and from its end to the next decision, on idle machines. The
simulator charges it for a start after the first as restart cost; a first start is free there, so it is in the work."""

SLEEPER = """
import os, signal, sys, time
work, saved = float(sys.argv[1]), os.path.join(os.environ["SHOAL_DIR"], os.environ["RANK"])
before = float(open(saved).read()) if os.path.exists(saved) else 0.0
began = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
def done():
    return before + time.clock_gettime(time.CLOCK_BOOTTIME) - began
def save(*_):
    with open(saved, "w") as file:
        file.write(repr(done()))
    if os.environ["RANK"] == "0":
        with open(os.environ["SHOAL_PROGRESS"], "w") as file:
            file.write(f"{done()} {done()}")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
time.sleep(max(0.0, work - done()))
"""
"""A job that works by the clock, from when its process began, and goes on where it was stopped."""


@dataclass(slots=True)
class Told:
    """What a journal tells: what happened, in order, and what was decided after each of these, before the next."""

    events: list[tuple[str, str]] = field(default_factory=list)
    decided: list[list[tuple[str, str, int]]] = field(default_factory=list)
    submitted: dict[str, float] = field(default_factory=dict)
    completed: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> "Told":
        told, names = cls(), []
        for record in JournalFile(path).read():
            if isinstance(record, EventBatch):
                for event in record.events:
                    if isinstance(event, JobSubmitted):
                        # The control plane adds some letters to the name a job was given.
                        names.append(event.spec.id.partition("-")[0])
                        told.submitted[names[-1]] = event.at
                        told.happened("submitted", names[-1])
                    elif isinstance(event, JobCompleted):
                        told.completed[names[event.job]] = event.at
                        told.happened("completed", names[event.job])
                    elif isinstance(event, JobStopped):
                        told.happened("stopped", names[event.job])
            elif isinstance(record, Decided):
                for command in record.commands:
                    gpus = 0 if isinstance(command, Stop | Suspend) else command.placement.gpus
                    told.decided[-1].append((type(command).__name__, names[command.job], gpus))
        return told

    def happened(self, what: str, job: str) -> None:
        if what == "stopped" and self.events and self.events[-1][0] == "stopped":
            # Of jobs that were told to stop in one decision any may be the first.
            self.events[-1] = what, " ".join(sorted([*self.events[-1][1].split(), job]))
            return
        self.events.append((what, job))
        self.decided.append([])

    @property
    def mean_jct(self) -> float:
        return sum(self.completed[job] - self.submitted[job] for job in self.completed) / len(self.completed)

    @property
    def makespan(self) -> float:
        return max(self.completed.values()) - min(self.submitted.values())


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The journal of a live cluster under each policy; they run at the same time, and mostly sleep."""
    folder = tmp_path_factory.mktemp("twin")
    with ExitStack() as stack:
        sites = {policy: Site(folder / policy, (2, 2), ["--policy", policy]) for policy in POLICIES}
        for site in sites.values():
            stack.enter_context(closing(site))
            ready(site)
        origin = time.monotonic()
        for number, (at, gpus, seconds) in enumerate(TABLE):
            command = [sys.executable, "-I", "-S", "-c", SLEEPER, str(seconds)]
            job = Submission(command=command, name=f"j{number}", gpus=gpus, work=seconds, preemptible="yes")
            time.sleep(max(0.0, origin + at - time.monotonic()))
            for site in sites.values():
                site.client.post("/v1/jobs", job, Submitted)
        clients = [site.client for site in sites.values()]
        until(lambda: all(c.get("/v1/cluster", ClusterRow).ended == len(TABLE) for c in clients), "every job ends")
    return {policy: site.home / "journal.sqlite" for policy, site in sites.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulator_decides_as_the_live_cluster_did_and_foretells_its_times(
    policy: str, live: dict[str, Path], tmp_path: Path
) -> None:
    jobs = [
        Job(id=f"j{i}", submitted=at, gpus=gpus, work=seconds + START_SECONDS, declared_work=seconds)
        for i, (at, gpus, seconds) in enumerate(TABLE)
    ]
    scenario = Scenario(parse_cluster("gpu:2x2"), policy, restart_cost=str(START_SECONDS))
    run(scenario, Workload("twin", tuple(jobs)), journal_path=tmp_path / "journal.sqlite")
    simulated, lived = Told.of(tmp_path / "journal.sqlite"), Told.of(live[policy])

    pairs = zip(simulated.events, lived.events, strict=False)
    same = next((place for place, (one, other) in enumerate(pairs) if one != other), len(simulated.events))
    # Less is a machine too busy to tell anything by.
    assert same > len(simulated.events) / 2
    # What was decided on an event is known where the next one is the same too.
    known = same if same == len(simulated.events) else same - 1
    assert lived.decided[:known] == simulated.decided[:known]
    assert lived.mean_jct == pytest.approx(simulated.mean_jct, rel=0.05)
    assert lived.makespan == pytest.approx(simulated.makespan, rel=0.05)
    replay_file(live[policy])
