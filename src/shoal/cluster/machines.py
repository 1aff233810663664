"""The live backend: what agents and people say becomes events, what the ring orders becomes orders for agents.

Agents ask; nobody is called. Orders are levels, not edges: an agent is always told all it should have, so a message
lost or said twice does no harm. Every method may be called from any thread.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from threading import Condition
from typing import Any

from shoal.cluster import testimony
from shoal.cluster.clock import Clock
from shoal.cluster.gang import End, Gang, Outcome
from shoal.cluster.lineage import Lineage, Seats
from shoal.cluster.pace import EVERY, Pace
from shoal.cluster.recall import Recalled
from shoal.core.backoff import FIRST_RETRY, MOST_CRASHES, retry_after
from shoal.core.bids import Rows
from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.errors import InputError, nearest
from shoal.core.events import (
    AppBid,
    BatchChanged,
    Event,
    Heard,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobReshaped,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.goodput import GoodputReport
from shoal.core.job import ADAPTIVE, JobSpec, Launch
from shoal.core.topology import Placement, Topology
from shoal.core.units import JobNumber, Seconds
from shoal.wire.messages import PROTOCOL, Hello, LogAnswer, LogRead, Orders, Report

LEASE: Seconds = 20.0
"""How long a job may go on without its agent hearing from the control plane."""

_MARGIN: Seconds = 2.0
"""What a node is given beyond lease and grace before it counts as lost: the time a kill may take."""

_LONGEST_SLEEP: Seconds = 3600.0


@dataclass(slots=True)
class _Agent:
    """A node's agent as last heard."""

    boot: str | None = None
    address: str = ""
    generation: int = 1
    heard: Seconds | None = None
    answered: Seconds = 0.0
    up: bool = False
    gangs: dict[tuple[JobNumber, int], Gang] = field(default_factory=dict)
    strays: frozenset[JobNumber] = frozenset()
    """Jobs of which it has processes that nobody wants there, and that it is ending."""


