"""The live backend under its ring, with agents that obey but may die, fall silent or come back: no process is started.

The model of an agent does what a real one promises; what is tried is that the control plane's side keeps every
promise whatever the order of messages: no job lost, none twice at once, no GPU leaked, and a journal that replays.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.refusals import refusal

from shoal.core.commands import Command, Decided
from shoal.core.decision import Decision
from shoal.core.errors import InputError
from shoal.core.events import EventBatch, JobCompleted, JobCrashed, JobStarted, JobStopped, NodeResumed
from shoal.core.interfaces import Policy
from shoal.core.job import JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Topology, parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import Scheduler, fold, replay
from shoal.engine.state import State
from shoal.live.accounts import Accounts
from shoal.live.backend import LiveBackend
from shoal.live.node_health import FIRST_PROBE
from shoal.live.recovery import RecoveredRuns
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.las import Las
from shoal.policy.elastic.max_min import MaxMin
from shoal.store.codec import Record
from shoal.store.journal import MemoryJournal
from shoal.wire.messages import (
    PROTOCOL,
    AgentOrders,
    AgentReport,
    Hello,
    RankExit,
    Roster,
    RunOrder,
    RunReport,
    SessionReport,
)

LEASE, GRACE = 5.0, 1.0


@dataclass(slots=True)
class ManualClock:
    time: float = 0.0

    def now(self) -> float:
        return self.time


@dataclass(slots=True)
class Run:
    """One incarnation on one node, in the model."""

    order: RunOrder
    phase: str = "waiting"
    statuses: tuple[int, ...] = ()
    ends_at: float = inf
    cause: str = ""
    unstarted: bool = False
    exits: dict[int, RankExit] = field(default_factory=dict)
    """Of workers that come and go: those that went."""
    roster: Roster | None = None
    began: range = range(0)
    """The workers it was started with."""
    founders: tuple[int, ...] = ()
    """Those it was to begin with, where it started the job."""
    trained: int = 0
    """The generation in whose group its workers last trained."""

    @property
    def origin(self) -> int:
        roster = self.roster or self.order.roster
        return self.order.incarnation if roster is None else roster.origin

    @property
    def workers(self) -> list[int]:
        """Those that are there."""
        return [number for number in self.began if number not in self.exits]

    @property
    def gpus(self) -> int:
        """How many it has, or is promised."""
        if self.phase not in ("ready", "running"):
            return 0
        return self.order.gpus if self.roster is None else len(self.workers)

    def leave(self, worker: int, status: int) -> None:
        """A worker ends; the run does with the last, unless it keeps the store and was not told to stop."""
        self.exits[worker] = RankExit(worker, status, warned=self.ends_at < inf)
        if not self.workers and not (self.roster and self.roster.keeps_store and self.ends_at == inf):
            self.phase = "ended"

    def report(self) -> RunReport:
        warned, first = self.ends_at < inf, self.order.first_rank
        exits = [RankExit(first + i, status, warned) for i, status in enumerate(self.statuses)]
        return RunReport(
            job=self.order.job,
            incarnation=self.order.incarnation,
            phase=self.phase,  # type: ignore[arg-type]
            exits=exits or list(self.exits.values()),
            cause=self.cause,
            blameless=bool(self.cause) and not self.unstarted,
            unstarted=self.unstarted,
            session=SessionReport(generation=self.trained) if self.trained else None,
            roster=self.roster,
        )


@dataclass
class ModelAgent:
    """An agent that keeps its promises: acts on orders, ends what nobody wants, lets nothing outlive its lease."""

    node: str
    gpus: int
    boots: int = 0
    runs: dict[tuple[int, int], Run] = field(default_factory=dict)
    lease_ends: float = 0.0
    alive: bool = False
    known: bool = False

    def boot(self) -> None:
        self.boots += 1
        self.runs.clear()
        self.alive, self.known = True, False

    def die(self) -> None:
        """SIGKILL: its keepers end everything at once."""
        self.runs.clear()
        self.alive = self.known = False

    def talk(self, backend: LiveBackend, now: float, *, answer_lost: bool = False) -> None:
        boot = f"boot-{self.boots}"
        if not self.known:
            backend.hello(Hello(PROTOCOL, self.node, boot, "gpu", self.gpus, "127.0.0.1"))
            self.known = True
        report = AgentReport(
            protocol=PROTOCOL,
            node=self.node,
            boot=boot,
            known=0,
            runs=[run.report() for run in self.runs.values() if run.phase != "waiting"],
        )
        try:
            orders = backend.sync(report)
        except InputError:
            self.known = False
            return
        if not answer_lost:
            self.lease_ends = now + orders.lease
            self.act(orders, now)

    def act(self, orders: AgentOrders, now: float) -> None:
        wanted = {(order.job, order.incarnation): order for order in orders.runs}
        for key, run in list(self.runs.items()):
            if key not in wanted:
                if run.phase == "ended":
                    del self.runs[key]
                else:
                    self.end(run, now)
        for key, order in wanted.items():
            run = self.runs.setdefault(key, Run(order))
            if run.phase == "ready" and run.origin != Run(order).origin:
                run.phase, run.cause = "ended", "it was to join others"
            run.order = order
            if order.phase == "stop":
                self.end(run, now)
        self.seat()

    def seat(self) -> None:
        """Make ready what there are GPUs for, let go what may, and tell workers who is to train."""
        for run in self.runs.values():
            strangers = [o for o in self.runs.values() if o.order.job == run.order.job and o.origin != run.origin]
            free = self.gpus - sum(other.gpus for other in self.runs.values())
            if run.phase == "waiting" and run.order.gpus <= free and not any(o.gpus for o in strangers):
                run.phase = "ready"
            if run.phase == "ready" and run.order.phase == "go":
                run.phase, run.roster = "running", run.order.roster
                run.began = range(run.order.first_rank, run.order.first_rank + run.order.local_ranks)
                if run.roster and run.roster.origin == run.order.incarnation:
                    run.founders = tuple(run.roster.members)
            known, wanted = run.roster, run.order.roster
            if run.phase == "running" and known and wanted and known.origin == wanted.origin:
                run.roster = max(known, wanted, key=lambda roster: roster.generation)

    def end(self, run: Run, now: float) -> None:
        """Warn; it leaves some time within its grace."""
        if run.phase in ("waiting", "ready"):
            run.phase = "ended"
        elif run.phase == "running" and run.ends_at == inf:
            run.ends_at = now + GRACE

    def pass_time(self, now: float) -> None:
        for run in self.runs.values():
            if now >= self.lease_ends and run.phase == "running" and run.ends_at == inf:
                run.cause, run.ends_at = "its lease ran out", self.lease_ends + GRACE
            if now >= run.ends_at and run.phase == "running":
                if run.roster is None:
                    run.phase, run.statuses = "ended", (-15,) * run.order.local_ranks
                for worker in run.workers if run.roster else ():
                    run.leave(worker, -15)
                run.phase = "ended"
            elif run.phase == "running" and run.roster and run.roster.generation:
                for worker in set(run.workers) - set(run.roster.members):
                    run.leave(worker, 0)
        self.seat()

    def running(self) -> list[Run]:
        return [run for run in self.runs.values() if run.phase == "running"]


@dataclass(slots=True)
class Door:
    """The backend as the loop sees it, but never sleeping: time passes when the test says so."""

    backend: LiveBackend
    clock: ManualClock
    heard: EventBatch = field(default_factory=lambda: EventBatch(0.0, ()))

    def wait(self, until: float) -> EventBatch:
        self.heard = self.backend.wait(min(until, self.clock.time))
        return self.heard

    def send(self, commands: Sequence[Command]) -> None:
        self.backend.send(commands)


@dataclass(slots=True)
class Books:
    """A journal that keeps the accounts beside it."""

    journal: MemoryJournal
    accounts: Accounts
    now: float = 0.0

    def record_events(self, heard: EventBatch) -> None:
        self.now = heard.now
        self.journal.record_events(heard)
        self.accounts.apply_events(heard.events)

    def record_decision(self, decided: Decided) -> None:
        self.journal.record_decision(decided)
        self.accounts.apply_commands(self.now, decided.commands)


@dataclass
class World:
    """A control plane that can die and be taken up again from its journal, and its agents."""

    topology: Topology
    policy: Policy
    clock: ManualClock = field(default_factory=ManualClock)
    journal: MemoryJournal = field(default_factory=lambda: MemoryJournal.begin({}))
    agents: list[ModelAgent] = field(default_factory=list)
    backend: LiveBackend = field(init=False)
    loop: Loop = field(init=False)
    door: Door = field(init=False)
    accounts: Accounts = field(init=False)
    ids: list[str] = field(default_factory=list)
    holders: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """By job and origin: the workers that hold, or held when they died, what was trained."""

    def __post_init__(self) -> None:
        self.agents = [ModelAgent(node.name, node.gpus) for node in self.topology.nodes]
        self.accounts = Accounts(self.topology.nodes)
        self.open(again=False)

    def open(self, *, again: bool = True) -> None:
        state = State(self.topology, ProfiledModel(self.topology, catalog()))
        past = list(self.journal.read())
        fold(past, state)
        if again:
            self.journal.records.append(MemoryJournal.begin({}).records[0])
        self.backend = LiveBackend(self.topology, self.clock, lambda spec, seats: 1.0, LEASE, first_retry=2.0)
        self.backend.resume(recovered(past), state.topology.down)
        self.door = Door(self.backend, self.clock)
        books, review = Books(self.journal, self.accounts), -inf if again else inf
        self.loop = Loop(self.door, state, self.policy, PackedPlacer(), StopStartPlanner(), books, review_at=review)

    def submit(self, gpus: int, work: float = 100.0, *, least: int = 0, most: int = 0, in_place: bool = False) -> int:
        id = f"job-{len(self.ids)}"
        self.ids.append(id)
        spec = JobSpec(id, self.clock.time, gpus, work, least or gpus, most or gpus)
        launch = Launch("job", ("python",), grace=GRACE, in_place=in_place, retries=3)
        acknowledged = self.backend.submit([(spec, launch)], id)
        assert not acknowledged.done()
        self.turn()
        assert acknowledged.result() == id
        return len(self.ids) - 1

    def turn(self) -> None:
        """Cycles until there is nothing left to be told."""
        for _ in range(50):
            self.loop.cycle()
            self.backend.confirm()
            if not self.door.heard.events and self.loop.review_at > self.clock.time:
                return
        raise AssertionError("the ring does not come to rest")

    def talk(self, times: int = 1) -> None:
        for _ in range(times):
            for agent in self.agents:
                if agent.alive:
                    agent.talk(self.backend, self.clock.time)
            self.turn()

    def pass_time(self, seconds: float) -> None:
        self.clock.time += seconds
        for agent in self.agents:
            agent.pass_time(self.clock.time)
        self.check()

    def wait(self, seconds: int) -> None:
        """Agents that answer once a second."""
        for _ in range(seconds):
            self.talk()
            self.pass_time(1.0)

    def check(self) -> None:
        """No job on its GPUs twice at once, no GPU in two hands, and whoever is to train has somebody who can go on,
        whatever anybody believes."""
        ours: dict[int, set[int]] = {}
        for agent in self.agents:
            assert sum(run.gpus for run in agent.runs.values()) <= agent.gpus
            for run in agent.running():
                ours.setdefault(run.order.job, set()).add(run.origin)
        twice = {job: origins for job, origins in ours.items() if len(origins) > 1}
        assert not twice
        self.train()

    def train(self) -> None:
        """Workers that come and go train in the latest group that all of its members know of."""
        lineages: dict[tuple[int, int], list[Run]] = {}
        for run in (run for agent in self.agents for run in agent.running()):
            if run.roster is not None:
                lineages.setdefault((run.order.job, run.origin), []).append(run)
                self.holders.setdefault((run.order.job, run.origin), set()).update(run.founders)
        for lineage, runs in lineages.items():
            there = [worker for run in runs for worker in run.workers]
            assert len(there) == len(set(there))
            latest = max((run.roster for run in runs if run.roster), key=lambda roster: roster.generation)
            if not latest.generation:
                continue
            holders = self.holders[lineage]
            assert holders & set(latest.members)
            theirs = [run for run in runs if set(run.workers) & set(latest.members)]
            agreed = all(run.roster and run.roster.generation == latest.generation for run in theirs)
            if agreed and set(latest.members) <= set(there) and holders & set(there):
                holders |= set(latest.members)
                for run in theirs:
                    run.trained = latest.generation

    def finish(self, job: int) -> None:
        """Let the ranks of a job that runs leave with status 0."""
        for agent in self.agents:
            for run in agent.running():
                if run.order.job == job and run.ends_at == inf:
                    if run.roster is None:
                        run.phase, run.statuses = "ended", (0,) * run.order.local_ranks
                    for worker in run.workers if run.roster else ():
                        run.leave(worker, 0)

    def state_of(self, job: int) -> JobState:
        return self.accounts.accounts[job].state

    def settle(self, rounds: int = 60) -> None:
        """Agents that answer, ranks that finish when all are up, until every job is done."""
        for agent in self.agents:
            if not agent.alive:
                agent.boot()
        for _ in range(rounds):
            self.talk()
            self.pass_time(1.0)
            for job in range(len(self.ids)):
                if self.state_of(job) is JobState.RUNNING:
                    self.finish(job)
            self.talk()
            if all(not self.state_of(job).live for job in range(len(self.ids))):
                return

    def replay(self) -> None:
        crew = lambda _: Scheduler(  # noqa: E731
            State(self.topology, ProfiledModel(self.topology, catalog())),
            self.policy,
            PackedPlacer(),
            StopStartPlanner(),
        )
        replayed = replay(self.journal.read, crew)
        assert replayed.decisions == self.loop.state.cycle


def recovered(records: Sequence[Record]) -> RecoveredRuns:
    runs = RecoveredRuns()
    for record in records:
        runs.fold(record)
    return runs


def world(cluster: str = "gpu:2x2", policy: Policy | None = None) -> World:
    it = World(parse_cluster(cluster), policy or Fifo())
    for agent in it.agents:
        agent.boot()
    it.talk()
    return it


def events_of(it: World) -> list[str]:
    kinds = (JobStarted, JobStopped, JobCompleted, JobCrashed)
    return [
        type(event).__name__
        for record in it.journal.read()
        for event in getattr(record, "events", ())
        if isinstance(event, kinds)
    ]


def test_a_gang_on_two_nodes_starts_when_both_are_ready_and_completes_when_all_ranks_left() -> None:
    it = world()
    job = it.submit(gpus=3)
    it.agents[0].talk(it.backend, 0.0)
    it.turn()
    assert [agent.running() for agent in it.agents] == [[], []]
    it.talk(6)
    assert [len(agent.running()) for agent in it.agents] == [1, 1]
    assert it.state_of(job) is JobState.RUNNING
    it.finish(job)
    it.talk()
    assert it.state_of(job) is JobState.COMPLETED
    assert events_of(it) == ["JobStarted", "JobCompleted"]


def test_a_rank_that_dies_ends_the_whole_gang_and_the_job_is_held_back_then_tried_again() -> None:
    it = world()
    job = it.submit(gpus=4)
    it.talk(6)
    (run,) = it.agents[1].running()
    run.phase, run.statuses = "ended", (0, 1)
    it.talk()
    assert it.state_of(job) is JobState.HELD
    it.talk()
    it.pass_time(GRACE)
    it.talk()
    assert [agent.running() for agent in it.agents] == [[], []]
    it.pass_time(2.0)
    it.talk(6)
    assert it.state_of(job) is JobState.RUNNING
    assert it.agents[0].running()[0].order.incarnation == 2


def test_a_silent_node_is_lost_only_after_its_agent_has_killed_what_ran_there() -> None:
    it = world()
    job = it.submit(gpus=2)
    it.talk(6)
    silent = next(agent for agent in it.agents if agent.running())
    other = next(agent for agent in it.agents if agent is not silent)
    while it.state_of(job) is JobState.RUNNING:
        it.pass_time(0.5)
        other.talk(it.backend, it.clock.time)
        it.turn()
        assert it.clock.time < 20
    assert not silent.running()
    other.talk(it.backend, it.clock.time)
    it.turn()
    assert len(other.running()) == 1


def test_an_agent_that_was_restarted_has_lost_its_runs_and_no_job_is_blamed() -> None:
    it = world("gpu:1x2")
    job = it.submit(gpus=2)
    it.talk(6)
    it.agents[0].die()
    it.agents[0].boot()
    it.talk(6)
    assert events_of(it) == ["JobStarted", "JobCrashed", "JobStarted"]
    assert it.state_of(job) is JobState.RUNNING


def test_after_a_restart_of_the_control_plane_the_same_incarnation_goes_on() -> None:
    it = world()
    job = it.submit(gpus=4)
    it.talk(6)
    it.open()
    for agent in it.agents:
        agent.known = False
    it.talk(6)
    assert (it.state_of(job), events_of(it)) == (JobState.RUNNING, ["JobStarted"])
    it.finish(job)
    it.talk()
    assert it.state_of(job) is JobState.COMPLETED
    it.replay()


def test_jobs_that_ended_while_the_control_plane_was_away_are_reported_when_it_is_back() -> None:
    it = world("gpu:1x2")
    job = it.submit(gpus=1)
    it.talk(6)
    it.finish(job)
    it.open()
    it.agents[0].known = False
    it.talk()
    assert it.state_of(job) is JobState.COMPLETED


def test_an_end_that_was_reported_and_not_yet_recorded_is_reported_again() -> None:
    it = world("gpu:1x2")
    job = it.submit(gpus=1)
    it.talk(6)
    it.finish(job)
    it.agents[0].talk(it.backend, it.clock.time)  # the control plane dies before it turns
    it.open()
    it.agents[0].known = False
    it.talk()
    assert it.state_of(job) is JobState.COMPLETED


def test_a_cancelled_job_is_stopped_and_its_gpus_are_given_to_the_next() -> None:
    it = world("gpu:1x2")
    first, second = it.submit(gpus=2), it.submit(gpus=2)
    it.talk(6)
    asked = it.backend.cancel(first)
    assert not asked.done()
    it.turn()
    assert asked.done()
    for _ in range(3):
        it.talk()
        it.pass_time(GRACE)
    it.talk()
    assert (it.state_of(first), it.state_of(second)) == (JobState.CANCELLED, JobState.RUNNING)


def test_a_strange_node_another_size_and_another_protocol_are_refused() -> None:
    it = world("gpu:1x2")
    for hello, sentence in (
        (Hello(PROTOCOL, "gpu-7", "b", "gpu", 2, ""), "node: 'gpu-7': unknown; did you mean gpu-0?"),
        (Hello(PROTOCOL, "gpu-0", "b", "gpu", 4, ""), "node gpu-0: '4 x gpu': this cluster has it with 2 x gpu"),
        (Hello(PROTOCOL, "gpu-0", "b", "k80", 2, ""), "node gpu-0: '2 x k80': this cluster has it with 2 x gpu"),
        (
            Hello(PROTOCOL + 1, "gpu-0", "b", "gpu", 2, ""),
            f"protocol: {PROTOCOL + 1}: this control plane speaks {PROTOCOL}: use one version of Shoal",
        ),
    ):
        with refusal(sentence):
            it.backend.hello(hello)


def test_an_agent_elsewhere_has_a_nodes_name_only_when_the_runs_of_the_other_are_gone() -> None:
    it = world("gpu:1x2")
    there, here = (Hello(PROTOCOL, "gpu-0", boot, "gpu", 2, boot, place=boot) for boot in ("there", "here"))
    it.backend.hello(there)
    job = it.submit(gpus=2)
    for _ in range(2):
        it.turn()
    for again in range(2):
        where = "" if again else " (there)"
        runs = f"node: 'gpu-0': an agent of this name runs elsewhere{where}"
        with refusal(f"{runs}: name another node, or stop that one and wait 8 s"):
            it.backend.hello(here)
        if not again:
            it.open()  # the next control plane knows where the node's agent was
    it.pass_time(LEASE + 2.0 + GRACE)
    it.backend.hello(here)
    it.turn()
    assert it.state_of(job) is JobState.STARTING
    it.backend.hello(Hello(PROTOCOL, "gpu-0", "restarted", "gpu", 2, "here", place="here"))


def test_a_worker_stopped_by_a_control_plane_that_has_died_since_ends_the_run_although_others_finished() -> None:
    it = world("gpu:2x2")
    job = it.submit(gpus=4, least=1, most=4, in_place=True)
    it.talk(6)
    it.agents[1].end(it.agents[1].running()[0], it.clock.time)  # an order that no journal has
    it.open()
    for agent in it.agents:
        agent.known = False
    it.talk()
    it.finish(job)
    it.pass_time(GRACE)
    it.settle()
    assert it.state_of(job) is JobState.COMPLETED
    assert events_of(it) == ["JobStarted", "JobCrashed", "JobStarted", "JobCompleted"]


@example(seed=598, policy=Fifo())
@given(seed=st.integers(0, 10**9), policy=st.sampled_from([Fifo(), Las(quantum=3.0), MaxMin()]))
def test_whatever_dies_and_whenever_no_job_is_lost_or_runs_twice_and_the_journal_replays(
    seed: int, policy: Policy
) -> None:
    chance = random.Random(seed)
    it = world("gpu:3x2", policy)
    for _ in range(chance.randint(1, 5)):
        gpus = chance.randint(1, 5)
        it.submit(gpus, least=1, most=6, in_place=True) if chance.random() < 0.6 else it.submit(gpus)
    for _ in range(40):
        what = chance.random()
        agent = chance.choice(it.agents)
        if what < 0.08:
            agent.die()
        elif what < 0.2 and not agent.alive:
            agent.boot()
        elif what < 0.26:
            it.open()
            for each in it.agents:
                each.known = False
        elif what < 0.32:
            for run in agent.running()[:1]:
                if run.roster is None:
                    run.phase, run.statuses = "ended", (1,) * run.order.local_ranks
                for worker in run.workers[:1] if run.roster else ():
                    run.leave(worker, 1)
        elif what < 0.4 and it.ids:
            job = chance.randrange(len(it.ids))
            if it.state_of(job) is JobState.RUNNING:
                it.finish(job)
        elif what < 0.43 and len(it.ids) < 8:
            it.submit(chance.randint(1, 3), least=1, most=6, in_place=chance.random() < 0.5)
        elif what < 0.6:
            it.pass_time(chance.choice([0.2, 1.0, 3.0]))
        elif agent.alive:
            agent.talk(it.backend, it.clock.time, answer_lost=chance.random() < 0.2)
        it.check()
        if chance.random() < 0.7:
            it.turn()
    it.turn()
    it.settle()
    states = [it.state_of(job) for job in range(len(it.ids))]
    assert all(not state.live for state in states), states
    for _ in range(3):
        it.talk()
        it.pass_time(GRACE)
    assert all(not agent.runs for agent in it.agents)
    free = it.loop.state.freeze().free_gpus.free
    assert sum(free) == it.loop.state.topology.total_gpus
    it.replay()


def rosters(it: World) -> dict[tuple[int, int], tuple[str, list[int]]]:
    """What the runs of the first job are told: to go or to stop, and who is to train."""
    runs = [run.order for agent in it.agents for run in agent.runs.values() if run.order.job == 0]
    return {(run.incarnation, run.first_rank): (run.phase, run.roster.members) for run in runs if run.roster}


def test_a_resize_in_place_stops_no_worker_that_stays_and_a_newer_one_cancels_workers_to_come() -> None:
    it = world("gpu:1x4", MaxMin())
    job = it.submit(gpus=1, least=1, most=4, in_place=True)
    it.talk(4)
    assert rosters(it) == {(1, 0): ("go", [0, 1, 2, 3])}
    other = it.submit(gpus=2)
    it.talk(2)
    assert rosters(it) == {(1, 0): ("go", [0, 1])}
    assert it.state_of(job) is JobState.RUNNING
    assert not [run for run in it.agents[0].running() if run.order.job == other], "the GPUs are not free yet"
    it.pass_time(0.5)
    it.talk(4)
    assert it.state_of(other) is JobState.RUNNING
    it.finish(other)
    it.agents[0].talk(it.backend, it.clock.time)
    it.turn()
    assert it.accounts.accounts[job].incarnation == 3
    third = it.submit(gpus=1)  # before those of incarnation 3 are up
    it.talk(6)
    told = rosters(it)
    assert (it.accounts.accounts[job].incarnation, told[1, 0]) == (4, ("go", [0, 1, 6]))
    assert [key for key, (phase, _) in told.items() if phase == "go"] == [(1, 0), (4, 6)]
    assert [it.state_of(each) for each in (job, third)] == [JobState.RUNNING, JobState.RUNNING]
    assert events_of(it).count("JobCrashed") == 0
    assert (it.accounts.accounts[job].starts, it.accounts.restarts) == (1, 0), "a resize in place is no restart"


def test_a_rank_that_dies_is_left_out_at_once_and_only_the_last_one_crashes_the_job() -> None:
    it = world("gpu:1x2", MaxMin())
    job = it.submit(gpus=2, least=1, most=2, in_place=True)
    it.talk(4)
    (run,) = it.agents[0].running()
    run.leave(1, -9)
    it.talk(2)
    assert (it.state_of(job), rosters(it)) == (JobState.RUNNING, {(1, 0): ("go", [0])})
    run.leave(0, 1)
    it.talk()
    assert it.state_of(job) is JobState.HELD
    assert it.accounts.accounts[job].cause == "rank 0 on gpu-0 exited with status 1"


def test_a_hello_that_comes_late_from_an_agent_long_gone_does_not_make_a_job_run_twice() -> None:
    it = world()
    first, job = it.submit(gpus=1), it.submit(gpus=2)
    it.talk(6)
    it.finish(first)
    it.talk(3)
    assert [len(agent.running()) for agent in it.agents] == [0, 1]
    it.backend.hello(Hello(PROTOCOL, "gpu-1", "boot-0", "gpu", 2, "127.0.0.1"))
    it.turn()
    for _ in range(3):
        it.agents[0].talk(it.backend, it.clock.time)
        it.turn()
        it.check()
    for _ in range(6):
        it.talk()
        it.pass_time(GRACE)
    assert it.state_of(job) is JobState.RUNNING


@dataclass(slots=True)
class Meddled:
    """A policy during whose deliberations something happens."""

    policy: Policy
    happens: Callable[[], None] | None = None

    def decide(self, snapshot: Snapshot) -> Decision:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return self.policy.decide(snapshot)


@pytest.mark.parametrize(("status", "ends_as"), [(0, JobState.COMPLETED), (1, JobState.FAILED)])
def test_a_job_that_ends_while_the_ring_decides_to_resize_it_has_ended(status: int, ends_as: JobState) -> None:
    policy = Meddled(MaxMin())
    it = world("gpu:1x3", policy)
    elastic = JobSpec("job-0", 0.0, 1, 100.0, 1, 2)
    it.ids.append("job-0")
    it.backend.submit([(elastic, Launch("job", ("train",), grace=GRACE, retries=2))], None)
    other = it.submit(gpus=2)

    def ends() -> None:
        for run in it.agents[0].running():
            if run.order.job == 0:
                run.phase, run.statuses = "ended", (status,) * run.order.local_ranks
        it.agents[0].talk(it.backend, it.clock.time)

    for _ in range(2 if status else 0):  # so that once more is too often
        it.talk(4)
        ends()
        it.turn()
        it.wait(40)
    it.talk(4)
    assert [len(run.report().exits) for run in it.agents[0].running()] == [0, 0]
    it.finish(other)
    policy.happens = ends
    it.talk(4)
    assert [it.state_of(job) for job in (0, other)] == [ends_as, JobState.COMPLETED]
    assert sum(it.loop.state.freeze().free_gpus.free) == 3
    it.replay()


def refuse_starts(agent: ModelAgent) -> None:
    """Let a node fail to start whatever it is ordered, as one without the program does."""
    seat = agent.seat

    def refuse() -> None:
        for run in agent.runs.values():
            if run.phase == "waiting" and run.order.phase != "stop":
                run.phase, run.cause, run.unstarted = "ended", "no such program", True
        seat()

    agent.seat = refuse  # type: ignore[method-assign]


def test_sixty_jobs_complete_on_three_nodes_one_of_which_starts_nothing_and_that_one_is_drained() -> None:
    it = world("gpu:3x2")
    refuse_starts(it.agents[0])
    for _ in range(60):
        it.submit(gpus=1)
    for _ in range(200):
        it.wait(1)
        for job in range(60):
            if it.state_of(job) is JobState.RUNNING:
                it.finish(job)
        if all(not it.state_of(job).live for job in range(60)):
            break
    assert [it.state_of(job) for job in range(60)] == [JobState.COMPLETED] * 60
    assert "jobs that could not start here started elsewhere" in it.loop.state.nodes.drained[0]
    assert it.loop.state.freeze().cluster.usable == (0, 2, 2)
    crashes = [account.crashes for account in it.accounts.accounts.values()]
    assert max(each.failed_starts for each in crashes) == 1, "no job is tried twice on the node that failed"
    assert sum(each.failed_starts for each in crashes) <= 12
    it.replay()


def test_a_drained_node_is_probed_with_one_start_and_resumed_when_it_succeeds_also_after_a_restart() -> None:
    it = world("gpu:2x2")
    it.backend.drain("gpu-0", "a fan", "ana")
    it.turn()
    jobs = [it.submit(gpus=1) for _ in range(4)]
    it.talk(3)
    assert [len(agent.running()) for agent in it.agents] == [0, 2]
    it.open()
    for agent in it.agents:
        agent.known = False
    it.wait(40)
    assert [len(agent.running()) for agent in it.agents] == [0, 2], "an operator's drain is not probed"
    it.backend.resume_node("gpu-0")
    it.wait(3)
    assert [len(agent.running()) for agent in it.agents] == [2, 2]
    it.backend._runs.events += it.backend._runs.health.drain(0, "three starts failed", it.clock.time)
    it.turn()
    assert all(it.state_of(job) is JobState.RUNNING for job in jobs), "what runs on a drained node goes on"
    for job in jobs:
        it.finish(job)
    more = [it.submit(gpus=1) for _ in range(6)]
    it.wait(2)
    assert [len(agent.running()) for agent in it.agents] == [0, 2]
    for _ in range(int(FIRST_PROBE)):
        if not it.agents[0].running():
            it.wait(1)
    assert [len(agent.running()) for agent in it.agents] == [1, 2], "a probe is one start"
    it.wait(3)
    assert [len(agent.running()) for agent in it.agents] == [2, 2]
    resumed = [e for r in it.journal.read() for e in getattr(r, "events", ()) if isinstance(e, NodeResumed)]
    assert [event.probe for event in resumed] == [False, True, False]
    it.settle()
    assert all(it.state_of(job) is JobState.COMPLETED for job in more)
    it.replay()


def test_a_job_whose_program_is_missing_on_every_node_fails_with_the_cause_and_drains_none() -> None:
    it = world("gpu:3x2")
    for agent in it.agents:
        refuse_starts(agent)
    job = it.submit(gpus=1)
    it.wait(60)
    account = it.accounts.accounts[job]
    assert (account.state, account.cause) == (JobState.FAILED, "no such program")
    assert {account.placements[n].nodes[0] for n in (1, 2, 3)} == {0, 1, 2}, "each try is on another node"
    assert (account.starts, it.loop.state.nodes.drained) == (3, {})


def test_a_neighbours_long_grace_does_not_delay_the_restart_of_other_jobs_on_a_dead_node() -> None:
    it = world("gpu:2x2")
    patient = JobSpec("job-0", 0.0, 1, 100.0, 1, 1)
    it.ids.append("job-0")
    it.backend.submit([(patient, Launch("job", ("train",), grace=500.0))], None)
    hasty = it.submit(gpus=1)
    it.talk(6)
    dead = it.agents[0]
    assert len(dead.running()) == 2
    began = it.clock.time
    while it.state_of(hasty) is JobState.RUNNING:
        it.clock.time += 0.5
        it.agents[1].talk(it.backend, it.clock.time)
        it.turn()
        assert it.clock.time < began + LEASE + GRACE + 3.0
    assert it.clock.time >= began + LEASE + GRACE, "its own lease and grace have passed"
    assert it.state_of(0) is JobState.RUNNING, "its grace has not passed: it may still be saving"
    dead.runs = {key: run for key, run in dead.runs.items() if run.order.job == 0}
    for _ in range(int(500.0 + LEASE) + 10):
        it.clock.time += 1.0
        it.agents[1].talk(it.backend, it.clock.time)
        it.turn()
        if it.clock.time < began + LEASE + 500.0:
            assert it.accounts.accounts[0].incarnation == 1
    assert it.state_of(hasty) is JobState.RUNNING
    assert (it.state_of(0), it.accounts.accounts[0].incarnation) == (JobState.RUNNING, 2)
    dead.die()
    it.settle()
    assert it.state_of(0) is JobState.COMPLETED
    it.replay()
