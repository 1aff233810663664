"""The simulated cluster: a heap of things to come. Time jumps to the next one that anybody could care about.

The heap's key is (time, priority, sequence): at one moment completions come before crashes before nodes before
arrivals, and everything at one moment is heard as one batch. A world may begin in the middle: see ``standings``.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

import numpy as np

from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.events import (
    BatchChanged,
    Event,
    EventBatch,
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
    NodeReturned,
)
from shoal.core.job import ADAPTIVE, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.topology import Placement
from shoal.core.units import JobId, Seconds
from shoal.sim.batch_tuner import TICK
from shoal.sim.faults import NO_FAULTS, Faults, JobFault, NodeFault, Straggler
from shoal.sim.job_run import JobRun, JobStart
from shoal.sim.measurement import PLAIN, Agents, Habits, TickResult
from shoal.sim.truth import RestartCost, Truth
from shoal.workload.schema import Job

_IDLE_REVIEWS = 1000
"""Reviews in a row with nothing running and nothing to come after which the world is at rest."""


class _What(IntEnum):
    """What a heap entry stands for; the value is its priority at one moment."""

    STARTED = 0
    COMPLETED = 1
    BATCH_CHANGED = 2
    MARKED = 3
    CRASHED = 4
    CRASH_SCRIPTED = 5
    STRAGGLER_ENDED = 6
    STRAGGLED = 7
    STRAGGLER_SCRIPTED = 8
    NODE_RETURNED = 9
    NODE_LOST = 10
    NODE_LOSS_SCRIPTED = 11
    RELEASED = 12
    TICKED = 13


@dataclass(slots=True)
class SimBackend:
    """A world in which ``specs`` arrive when their jobs do, and ``truth`` says what becomes of them.

    With ``standings`` it begins in the middle, at ``now``: the first of the specs have arrived already and stand so.
    Nodes in ``down`` are lost from the start and never return. A job with ``marks``, by id, is measured whenever its
    progress reaches the next one; people may then ``cancel`` jobs and ``submit`` others. ``measuring`` is how far
    agents that choose batch sizes are off in what they measure; ``habits`` is how they choose.
    """

    truth: Truth
    specs: Sequence[JobSpec]
    restart_cost: RestartCost = field(default_factory=RestartCost)
    faults: Faults = NO_FAULTS
    seed: int = 0
    now: Seconds = 0.0
    standings: Sequence[JobStart] = ()
    down: Collection[int] = ()
    marks: Mapping[JobId, Sequence[float]] = field(default_factory=dict)
    measuring: float = 0.0
    habits: Habits = PLAIN
    _heap: list[tuple[Seconds, int, int, int, int]] = field(default_factory=list)
    _sequence: int = 0
    _outbox: list[Event] = field(default_factory=list)
    _runs: list[JobRun] = field(default_factory=list)
    _arrived: int = 0
    _unfinished: int = 0
    _running: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)
    _held_back: int = 0
    _slowdowns: dict[int, dict[int, float]] = field(default_factory=dict)
    _stragglers: int = 0
    _idle: int = 0
    _woken: bool = False
    _chance: np.random.Generator = field(default_factory=np.random.default_rng)
    _agents: Agents = field(init=False)

    def __post_init__(self) -> None:
        self._unfinished = len(self.specs)
        self._chance = np.random.default_rng([self.seed, 2])
        self._agents = Agents(self.truth, self.measuring, np.random.default_rng([self.seed, 4]), self.habits)
        for i, fault in enumerate(self.faults.script):
            self._push(fault.at, _SCRIPTED[type(fault)], i, 0)
        for node in range(len(self.truth.topology.nodes)):
            self._by_chance(self.faults.node_mtbf, 0.0, _What.NODE_LOST, node)
            self._by_chance(self.faults.straggler_mtbf, 0.0, _What.STRAGGLED, node)
        self._arrived = len(self.standings)
        self._runs = [JobRun.of(standing, self.now) for standing in self.standings]
        for job, standing in enumerate(self.standings):
            self._take_up(job, self._runs[job], standing)

    def _take_up(self, job: int, run: JobRun, standing: JobStart) -> None:
        """Go on with a job from where it stands."""
        if run.finished:
            self._unfinished -= 1
            return
        run.script_at = sum(1 for at, _ in self.truth.jobs[job].batch_schedule if at <= run.done)
        if standing.report is not None and run.placement is not None:
            self._agents.adapt(job, run, self.specs[job])
            if run.adapts:
                self._agents.seat(run)
        if standing.state is JobState.HELD:
            self._hold_back(job, max(standing.since, self.now))
        elif standing.state is JobState.STOPPING:
            self._outbox.append(JobStopped(self.now, job, run.incarnation, run.done))
        elif standing.state is JobState.STARTING:
            self._come_up(job, run, standing.since + self._start_cost(job, run.incarnation - 1))
        elif standing.state is JobState.RUNNING:
            self._running.add(job)
            self._tell(self._rerate(job))
            self._await_tick(job, run)

    @property
    def completed(self) -> int:
        """How many jobs are done."""
        return len(self.specs) - self._unfinished

    # ── the two doors ─────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, until: Seconds) -> EventBatch:
        """Jump to the next loud event, or to ``until``."""
        if self._at_rest():
            return EventBatch(self.now, tuple(self._outbox), over=True)
        events = self._outbox  # what happens below may add to it as a side effect: one moment is one batch
        heap, specs = self._heap, self.specs
        loud = any(event.urgent for event in events)
        while not loud:
            arrival = specs[self._arrived].submitted if self._arrived < len(specs) else inf
            at = min(heap[0][0], arrival) if heap else arrival
            if at > until or at == inf:
                self.now = max(self.now, until) if until < inf else self.now
                break
            self.now = at
            while heap and heap[0][0] == at:
                _, what, _, a, b = heapq.heappop(heap)
                loud = _HAPPENINGS[what](self, a, b, events) or loud
            while self._arrived < len(specs) and specs[self._arrived].submitted == at:
                events.append(JobSubmitted(at, specs[self._arrived]))
                self._runs.append(JobRun(batch_size=specs[self._arrived].batch_size))
                self._arrived += 1
                loud = True
        self._outbox = []
        self._woken = loud
        return EventBatch(self.now, tuple(events), over=until == inf and not events and not loud)

    def _at_rest(self) -> bool:
        """Whether every job is done, or nothing has run or come for so long that nothing ever will.

        Reviews while a node is down prove nothing: it will come back.
        """
        if not self._unfinished:
            return True
        if self._running or self._held_back or self._arrived < len(self.specs):
            self._idle = 0
        elif self._woken or not self._lost:
            self._idle += 1
        return self._idle > _IDLE_REVIEWS

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands at once; a command for another incarnation than expected is ignored."""
        for command in commands:
            run = self._runs[command.job]
            if type(command) is Stop:
                if run.placement is not None and run.incarnation == command.incarnation:
                    self._leave(command.job, run)
                    self._outbox.append(JobStopped(self.now, command.job, command.incarnation, run.done))
            elif isinstance(command, Start | Resize) and command.incarnation > run.incarnation and not run.finished:
                self._begin(command, run)

    # ── what people do meanwhile: at once, the event being theirs to pass on ──────────────────────────────────

    def submit(self, spec: JobSpec, job: Job, speed: float, *, resumes: bool = False) -> JobSubmitted:
        """A job comes now; one that resumes from a checkpoint pays for that at its first start as well."""
        at = self._arrived
        self.specs = [*self.specs[:at], spec, *self.specs[at:]]
        self.truth.admit(at, job, speed)
        self._runs.append(JobRun(batch_size=spec.batch_size, resumes=resumes))
        self._arrived += 1
        self._unfinished += 1
        return JobSubmitted(self.now, spec)

    def cancel(self, job: int) -> JobCancelled:
        """A job that has not ended is withdrawn."""
        run = self._runs[job]
        if run.placement is not None:
            self._leave(job, run)
        run.finished = True
        self._unfinished -= 1
        return JobCancelled(self.now, job)

    def vacate(self, node: int, cause: str) -> list[Event]:
        """Whoever sits on a node is told in time: it saves all it has done, and leaves."""
        left: list[Event] = []
        for job in self._on(node):
            run = self._runs[job]
            run.saved = run.progress(self.now)
            left.append(self._crash(job, run, blamed=False, cause=cause))
        return left

    def busy(self) -> dict[int, int]:
        """By node how many GPUs are sat on; those of two jobs that share them count twice."""
        taken: dict[int, int] = {}
        for job in self._running:
            placement = self._runs[job].placement
            for node, count in placement.seats if placement is not None else ():
                taken[node] = taken.get(node, 0) + count
        return taken

    # ── a job's run ───────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, order: Start | Resize, run: JobRun) -> None:
        if run.placement is not None:
            self._leave(order.job, run)
        cost = self._start_cost(order.job, run.incarnation)
        run.incarnation = order.incarnation
        run.placement = order.placement
        run.partner = order.partner
        if order.batch == ADAPTIVE:
            self._agents.adapt(order.job, run, self.specs[order.job])
        elif order.batch is not None or run.adapts:
            run.batch_size = self.specs[order.job].batch_size if order.batch is None else order.batch.size
            run.adapts = False
        if run.adapts:
            self._agents.seat(run)
        run.saved = run.done
        if order.partner is not None:
            self._pair(order.job, order.partner)
        self._come_up(order.job, run, self.now + cost)
        self._crowd(order.placement)
        if self.faults.gpu_mtbf is not None:
            wait = self._chance.exponential(self.faults.gpu_mtbf / order.placement.gpus)
            self._push(self.now + wait, _What.CRASHED, order.job, run.incarnation)

    def _start_cost(self, job: int, incarnation: int) -> Seconds:
        """What a start costs a job after so many incarnations; a first one that resumes costs what others do."""
        again = incarnation > 0 or self._runs[job].resumes
        return self.restart_cost.of(self.truth.jobs[job]) if again else self.restart_cost.first

    def _come_up(self, job: int, run: JobRun, at: Seconds) -> None:
        """Train on the seats just taken from ``at`` on."""
        assert run.placement is not None
        run.began = run.since = max(at, self.now)
        self._running.add(job)
        self._set_rate(job, run)
        if run.rate <= 0.0:
            # Two that do not fit together are each sound: the job is not blamed for the company it was given.
            alone = self._rate(job, run, None) <= 0.0
            cause = "it cannot run on these GPUs" if alone else "it cannot share these GPUs"
            self._outbox.append(self._crash(job, run, blamed=alone, cause=cause))
            return
        if run.since > self.now:
            self._push(run.since, _What.STARTED, job, run.incarnation)
        else:
            self._outbox.append(JobStarted(self.now, job, run.incarnation, run.rate, run.done))
        self._await_tick(job, run)

    def _await_tick(self, job: int, run: JobRun) -> None:
        if run.adapts:
            self._push(max(run.since, self.now) + TICK, _What.TICKED, job, run.incarnation)

    def _leave(self, job: int, run: JobRun) -> None:
        run.done = run.progress(self.now)
        left, run.placement, run.rate = run.placement, None, 0.0
        run.stamp += 1
        self._running.discard(job)
        if left is not None:
            self.truth.crowded.pop(job, None)
            self._crowd(left)
        partner, run.partner = run.partner, None
        if partner is not None and self._runs[partner].partner == job:
            self._runs[partner].partner = None
            self._tell(self._rerate(partner))

    def _crowd(self, changed: Placement) -> None:
        """Seats over several nodes were taken or left: others like that on these nodes are slowed, or no more."""
        speed = self.faults.interference_speed
        if speed == 1.0 or len(changed.seats) == 1:
            return
        for job in sorted({job for node in changed.nodes for job in self._spanning(node)}):
            placement, before = self._runs[job].placement, self.truth.crowded.pop(job, 1.0)
            assert placement is not None
            shared = any(len(self._spanning(node)) > 1 for node in placement.nodes)
            if shared:
                self.truth.crowded[job] = speed
            if shared != (before != 1.0):
                self._tell(self._rerate(job))

    def _spanning(self, node: int) -> list[int]:
        """The jobs with seats on this node and on others."""
        return [j for j in self._on(node) if (p := self._runs[j].placement) is not None and len(p.seats) > 1]

    def _pair(self, job: int, partner: int) -> None:
        other = self._runs[partner]
        if other.placement is not None:
            other.partner = job
            self._tell(self._rerate(partner))

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._outbox.append(event)

    def _company(self, run: JobRun) -> int | None:
        """The job it shares its GPUs with now."""
        return run.partner if run.partner is not None and self._runs[run.partner].placement is not None else None

    def _rate(self, job: int, run: JobRun, partner: int | None) -> float:
        """The real rate on the seats held."""
        assert run.placement is not None
        if run.adapts:
            return self._agents.rate(job, run, partner)
        return self.truth.rate(job, run.placement, run.batch_size, partner)

    def _set_rate(self, job: int, run: JobRun) -> None:
        """Set the rate for the seats held and put what comes next for this job on the heap."""
        partner = self._company(run)
        run.rate = self._rate(job, run, partner)
        run.stamp += 1
        if run.rate <= 0.0:
            return
        truth = self.truth.jobs[job]
        script = () if run.adapts else truth.batch_schedule  # one that adapts is not left to its owner's script
        while run.script_at < len(script) and script[run.script_at][0] <= run.done:
            run.batch_size = script[run.script_at][1]
            run.script_at += 1
            run.rate = self._rate(job, run, partner)
        if run.rate <= 0.0:
            return
        goal, what = truth.work, _What.COMPLETED
        if run.script_at < len(script) and script[run.script_at][0] < goal:
            goal, what = script[run.script_at][0], _What.BATCH_CHANGED
        marks = self.marks.get(truth.id, ()) if self.marks else ()
        if run.marks_at < len(marks) and marks[run.marks_at] < goal:
            goal, what = marks[run.marks_at], _What.MARKED
        # Re-rated at the moment it ends, rounding can put a job a hair past its goal: time must not run back.
        self._push(run.since + max(goal - run.done, 0.0) / run.rate, what, job, run.stamp)

    def _rerate(self, job: int) -> JobMeasured | None:
        """The job's surroundings changed: settle and go on at the new speed."""
        run = self._runs[job]
        if run.placement is None:
            return None
        before = run.rate
        run.done = run.progress(self.now)
        run.since = max(run.since, self.now)
        self._set_rate(job, run)
        if run.since > self.now or run.rate == before:
            return None
        return JobMeasured(self.now, job, run.incarnation, run.rate, run.done)

    def _crash(self, job: int, run: JobRun, *, blamed: bool, cause: str) -> JobCrashed:
        """End the incarnation; what was done since the last checkpoint is lost. A job at fault is held back a while."""
        now, truth = self.now, self.truth.jobs[job]
        lost = (now - run.began) % self.faults.checkpoint_every if now > run.began else 0.0
        kept = max(run.saved, run.progress(now) - run.rate * lost)
        self._leave(job, run)
        run.done = kept
        run.script_at = sum(1 for at, _ in truth.batch_schedule if at <= kept)
        run.batch_size = truth.batch_schedule[run.script_at - 1][1] if run.script_at else truth.batch_size
        run.crashes, _, retry_in = run.crashes.after(kept, blamed=blamed)
        if retry_in:
            self._hold_back(job, now + retry_in)
        return JobCrashed(now, job, run.incarnation, kept, blamed, cause, retry_in)

    def _hold_back(self, job: int, until: Seconds) -> None:
        self._held_back += 1
        self._push(until, _What.RELEASED, job, 0)

    # ── what happens: each takes what the heap entry carried and says whether it is loud ──────────────────────

    def _started(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._runs[job]
        if run.placement is not None and run.incarnation == incarnation:
            events.append(JobStarted(self.now, job, incarnation, run.rate, run.done))
        return False

    def _completed(self, job: int, stamp: int, events: list[Event]) -> bool:
        run = self._runs[job]
        if run.stamp != stamp:
            return False
        self._leave(job, run)
        run.done = self.truth.jobs[job].work
        run.finished = True
        self._unfinished -= 1
        events.append(JobCompleted(self.now, job, run.incarnation, run.done))
        return True

    def _batch_changed(self, job: int, stamp: int, events: list[Event]) -> bool:
        run = self._runs[job]
        if run.stamp != stamp:
            return False
        run.done = self.truth.jobs[job].batch_schedule[run.script_at][0]
        run.since = self.now
        self._set_rate(job, run)
        events.append(BatchChanged(self.now, job, run.incarnation, run.rate, run.done, run.batch_size or 0))
        if run.rate <= 0.0:  # told of the new batch size, a policy can seat it elsewhere; what it did so far is saved
            run.saved = run.done
            events.append(self._crash(job, run, blamed=False, cause="it cannot run with this batch size"))
        return True

    def _marked(self, job: int, stamp: int, events: list[Event]) -> bool:
        run = self._runs[job]
        if run.stamp != stamp:
            return False
        run.done = self.marks[self.truth.jobs[job].id][run.marks_at]
        run.marks_at += 1
        run.since = self.now
        self._set_rate(job, run)
        events.append(JobMeasured(self.now, job, run.incarnation, run.rate, run.done))
        return True  # quiet to the ring, but somebody waits to hear of it

    def _ticked(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._runs[job]
        if run.placement is None or run.incarnation != incarnation:
            return False
        news = self._agents.tick(job, run, self._company(run), self.now)
        if news is not TickResult.NONE:
            run.done = run.progress(self.now)
            run.since = self.now
            self._set_rate(job, run)
        self._await_tick(job, run)
        if news is TickResult.NONE or news is TickResult.PACE or run.tuner is None:
            return False
        loud = news is TickResult.LOUD
        events.append(JobProfiled(self.now, job, incarnation, run.rate, run.done, run.tuner.report(), loud))
        return loud

    def _crashed(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._runs[job]
        if run.placement is None or run.incarnation != incarnation:
            return False
        events.append(self._crash(job, run, blamed=True, cause="it crashed"))
        return True

    def _released(self, job: int, _: int, events: list[Event]) -> bool:
        self._held_back -= 1
        events.append(JobReleased(self.now, job))
        return True

    def _crash_scripted(self, index: int, _: int, events: list[Event]) -> bool:
        fault = self.faults.script[index]
        if not isinstance(fault, JobFault) or fault.job >= len(self._runs):
            return False
        return self._crashed(fault.job, self._runs[fault.job].incarnation, events)

    def _lose(self, node: int, down_for: Seconds, events: list[Event]) -> bool:
        if node in self._lost or node in self.down:
            return False
        self._lost.add(node)
        events.append(NodeLost(self.now, node))
        cause = f"node {self.truth.topology.nodes[node].name} was lost"
        events += [self._crash(job, self._runs[job], blamed=False, cause=cause) for job in self._on(node)]
        self._push(self.now + down_for, _What.NODE_RETURNED, node, 0)
        return True

    def _node_lost(self, node: int, _: int, events: list[Event]) -> bool:
        repair = self.faults.node_repair
        self._by_chance(self.faults.node_mtbf, repair, _What.NODE_LOST, node)
        return self._lose(node, repair, events)

    def _node_loss_scripted(self, index: int, _: int, events: list[Event]) -> bool:
        fault = self.faults.script[index]
        return isinstance(fault, NodeFault) and self._lose(fault.node, fault.down_for, events)

    def _node_returned(self, node: int, _: int, events: list[Event]) -> bool:
        self._lost.discard(node)
        events.append(NodeReturned(self.now, node))
        return True

    def _straggled(self, node: int, _: int, events: list[Event]) -> bool:
        lasts = self.faults.straggler_lasts
        self._by_chance(self.faults.straggler_mtbf, lasts, _What.STRAGGLED, node)
        return self._slow(node, self.faults.straggler_speed, lasts, events)

    def _straggler_scripted(self, index: int, _: int, events: list[Event]) -> bool:
        fault = self.faults.script[index]
        return isinstance(fault, Straggler) and self._slow(fault.node, fault.speed, fault.lasts, events)

    def _slow(self, node: int, speed: float, lasts: Seconds, events: list[Event]) -> bool:
        self._stragglers += 1
        self._slowdowns.setdefault(node, {})[self._stragglers] = speed
        self._push(self.now + lasts, _What.STRAGGLER_ENDED, node, self._stragglers)
        return self._at_speed(node, events)

    def _straggler_ended(self, node: int, straggler: int, events: list[Event]) -> bool:
        del self._slowdowns[node][straggler]
        return self._at_speed(node, events)

    def _at_speed(self, node: int, events: list[Event]) -> bool:
        """Let a node run at the worst of what slows it now."""
        self.truth.node_speed[node] = min(self._slowdowns[node].values(), default=1.0)
        events += [measured for job in self._on(node) if (measured := self._rerate(job))]
        return False

    def _on(self, node: int) -> list[int]:
        """The jobs with a seat on a node, in order of admission."""
        return [j for j in sorted(self._running) if (p := self._runs[j].placement) is not None and node in p.nodes]

    def _by_chance(self, mean: Seconds | None, after: Seconds, what: _What, node: int) -> None:
        """Put the next random fault of a node on the heap."""
        if mean is not None:
            self._push(self.now + after + self._chance.exponential(mean), what, node, 0)

    def _push(self, at: Seconds, what: int, a: int, b: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, what, self._sequence, a, b))


_SCRIPTED = {
    NodeFault: _What.NODE_LOSS_SCRIPTED,
    JobFault: _What.CRASH_SCRIPTED,
    Straggler: _What.STRAGGLER_SCRIPTED,
}

_HAPPENINGS: dict[int, Callable[[SimBackend, int, int, list[Event]], bool]] = {
    _What.STARTED: SimBackend._started,
    _What.COMPLETED: SimBackend._completed,
    _What.BATCH_CHANGED: SimBackend._batch_changed,
    _What.MARKED: SimBackend._marked,
    _What.CRASHED: SimBackend._crashed,
    _What.CRASH_SCRIPTED: SimBackend._crash_scripted,
    _What.STRAGGLER_ENDED: SimBackend._straggler_ended,
    _What.STRAGGLED: SimBackend._straggled,
    _What.STRAGGLER_SCRIPTED: SimBackend._straggler_scripted,
    _What.NODE_RETURNED: SimBackend._node_returned,
    _What.NODE_LOST: SimBackend._node_lost,
    _What.NODE_LOSS_SCRIPTED: SimBackend._node_loss_scripted,
    _What.RELEASED: SimBackend._released,
    _What.TICKED: SimBackend._ticked,
}