@dataclass(slots=True)
class _Job:
    """What the backend must know of a job: what to execute, how far it is, how often it died."""

    spec: JobSpec
    launch: Launch
    saved: float = 0.0
    crashes: int = 0
    crash_done: float = -1.0
    current: int = 0
    batch_size: int | None = None
    """The batch size its owner was last known to train at."""
    measured: tuple[float, Placement] | None = None
    """Its speed where that was last measured."""
    profile: GoodputReport | None = None
    profiled_at: Seconds = 0.0
    """What the ring was last told of its goodput, and when."""
    over: bool = False
    end: Outcome | None = None
    """How it ended for good, if it did by itself."""
    gangs: list[Gang] = field(default_factory=list)
    """Incarnations of which something may be left somewhere, the latest last."""
    places: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By incarnation, where it is resized in place: for each rank its node, who started it, and its worker number."""


@dataclass(slots=True)
class _Read:
    """A piece of a log somebody waits for."""

    node: int
    order: LogRead
    answer: "Future[LogAnswer]"


@dataclass(slots=True)
class Machines:
    """Machines with agents on them, as a backend of the ring."""

    topology: Topology
    clock: Clock
    speed: Callable[[JobSpec, Placement], float]
    """How fast a job is expected to go on seats: what it is held to run at until it tells its progress."""
    lease: Seconds = LEASE
    first_retry: Seconds = FIRST_RETRY
    changed: Callable[[], None] = lambda: None
    """Called, with no lock held, whenever orders changed."""
    _bell: Condition = field(default_factory=Condition)
    _events: list[Event] = field(default_factory=list)
    _acks: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    _delivered: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    _ending: list[Gang] = field(default_factory=list)
    _ended: list[Gang] = field(default_factory=list)
    _jobs: list[_Job] = field(default_factory=list)
    _agents: list[_Agent] = field(default_factory=list)
    _releases: dict[JobNumber, Seconds] = field(default_factory=dict)
    _reads: dict[int, _Read] = field(default_factory=dict)
    _read_number: int = 0
    _over: bool = False

    def __post_init__(self) -> None:
        self._agents = [_Agent() for _ in self.topology.nodes]

    # ── the two doors of the ring ─────────────────────────────────────────────────────────────────────────────

    def wait(self, until: Seconds) -> Heard:
        """Sleep until something happens, loud or not, and no later than ``until``."""
        with self._bell:
            while True:
                now = self.clock.now()
                self._tick(now)
                if self._events or self._acks or self._over or now >= until:
                    break
                self._bell.wait(min(until - now, self._next_tick() - now, _LONGEST_SLEEP))
            events, self._events = tuple(self._events), []
            self._delivered += self._acks
            self._ended += self._ending
            over = self._over and not events and not self._acks
            self._acks, self._ending = [], []
            return Heard(now, events, over=over)

    def send(self, commands: Sequence[Command]) -> None:
        """Order it; the agents hear of it as soon as they ask."""
        if not commands:
            return
        with self._bell:
            now = self.clock.now()
            for command in commands:
                self._carry_out(command, now)
                self._advance(command.job, now)
            self._bell.notify_all()
        self.changed()

    def confirmed(self) -> None:
        """What ``wait`` gave last is durable: say so to whoever asked for it, and clear away what ended."""
        with self._bell:
            delivered, self._delivered = self._delivered, []
            ended, self._ended = self._ended, []
            for gang in ended:
                gang.durable = True
                self._advance(gang.job, self.clock.now())
        for future, answer in delivered:
            if not future.cancelled():
                future.set_result(answer)
        if ended:
            self.changed()

    def close(self) -> None:
        """The next wait that finds nothing to tell says that it is over."""
        with self._bell:
            self._over = True
            self._bell.notify_all()

    def abandon(self, error: Exception) -> None:
        """The loop died: whoever waits for an answer is told so."""
        with self._bell:
            waiting = [*self._delivered, *self._acks]
            self._delivered, self._acks = [], []
        for future, _ in waiting:
            if not future.cancelled():
                future.set_exception(error)

    # ── what people ask for ───────────────────────────────────────────────────────────────────────────────────

    def submit(self, jobs: Sequence[tuple[JobSpec, Launch]], answer: Any) -> "Future[Any]":
        """Admit jobs in this order; the answer comes when they are durable."""
        with self._bell:
            now = self.clock.now()
            for spec, launch in jobs:
                self._jobs.append(_Job(spec, launch, batch_size=spec.batch_size))
                self._events.append(JobSubmitted(now, spec, launch))
            return self._acknowledged(answer)

    def cancel(self, job: JobNumber) -> "Future[None]":
        """Withdraw a job and stop what runs of it."""
        with self._bell:
            known = self._jobs[job]
            if not known.over:
                known.over = True
                self._releases.pop(job, None)
                self._events.append(JobCancelled(self.clock.now(), job))
                for gang in known.gangs:
                    gang.stopping = gang.told = True
                    self._ending.append(gang)
                    self._touch(gang)
            future = self._acknowledged(None)
        self.changed()
        return future

    def reshape(self, job: JobNumber, gpus: int, least: int, most: int) -> "Future[None]":
        """Ask for another gang for a job."""
        with self._bell:
            if not self._jobs[job].over:
                self._events.append(JobReshaped(self.clock.now(), job, gpus, least, most))
            return self._acknowledged(None)

    def bid(self, app: str, jobs: tuple[JobNumber, ...], rows: Rows) -> "Future[None]":
        """An app says what GPUs are worth to it."""
        with self._bell:
            self._events.append(AppBid(self.clock.now(), app, jobs, rows))
            return self._acknowledged(None)

    def _acknowledged(self, answer: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._acks.append((future, answer))
        # Nothing may have changed; whoever asked is owed an answer even so, and only a turn of the ring gives one.
        self._bell.notify_all()
        return future

    # ── what agents say ───────────────────────────────────────────────────────────────────────────────────────

    def hello(self, hello: Hello) -> Orders:
        """An agent has started, or was told to introduce itself: what an earlier boot on its node ran is gone."""
        index = self._node(hello.node, hello.protocol)
        node = self.topology.nodes[index]
        if (hello.kind, hello.gpus) != (node.kind, node.gpus):
            given = f"{hello.gpus} x {hello.kind}"
            raise InputError(f"node {node.name}", given, f"this cluster has it with {node.gpus} x {node.kind}")
        with self._bell:
            agent, now = self._agents[index], self.clock.now()
            if agent.boot is not None and agent.boot != hello.boot:
                # It may be a word that comes late from an agent long gone: what is really there the next report tells.
                agent.heard = None
                self._lose_parts(index, now)
            agent.boot, agent.address = hello.boot, hello.address
            agent.answered = now
            if not agent.up:
                agent.up = True
                self._events.append(NodeReturned(now, index))
            orders = self._orders(index)
            self._bell.notify_all()
        self.changed()
        return orders

    def sync(self, report: Report) -> Orders:
        """Take in a report and give the orders that hold now."""
        index = self._node(report.node, report.protocol)
        with self._bell:
            agent, now = self._agents[index], self.clock.now()
            if agent.boot != report.boot or not agent.up:
                raise InputError("boot", report.boot, "not known, or its node counts as lost: say hello first")
            before = len(self._events), agent.generation
            everyone = agent.heard is None
            agent.heard = agent.answered = now
            strays = set()
            for run in report.runs:
                gang = agent.gangs.get((run.job, run.incarnation))
                if gang is not None and not gang.lost(index):
                    gang.hear(index, run)
                    self._measure(gang.latest, now)
                    self._testify(gang.latest, now)
                elif run.phase != "ended" and run.job < len(self._jobs):
                    strays.add(run.job)
            freed, agent.strays = agent.strays - strays, frozenset(strays)
            self._answer(report.logs)
            self._draw_conclusions(index, now, freed, everyone=everyone)
            orders = self._orders(index)
            news = (len(self._events), agent.generation) != before
            if news:
                self._bell.notify_all()
        if news:
            self.changed()
        return orders

    def generation(self, node: str) -> int:
        """Counts up with each change of a node's orders."""
        return self._agents[self._node(node, PROTOCOL)].generation

    def heard(self, node: int) -> Seconds | None:
        """When a node's agent last said something; None if it has not since the control plane started."""
        return self._agents[node].heard

    def _node(self, name: str, protocol: int) -> int:
        if protocol != PROTOCOL:
            raise InputError("protocol", protocol, f"this control plane speaks {PROTOCOL}: use one version of Shoal")
        index = self.topology.node_index.get(name)
        if index is None:
            raise InputError("node", name, nearest(name, self.topology.node_index))
        return index

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read_log(self, node: int, order: LogRead) -> "Future[LogAnswer]":
        """Ask an agent for a piece of a log; the number of the request is this room's to give."""
        answer: Future[LogAnswer] = Future()
        with self._bell:
            self._read_number += 1
            numbered = LogRead(self._read_number, order.id, order.incarnation, order.rank, order.offset, order.most)
            self._reads[self._read_number] = _Read(node, numbered, answer)
            self._agents[node].generation += 1
        self.changed()
        return answer

    def place(self, job: JobNumber, incarnation: int, rank: int) -> tuple[int, int, int] | None:
        """On which node, by which incarnation and as which worker a rank was started that came to others in place."""
        with self._bell:
            ranks = self._jobs[job].places.get(incarnation, ())
            return ranks[rank] if rank < len(ranks) else None

    def forget_read(self, answer: "Future[LogAnswer]") -> None:
        """Nobody waits for it any more."""
        with self._bell:
            self._reads = {n: read for n, read in self._reads.items() if read.answer is not answer}

    def _answer(self, answers: Iterable[LogAnswer]) -> None:
        for given in answers:
            read = self._reads.pop(given.read, None)
            if read is not None and not read.answer.cancelled():
                read.answer.set_result(given)

    # ── gangs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, command: Command, now: Seconds) -> None:
        job = self._jobs[command.job]
        if isinstance(command, Stop):
            for gang in job.gangs:
                if gang.latest.incarnation == command.incarnation and not gang.stopping:
                    gang.stopping = True
                    self._touch(gang)
            return
        if isinstance(command, Resize):
            if self._resized_in_place(command, now):
                return
            for gang in job.gangs:
                # The ring reckons with the next incarnation already: of this one it wants to hear nothing more.
                gang.stopping = gang.told = gang.durable = True
                self._touch(gang)
        if job.current >= command.incarnation:
            return
        # The crash of an incarnation that had a successor by the time it was told holds nobody back.
        self._releases.pop(command.job, None)
        if job.over:
            self._end_again(command, now)
        else:
            self._begin(command, now)

    def _end_again(self, command: Start | Resize, now: Seconds) -> None:
        """While the ring gave it seats the job ended: of the incarnation that ended the ring will not hear any more, so
        it is told the same of the one it now reckons with."""
        job = self._jobs[command.job]
        job.current = command.incarnation
        if job.end is None:  # it was cancelled, which the ring hears of any incarnation
            return
        if job.end.end is End.CRASHED:
            crash = JobCrashed(now, command.job, command.incarnation, job.saved, True, job.end.cause)
            self._events.append(crash)
        else:
            self._events.append(JobCompleted(now, command.job, command.incarnation, job.saved))

    def _resized_in_place(self, command: Resize, now: Seconds) -> bool:
        """Have the job go on with the ranks that can stay where they are, if it is a job for that and some can."""
        job = self._jobs[command.job]
        last = job.gangs[-1] if job.gangs else None
        if last is None or last.lineage is None or job.over or job.current >= command.incarnation:
            return False
        kept = last.kept(command.placement)
        # Ranks that are under way have the batch size and the devices they were started with.
        if not kept or command.batch != last.batch or (command.partner, last.partner) != (None, None):
            return False
        last.told = last.durable = last.banked = True
        # Where its own ranks are not all up they have joined nobody: they are called off.
        last.stopping = not last.started
        self._releases.pop(command.job, None)
        last.lineage.order(kept)
        self._begin(command, now, after=last)
        return True

    def _begin(self, command: Start | Resize, now: Seconds, *, after: Gang | None = None) -> Gang:
        """Take up an incarnation: ``after`` another in place, or from its checkpoint."""
        job = self._jobs[command.job]
        job.current = command.incarnation
        lineage, seats = _workers(command, after) if job.launch.in_place else (None, command.placement.seats)
        gang = Gang(
            command.job,
            command.incarnation,
            job.spec.id,
            job.launch,
            command.placement,
            command.partner,
            base=job.saved,
            pace=Pace(self._expected(job, command.placement), now, job.saved),
            work=job.spec.work,
            batch=command.batch,
            limits=job.spec.limits,
            running_since=now,
            lineage=lineage,
            kin=[] if after is None else after.kin,
            own=seats,
        )
        if after is not None:
            gang.base, gang.done, gang.saved = self._progress(after, End.STOPPED, now), after.done, after.saved
        job.gangs.append(gang)
        for node in gang.parts:
            self._agents[node].gangs[gang.job, gang.incarnation] = gang
        self._touch(gang)
        return gang

    def _expected(self, job: _Job, placement: Placement) -> float:
        """How fast it should go there: as it was measured elsewhere, and by what is known of models between the two."""
        known = self.speed(job.spec, placement)
        if job.measured is None:
            return known
        rate, there = job.measured
        return known * rate / self.speed(job.spec, there)

    def _tell_pace(self, gang: Gang, now: Seconds, rate: float, done: float) -> None:
        """The ring is told this now."""
        gang.pace.told(now, rate, done)
        self._jobs[gang.job].measured = rate, gang.placement

    def _touch(self, gang: Gang) -> None:
        """The orders of its nodes changed."""
        for node in gang.nodes:
            self._agents[node].generation += 1

    def _draw_conclusions(
        self, index: int, now: Seconds, others: Iterable[JobNumber] = (), *, everyone: bool = False
    ) -> None:
        """From what is known of the jobs on a node and of others; of everyone, when a node was awaited."""
        here = [job for job, _ in self._agents[index].gangs]
        every = [number for number, job in enumerate(self._jobs) if job.gangs] if everyone else []
        for job in dict.fromkeys([*here, *others, *every]):
            self._advance(job, now)

    def _advance(self, number: JobNumber, now: Seconds) -> None:
        """Draw every conclusion from what is known of a job's incarnations."""
        job = self._jobs[number]
        for gang in tuple(job.gangs):
            if gang.lineage is not None and gang.latest is gang and not gang.stopping and gang.lineage.mourn():
                self._touch(gang)
            outcome = gang.outcome(self.topology.nodes)
            if outcome is not None:
                self._conclude(gang, outcome, now)
            elif gang.up and not gang.started and not gang.stopping:
                self._started(gang, now)
            if gang.over and gang.told:
                if not gang.banked:
                    job.saved, gang.banked = self._progress(gang, End.STOPPED, now), True
                if gang.durable:
                    self._drop(gang)
        if job.gangs:
            last = job.gangs[-1]
            joins = last.kin[0] is not last
            if not last.going and last.may_go(alone=joins or self._alone(job, last)):
                last.base, last.going = last.base if joins else job.saved, True
                self._touch(last)

    def _alone(self, job: _Job, gang: Gang) -> bool:
        """Whether nothing of an earlier incarnation is left anywhere, so that no job ever runs twice at once.

        After a restart of the control plane that is known only when every node has answered again, or is lost.
        """
        if gang.incarnation == 1:
            return True
        known = all(agent.heard is not None or not agent.up for agent in self._agents)
        strays = any(gang.job in agent.strays for agent in self._agents if agent.up)
        return known and not strays and all(other.over for other in job.gangs if other is not gang)

    def _started(self, gang: Gang, now: Seconds) -> None:
        gang.started, gang.running_since = True, now
        if gang.lineage is not None:
            gang.lineage.welcome(gang.incarnation)
            self._jobs[gang.job].places[gang.incarnation] = gang.lineage.places
            self._touch(gang)
        done = gang.base if gang.done is None else gang.done
        gang.pace.told(now, gang.pace.rate, done)
        self._events.append(JobStarted(now, gang.job, gang.incarnation, gang.pace.rate, done))

    def _measure(self, gang: Gang, now: Seconds) -> None:
        """Tell how fast it is and how far, where that is news."""
        if gang.done is None or not gang.started or gang.stopping:
            return
        rate = gang.pace.hear(now, gang.done)
        if rate is not None:
            self._tell_pace(gang, now, rate, gang.done)
            self._events.append(JobMeasured(now, gang.job, gang.incarnation, rate, gang.done))

    def _testify(self, gang: Gang, now: Seconds) -> None:
        """Tell what the job says of its training, where that is news."""
        said, job = gang.session, self._jobs[gang.job]
        if said is None or not said.rate or not gang.started or gang.stopping:
            return
        done = gang.base if gang.done is None else gang.done
        if said.profile is not None and testimony.credible(said.profile):
            report, known = said.profile, job.profile
            grown = known is None or report.seen_gpus > known.seen_gpus
            if testimony.news(known, report) and (grown or now - job.profiled_at >= EVERY):
                job.profile, job.profiled_at = report, now
                self._tell_pace(gang, now, said.rate, done)
                self._events.append(JobProfiled(now, gang.job, gang.incarnation, said.rate, done, report, loud=grown))
        elif said.batch_size is not None and said.batch_size != job.batch_size and gang.batch != ADAPTIVE:
            before, job.batch_size = job.batch_size, said.batch_size
            if before is not None:
                self._tell_pace(gang, now, said.rate, done)
                changed = BatchChanged(now, gang.job, gang.incarnation, said.rate, done, said.batch_size)
                self._events.append(changed)

    def _conclude(self, gang: Gang, outcome: Outcome, now: Seconds) -> None:
        """Tell the ring how an incarnation ended, and have what is left of it stopped."""
        job = self._jobs[gang.job]
        saved = job.saved = self._progress(gang, outcome.end, now)
        gang.told = gang.banked = True
        self._ending.append(gang)
        for each in gang.kin:
            each.stopping = True
        self._touch(gang)
        work = job.spec.work
        finished = outcome.end is End.STOPPED and work is not None and gang.done is not None and saved >= work
        if finished or outcome.end is End.COMPLETED:
            job.over, job.end = True, outcome
            self._events.append(JobCompleted(now, gang.job, gang.incarnation, saved))
        elif outcome.end is End.STOPPED:
            self._events.append(JobStopped(now, gang.job, gang.incarnation, saved))
        else:
            self._crashed(gang, outcome, saved, now)

    def _crashed(self, gang: Gang, outcome: Outcome, saved: float, now: Seconds) -> None:
        job, blamed, retry = self._jobs[gang.job], outcome.end is End.CRASHED, 0.0
        if blamed:
            job.crashes = 1 if saved > job.crash_done else job.crashes + 1
            job.crash_done = saved
            job.over = job.crashes >= MOST_CRASHES
            job.end = outcome if job.over else None
            retry = 0.0 if job.over else retry_after(job.crashes, self.first_retry)
        if retry:
            self._releases[gang.job] = now + retry
        self._events.append(JobCrashed(now, gang.job, gang.incarnation, saved, blamed, outcome.cause, retry))

    def _progress(self, gang: Gang, end: End, now: Seconds) -> float:
        """How far the job is by what it said; else, if it left in good order, by the time it had."""
        said = gang.saved if gang.saved is not None else gang.done
        ran = gang.pace.rate * max(0.0, now - gang.running_since) if gang.started else 0.0
        if said is not None:
            return said
        if end not in (End.STOPPED, End.COMPLETED) or gang.killed:
            return gang.base
        work = self._jobs[gang.job].spec.work
        return min(gang.base + ran, inf if work is None or end is End.COMPLETED else work)

    def _drop(self, gang: Gang) -> None:
        self._jobs[gang.job].gangs.remove(gang)
        for node in gang.parts:
            self._agents[node].gangs.pop((gang.job, gang.incarnation), None)
        self._touch(gang)

    def _orders(self, index: int) -> Orders:
        agent = self._agents[index]
        asked = (gang.order(index, self._agents[gang.head].address) for gang in agent.gangs.values())
        runs = [order for order in asked if order is not None]
        reads = [read.order for read in self._reads.values() if read.node == index]
        return Orders(protocol=PROTOCOL, generation=agent.generation, lease=self.lease, runs=runs, reads=reads)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _deadline(self, agent: _Agent) -> Seconds:
        """When a node that says nothing counts as lost: by then all that ran there has been killed by its agent."""
        if not agent.up:
            return inf
        graces = [gang.launch.grace for gang in agent.gangs.values()]
        return agent.answered + self.lease + max(graces, default=0.0) + _MARGIN

    def _next_tick(self) -> Seconds:
        return min([*map(self._deadline, self._agents), *self._releases.values()], default=inf)

    def _tick(self, now: Seconds) -> None:
        """What time brings: leases that ran out, jobs that may be tried again."""
        for index, agent in enumerate(self._agents):
            if now >= self._deadline(agent):
                agent.up, agent.strays = False, frozenset()
                self._events.append(NodeLost(now, index))
                self._lose_parts(index, now)
                self._draw_conclusions(index, now, everyone=True)
        for job in [job for job, at in self._releases.items() if now >= at]:
            del self._releases[job]
            self._events.append(JobReleased(now, job))

    def _lose_parts(self, index: int, now: Seconds) -> None:
        agent = self._agents[index]
        agent.generation += 1
        for gang in tuple(agent.gangs.values()):
            gang.lose(index)
            self._advance(gang.job, now)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, recalled: Recalled, down: frozenset[int]) -> None:
        """Take up what a journal says was going on. Nodes it says were up have a lease's time to answer; those the
        ring takes to be up though they never said a word (``down`` are the others) are down until they do."""
        with self._bell:
            now = self.clock.now()
            for index, agent in enumerate(self._agents):
                agent.up, agent.answered = recalled.up.get(index, False), now
                # Above all that an earlier control plane gave: an answer of its that comes late is then seen to be old.
                agent.generation = round(1000 * now) + 1
                if not agent.up and index not in down:
                    self._events.append(NodeLost(now, index))
            self._releases = dict(recalled.releases)
            for past in recalled.jobs:
                progress = past.saved, past.crashes, past.crash_done
                job = _Job(past.spec, past.launch, *progress, over=past.over, batch_size=past.batch_size)
                job.measured = past.measured
                self._jobs.append(job)
                if past.order is not None:
                    gang = self._begin(past.order, now)
                    gang.resumed, gang.started, gang.stopping = True, past.started, past.stopping
                job.current = past.incarnation


def _workers(command: Start | Resize, after: Gang | None) -> tuple[Lineage, Seats]:
    """Who is to train as this incarnation, in place of another or from the beginning, and where it starts ranks."""
    if after is None or after.lineage is None:
        lineage = Lineage(command.incarnation)
        lineage.enlist(command.incarnation, command.placement.seats)
        lineage.order(lineage.workers)
        return lineage, command.placement.seats
    seats = after.lineage.lacking(command.placement, after.lineage.members)
    after.lineage.enlist(command.incarnation, seats)
    return after.lineage, seats
