"""The incarnations of all jobs on all nodes: what the ring ordered and agents reported, and what follows from both.

Bookkeeping only: it is told the time, sends nothing and locks nothing. What follows for the ring is gathered in
``events``, what follows for agents in the orders of their nodes, whose ``generation`` counts up with each change.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.events import (
    BatchChanged,
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
)
from shoal.core.goodput import GoodputReport
from shoal.core.job import ADAPTIVE, JobSpec, Launch
from shoal.core.retry import FIRST_RETRY, NO_CRASHES, Crashes
from shoal.core.topology import Node, Placement
from shoal.core.units import JobNumber, Seconds
from shoal.live import report_filter
from shoal.live.elastic_workers import ElasticWorkers, Seats
from shoal.live.gang import End, Gang, RunEnd
from shoal.live.rate_tracker import EVERY, RateTracker
from shoal.live.recovery import RecoveredRuns
from shoal.wire.messages import RunOrder, RunReport


@dataclass(slots=True)
class AgentStatus:
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
    crashes: Crashes = NO_CRASHES
    current: int = 0
    batch_size: int | None = None
    """The batch size its owner was last known to train at."""
    measured: tuple[float, Placement] | None = None
    """Its speed where that was last measured."""
    profile: GoodputReport | None = None
    profiled_at: Seconds = 0.0
    """What the ring was last told of its goodput, and when."""
    over: bool = False
    end: RunEnd | None = None
    """How it ended for good, if it did by itself."""
    gangs: list[Gang] = field(default_factory=list)
    """Incarnations of which something may be left somewhere, the latest last."""
    places: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By incarnation, where it is resized in place: for each rank its node, who started it, and its worker number."""


