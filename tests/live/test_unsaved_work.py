"""Live jobs that save and jobs that do not, under policies that preempt: the ring on the run registry, without a clock.

Each second the agent of the only node carries out its orders and reports, and events go to the ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, Literal, TypeAlias

import pytest

from shoal.core.commands import Command, Start
from shoal.core.events import Event, EventBatch, JobSaved, JobStopped
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import parse_cluster
from shoal.engine.loop import Loop
from shoal.live.accounts import Accounts
from shoal.live.runs import RunRegistry
from shoal.live.save_tracker import INTERVAL
from shoal.scenario.scenario import Scenario
from shoal.store.codec import Base
from shoal.store.journal import MemoryJournal
from shoal.wire.messages import RankExit, RunReport, SessionReport

CLUSTER = parse_cluster("gpu:1x1")
LONGEST = 2000.0
Phase: TypeAlias = Literal["ready", "running", "ended"]


@dataclass
class Script:
    """A job of ``seconds``, which reports what it saved every ``save_every`` seconds, or saves when it is warned."""

    seconds: float
    save_every: float = inf
    warned: bool = False
    preemptible: str = "auto"
    done: float = 0.0
    saved: float = 0.0

    def report(self) -> dict[str, Any]:
        if self.warned:
            return {"done": self.done, "saved": self.saved, "session": SessionReport(saves=True)}
        return {} if self.save_every == inf else {"done": self.done, "saved": self.saved}


@dataclass
class Cluster:
    """One node with these jobs, all submitted at once; ``seen`` are all events."""

    scripts: Sequence[Script]
    now: float = 0.0
    runs: RunRegistry = field(init=False)
    seen: list[Event] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    ended: dict[tuple[int, int], RankExit] = field(default_factory=dict)
    journal: MemoryJournal = field(default_factory=lambda: MemoryJournal.begin({}))

    def __post_init__(self) -> None:
        self.runs = RunRegistry(CLUSTER.nodes, lambda spec, placement: 1.0)
        self.runs.agents[0].up = True
        for i, script in enumerate(self.scripts):
            spec = JobSpec(f"job-{i}", 0.0, 1, None, 1, 1, preemptible=script.preemptible)
            self.runs.submit(spec, Launch("job", ("sleep",)), 0.0)

    def wait(self, until: float) -> EventBatch:
        while self.now < LONGEST:
            events, self.runs.events = tuple(self.runs.events), []
            over = not events and all(map(self.runs.over, range(len(self.scripts))))
            if events or over or self.now >= until:
                self.seen += events
                ending, self.runs.ending = self.runs.ending, []
                self.runs.confirm_ends(ending, self.now)
                return EventBatch(self.now, events, over)
            self.now += 1.0
            self._agent()
        raise AssertionError(f"jobs still run after {LONGEST:g} s")

    def send(self, commands: Sequence[Command]) -> None:
        self.commands += commands
        for command in commands:
            self.runs.carry_out(command, self.now)

    def _agent(self) -> None:
        reports = []
        for order in self.runs.orders(0):
            script, key = self.scripts[order.job], (order.job, order.incarnation)
            if order.phase == "go" and key not in self.ended:
                script.done += 1.0
                script.saved = script.done if script.done % script.save_every == 0 else script.saved
                if script.done >= script.seconds:
                    self.ended[key] = RankExit(0, 0)
            elif order.phase == "stop" and key not in self.ended:
                script.saved = script.done if script.warned else script.saved
                script.done = script.saved
                self.ended[key] = RankExit(0, 0 if script.warned else -15, warned=True)
            exits = [self.ended[key]] if key in self.ended else []
            phase: Phase = "ended" if exits else "running" if order.phase == "go" else "ready"
            about: dict[str, Any] = {"job": order.job, "incarnation": order.incarnation, "exits": exits}
            reports.append(RunReport(phase=phase, **about, **script.report()))
        self.runs.report(0, reports, self.now)

    def starts(self) -> list[int]:
        return [sum(isinstance(c, Start) and c.job == i for c in self.commands) for i in range(len(self.scripts))]


def run(policy: str, *scripts: Script, **settings: float) -> Cluster:
    scheduler = Scenario(CLUSTER, policy, **settings).make_scheduler()  # type: ignore[arg-type]
    cluster = Cluster(scripts)
    parts = scheduler.state, scheduler.policy, scheduler.placer, scheduler.move_planner
    Loop(cluster, *parts, cluster.journal).run()
    return cluster


PREEMPTING = [
    "las:quantum=6",
    "tiresias",
    "max-min",
    "drf",
    "gavel.max-min",
    "themis",
    "afs-l",
    "pollux",
    "shockwave",
    "shoal",
]


@pytest.mark.parametrize("policy", PREEMPTING)
def test_scripts_that_do_not_save_run_to_their_ends_one_after_another_under_policies_that_preempt(policy: str) -> None:
    cluster = run(policy, *(Script(15.0) for _ in range(3)), round=6.0)
    assert cluster.starts() == [1, 1, 1]
    assert cluster.now < 70


@pytest.mark.parametrize("kind", [{"warned": True}, {"save_every": 5.0}])
def test_jobs_that_save_take_turns_under_a_policy_that_preempts(kind: dict[str, Any]) -> None:
    assert min(run("las:quantum=10", Script(60.0, **kind), Script(60.0, **kind)).starts()) > 1


def test_a_job_that_may_always_be_stopped_is_stopped_although_it_does_not_save() -> None:
    cluster = run("las:quantum=10", Script(25.0, preemptible="yes"), Script(15.0))
    assert cluster.starts() == [2, 1]


def test_a_job_that_must_not_be_stopped_is_not_although_it_saves() -> None:
    assert run("las:quantum=6", Script(40.0, warned=True, preemptible="no"), Script(15.0)).starts() == [1, 1]


def test_a_job_that_saves_seldom_is_stopped_right_after_it_saved() -> None:
    cluster = run("las:quantum=6", Script(100.0, save_every=40.0), Script(15.0), most_lost=3.0)
    (stopped,) = (event for event in cluster.seen if isinstance(event, JobStopped))
    assert (stopped.job, stopped.done) == (0, 40.0)


def test_events_about_saves_are_sent_once_a_minute_with_the_age_of_the_save() -> None:
    saves = [e for e in run("fifo", Script(250.0, save_every=7.0)).seen if isinstance(e, JobSaved)]
    times = [event.at for event in saves]
    assert all(after - before >= INTERVAL for before, after in pairwise(times))
    assert len(saves) == 5
    assert all(event.done == event.at - event.age for event in saves[1:])


def test_one_event_says_of_a_run_that_it_saves_when_it_is_warned() -> None:
    saves = [e for e in run("fifo", Script(250.0, warned=True)).seen if isinstance(e, JobSaved)]
    assert [(event.at, event.when_warned) for event in saves] == [(2.0, True)]


def test_no_event_says_what_a_job_saves_that_may_always_be_stopped() -> None:
    cluster = run("fifo", Script(250.0, save_every=7.0, preemptible="yes"))
    assert not any(isinstance(event, JobSaved) for event in cluster.seen)


def test_lost_work_is_shown_as_lost_and_counted() -> None:
    cluster = run("las:quantum=10", Script(25.0, preemptible="yes"), Script(15.0))
    accounts = Accounts(CLUSTER.nodes)
    for record in cluster.journal.read():
        if not isinstance(record, Base):
            accounts.fold(record)
    (what,) = (what for _, what in accounts.accounts[0].history if what.startswith("stopped"))
    assert what == "stopped; 0 done and saved; the last 11 s of its run are lost"
    assert accounts.lost_gpu_seconds == accounts.accounts[0].lost_gpu_seconds == 11.0