@dataclass(slots=True)
class RunRegistry:
    """Every job there ever was, and what nodes have, and should have, of those that are not over."""

    nodes: Sequence[Node]
    speed: Callable[[JobSpec, Placement], float]
    first_retry: Seconds = FIRST_RETRY
    events: list[Event] = field(default_factory=list)
    """What the ring is to hear, in order; whoever tells it empties this."""
    ending: list[Gang] = field(default_factory=list)
    """Incarnations whose end is among ``events``: kept until ``forget`` says that it is durable."""
    agents: list[AgentStatus] = field(default_factory=list)
    releases: dict[JobNumber, Seconds] = field(default_factory=dict)
    """When jobs that crashed are to be tried again."""
    _jobs: list[_Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents = [AgentStatus() for _ in self.nodes]

    # ── what the ring and people want ─────────────────────────────────────────────────────────────────────────

    def submit(self, spec: JobSpec, launch: Launch, now: Seconds) -> None:
        """Take a job in; its number is how many there were before."""
        self._jobs.append(_Job(spec, launch, batch_size=spec.batch_size))
        self.events.append(JobSubmitted(now, spec, launch))

    def cancel(self, number: JobNumber, now: Seconds) -> None:
        """Withdraw a job and stop what runs of it; one that is over stays so."""
        job = self._jobs[number]
        if job.over:
            return
        job.over = True
        self.releases.pop(number, None)
        self.events.append(JobCancelled(now, number))
        for gang in job.gangs:
            gang.stopping = gang.told = True
            self.ending.append(gang)
            self._touch(gang)

    def over(self, job: JobNumber) -> bool:
        """Whether it has ended, or was cancelled."""
        return self._jobs[job].over

    def carry_out(self, command: Command, now: Seconds) -> None:
        """Have it done, as far as it can be now."""
        self._order(command, now)
        self._advance(command.job, now)

    def _order(self, command: Command, now: Seconds) -> None:
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
        self.releases.pop(command.job, None)
        if job.over:
            self._end_again(command, now)
        else:
            self._begin(command, now)

    # ── what agents say, and time brings ──────────────────────────────────────────────────────────────────────

    def hear(self, index: int, runs: Iterable[RunReport], now: Seconds) -> None:
        """Take in all that a node's agent says it runs, and draw every conclusion."""
        agent = self.agents[index]
        awaited = agent.heard is None
        agent.heard = agent.answered = now
        strays = set()
        for run in runs:
            gang = agent.gangs.get((run.job, run.incarnation))
            if gang is not None and not gang.lost(index):
                gang.hear(index, run)
                self._measure(gang.latest, now)
                self._testify(gang.latest, now)
            elif run.phase != "ended" and run.job < len(self._jobs):
                strays.add(run.job)
        freed, agent.strays = agent.strays - strays, frozenset(strays)
        self._draw_conclusions(index, now, freed, everyone=awaited)

    def reboot(self, index: int, now: Seconds) -> None:
        """An agent has taken the place of another on a node: what that ran is gone."""
        # It may be a word that comes late from an agent long gone: what is really there the next report tells.
        self.agents[index].heard = None
        self._lose_parts(index, now)

    def lose(self, index: int, now: Seconds) -> None:
        """A node said nothing for too long: it counts as lost, with all it ran."""
        agent = self.agents[index]
        agent.up, agent.strays = False, frozenset()
        self.events.append(NodeLost(now, index))
        self._lose_parts(index, now)
        self._draw_conclusions(index, now, everyone=True)

    def release(self, now: Seconds) -> None:
        """Let jobs be tried again whose time has come."""
        for job in [job for job, at in self.releases.items() if now >= at]:
            del self.releases[job]
            self.events.append(JobReleased(now, job))

    def forget(self, ended: Iterable[Gang], now: Seconds) -> None:
        """That these ended is durable: what is left of them is cleared away."""
        for gang in ended:
            gang.durable = True
            self._advance(gang.job, now)

    # ── what agents are told, and people ──────────────────────────────────────────────────────────────────────

    def orders(self, index: int) -> list[RunOrder]:
        """All that a node should have."""
        gangs = self.agents[index].gangs.values()
        asked = (gang.order(index, self.agents[gang.head].address) for gang in gangs)
        return [order for order in asked if order is not None]

    def place(self, job: JobNumber, incarnation: int, rank: int) -> tuple[int, int, int] | None:
        """On which node, by which incarnation and as which worker a rank was started that came to others in place."""
        ranks = self._jobs[job].places.get(incarnation, ())
        return ranks[rank] if rank < len(ranks) else None

    # ── gangs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _end_again(self, command: Start | Resize, now: Seconds) -> None:
        """While the ring gave it seats the job ended: of the incarnation that ended the ring will not hear any more, so
        it is told the same of the one it now reckons with."""
        job = self._jobs[command.job]
        job.current = command.incarnation
        if job.end is None:  # it was cancelled, which the ring hears of any incarnation
            return
        if job.end.end is End.CRASHED:
            crash = JobCrashed(now, command.job, command.incarnation, job.saved, True, job.end.cause)
            self.events.append(crash)
        else:
            self.events.append(JobCompleted(now, command.job, command.incarnation, job.saved))

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
        self.releases.pop(command.job, None)
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
            pace=RateTracker(self._expected(job, command.placement), now, job.saved),
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
            self.agents[node].gangs[gang.job, gang.incarnation] = gang
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
            self.agents[node].generation += 1

    def _draw_conclusions(
        self, index: int, now: Seconds, others: Iterable[JobNumber] = (), *, everyone: bool = False
    ) -> None:
        """From what is known of the jobs on a node and of others; of everyone, when a node was awaited."""
        here = [job for job, _ in self.agents[index].gangs]
        every = [number for number, job in enumerate(self._jobs) if job.gangs] if everyone else []
        for job in dict.fromkeys([*here, *others, *every]):
            self._advance(job, now)

    def _advance(self, number: JobNumber, now: Seconds) -> None:
        """Draw every conclusion from what is known of a job's incarnations."""
        job = self._jobs[number]
        for gang in tuple(job.gangs):
            if gang.lineage is not None and gang.latest is gang and not gang.stopping and gang.lineage.mourn():
                self._touch(gang)
            outcome = gang.outcome(self.nodes)
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
        known = all(agent.heard is not None or not agent.up for agent in self.agents)
        strays = any(gang.job in agent.strays for agent in self.agents if agent.up)
        return known and not strays and all(other.over for other in job.gangs if other is not gang)

    def _started(self, gang: Gang, now: Seconds) -> None:
        gang.started, gang.running_since = True, now
        if gang.lineage is not None:
            gang.lineage.welcome(gang.incarnation)
            self._jobs[gang.job].places[gang.incarnation] = gang.lineage.places
            self._touch(gang)
        done = gang.base if gang.done is None else gang.done
        gang.pace.told(now, gang.pace.rate, done)
        self.events.append(JobStarted(now, gang.job, gang.incarnation, gang.pace.rate, done))

    def _measure(self, gang: Gang, now: Seconds) -> None:
        """Tell how fast it is and how far, where that is news."""
        if gang.done is None or not gang.started or gang.stopping:
            return
        rate = gang.pace.hear(now, gang.done)
        if rate is not None:
            self._tell_pace(gang, now, rate, gang.done)
            self.events.append(JobMeasured(now, gang.job, gang.incarnation, rate, gang.done))

    def _testify(self, gang: Gang, now: Seconds) -> None:
        """Tell what the job says of its training, where that is news."""
        said, job = gang.session, self._jobs[gang.job]
        if said is None or not said.rate or not gang.started or gang.stopping:
            return
        done = gang.base if gang.done is None else gang.done
        if said.profile is not None and report_filter.credible(said.profile):
            report, known = said.profile, job.profile
            grown = known is None or report.seen_gpus > known.seen_gpus
            if report_filter.is_news(known, report) and (grown or now - job.profiled_at >= EVERY):
                job.profile, job.profiled_at = report, now
                self._tell_pace(gang, now, said.rate, done)
                self.events.append(JobProfiled(now, gang.job, gang.incarnation, said.rate, done, report, loud=grown))
        elif said.batch_size is not None and said.batch_size != job.batch_size and gang.batch != ADAPTIVE:
            before, job.batch_size = job.batch_size, said.batch_size
            if before is not None:
                self._tell_pace(gang, now, said.rate, done)
                changed = BatchChanged(now, gang.job, gang.incarnation, said.rate, done, said.batch_size)
                self.events.append(changed)

    def _conclude(self, gang: Gang, outcome: RunEnd, now: Seconds) -> None:
        """Tell the ring how an incarnation ended, and have what is left of it stopped."""
        job = self._jobs[gang.job]
        saved = job.saved = self._progress(gang, outcome.end, now)
        gang.told = gang.banked = True
        self.ending.append(gang)
        for each in gang.kin:
            each.stopping = True
        self._touch(gang)
        work = job.spec.work
        finished = outcome.end is End.STOPPED and work is not None and gang.done is not None and saved >= work
        if finished or outcome.end is End.COMPLETED:
            job.over, job.end = True, outcome
            self.events.append(JobCompleted(now, gang.job, gang.incarnation, saved))
        elif outcome.end is End.STOPPED:
            self.events.append(JobStopped(now, gang.job, gang.incarnation, saved))
        else:
            self._crashed(gang, outcome, saved, now)

    def _crashed(self, gang: Gang, outcome: RunEnd, saved: float, now: Seconds) -> None:
        job, blamed = self._jobs[gang.job], outcome.end is End.CRASHED
        job.crashes, failed, retry = job.crashes.after(saved, blamed=blamed, first_retry=self.first_retry)
        if failed:
            job.over, job.end = True, outcome
        if retry:
            self.releases[gang.job] = now + retry
        self.events.append(JobCrashed(now, gang.job, gang.incarnation, saved, blamed, outcome.cause, retry))

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
            self.agents[node].gangs.pop((gang.job, gang.incarnation), None)
        self._touch(gang)

    def _lose_parts(self, index: int, now: Seconds) -> None:
        agent = self.agents[index]
        agent.generation += 1
        for gang in tuple(agent.gangs.values()):
            gang.lose(index)
            self._advance(gang.job, now)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, recalled: RecoveredRuns, down: frozenset[int], now: Seconds) -> None:
        """Take up what a journal says was going on. Nodes it says were up have a lease's time to answer; those the
        ring takes to be up though they never said a word (``down`` are the others) are down until they do."""
        for index, agent in enumerate(self.agents):
            agent.up, agent.answered = recalled.up.get(index, False), now
            # Above all that an earlier control plane gave: an answer of its that comes late is then seen to be old.
            agent.generation = round(1000 * now) + 1
            if not agent.up and index not in down:
                self.events.append(NodeLost(now, index))
        self.releases = dict(recalled.releases)
        for past in recalled.jobs:
            job = _Job(past.spec, past.launch, past.saved, past.crashes, over=past.over, batch_size=past.batch_size)
            job.measured = past.measured
            self._jobs.append(job)
            if past.order is not None:
                gang = self._begin(past.order, now)
                gang.resumed, gang.started, gang.stopping = True, past.started, past.stopping
            job.current = past.incarnation


def _workers(command: Start | Resize, after: Gang | None) -> tuple[ElasticWorkers, Seats]:
    """Who is to train as this incarnation, in place of another or from the beginning, and where it starts ranks."""
    if after is None or after.lineage is None:
        lineage = ElasticWorkers(command.incarnation)
        lineage.enlist(command.incarnation, command.placement.seats)
        lineage.order(lineage.workers)
        return lineage, command.placement.seats
    seats = after.lineage.lacking(command.placement, after.lineage.members)
    after.lineage.enlist(command.incarnation, seats)
    return after.lineage, seats
