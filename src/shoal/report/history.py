"""The history of a journal's jobs as columns, built in one pass: when each was live, held GPUs, and at what rate.

It counts as ``engine.state`` does: seats are held from the command that gives them to the command or event that ends
them, and events of an earlier incarnation are ignored. Seats held at the journal's end are held until its last event.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, NamedTuple

import numpy as np

from shoal.core import events
from shoal.core.arrays import Flags, Floats, Int64s
from shoal.core.commands import Resume, Start, Stop, Suspend
from shoal.core.errors import JournalError
from shoal.core.goodput import GoodputReport
from shoal.core.job import Conditions, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.topology import Topology
from shoal.core.units import JobId, Seconds, TenantId, span
from shoal.report.node_history import NodeHistory, Seats
from shoal.store.codec import BASE, COMMAND_TAGS, DECISION, EVENT_TAGS, EVENTS, HEADER

_SPEC = {field.name: at for at, field in enumerate(fields(JobSpec))}
_ID, _GPUS, _WORK, _TENANT, _APP = (_SPEC[name] for name in ("id", "gpus", "work", "tenant", "app"))
_MODEL, _BATCH, _KINDS, _DEADLINE = (_SPEC[name] for name in ("model", "batch_size", "kinds", "deadline"))
_CONDITIONS, _HOLD = _SPEC["conditions"], [field.name for field in fields(Conditions)].index("hold")
_REPORT_BATCH = [f.name for f in fields(GoodputReport)].index("batch")
_START, _LEAVES = COMMAND_TAGS[Start], (COMMAND_TAGS[Stop], COMMAND_TAGS[Suspend])
_RESUME = COMMAND_TAGS[Resume]
_HELD, _LIFTED = EVENT_TAGS[events.JobHeld], EVENT_TAGS[events.HoldLifted]
_PRIORITY = EVENT_TAGS[events.PriorityChanged]
_ENDED = -1
"""The incarnation of a job that has ended: it matches no event, so later ones are ignored."""


class JobType(NamedTuple):
    """The properties that a job's speed depends on; shared by many jobs."""

    gpus: int
    model: str | None
    batch_size: int | None
    kinds: tuple[str, ...] | None

    def spec(self) -> JobSpec:
        """A specification with these fields, as performance models take it."""
        gpus, model, batch_size, kinds = self
        return JobSpec("", 0.0, gpus, None, gpus, gpus, model=model, batch_size=batch_size, kinds=kinds)


@dataclass(frozen=True, slots=True)
class Holds:
    """Intervals in which a job held GPUs, in order of begin; ``done`` is its work at the end, NaN if unknown.

    ``lost`` is the work beyond ``done`` that a stop lost.
    """

    job: Int64s
    since: Floats
    until: Floats
    gpus: Int64s
    kind: Int64s
    done: Floats
    lost: Floats

    @property
    def gpu_seconds(self) -> Floats:
        """GPU-seconds of each interval."""
        seconds: Floats = (self.until - self.since) * self.gpus
        return seconds


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates (work per second): the hold, the interval, and the batch size (0 if none)."""

    hold: Int64s
    since: Floats
    until: Floats
    rate: Floats
    batch_size: Int64s


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Intervals in which two jobs shared ``gpus`` GPUs, which the holds count twice."""

    since: Floats
    until: Floats
    gpus: Int64s
    kind: Int64s


@dataclass(frozen=True)
class History:
    """The jobs of a journal, by admission number; times in seconds.

    ``begin`` is the first submission, ``end`` the last event. ``ended`` is when a job completed, failed or was
    cancelled, infinite if it is live; ``work`` its total work if it completed, else the declared one, NaN if none was;
    ``deadline`` is infinite if it has none. ``trajectories`` holds, for jobs whose batch size changed, (work done, new
    batch size) in ascending order of work; ``notes`` the actions of users, operators and limits: times and texts.
    """

    settings: dict[str, Any]
    nodes: NodeHistory
    begin: Seconds
    end: Seconds
    decisions: int
    ids: list[JobId]
    tenants: list[TenantId]
    apps: list[str | None]
    types: list[JobType]
    type: Int64s
    gpus: Int64s
    submitted: Floats
    deadline: Floats
    ended: Floats
    outcome: Int64s
    work: Floats
    trajectories: dict[int, list[tuple[float, int]]]
    notes: dict[int, list[tuple[Seconds, str]]]
    holds: Holds
    rates: Rates
    overlaps: Overlaps
    seats: Seats
    crashed: dict[int, list[Seconds]]
    """By job that ever crashed: when."""
    resumed: dict[int, int] = field(default_factory=dict)
    """By job that was ever suspended: how often it was resumed."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def topology(self) -> Topology:
        """The cluster, with all nodes that it ever had."""
        return self.nodes.topology

    @property
    def live_until(self) -> Floats:
        """By job, the time it ceased to be live, at most ``end``."""
        until: Floats = np.minimum(self.ended, self.end)
        return until

    @property
    def completed(self) -> Flags:
        """Mask of the jobs that did all their work."""
        completed: Flags = self.outcome == JobState.COMPLETED
        return completed


def read_history(records: Iterable[list[Any]]) -> History:
    """The history of raw records, as ``MemoryJournal.raw`` and ``JournalFile.raw`` give them."""
    source = iter(records)
    header = next(source, None)
    if header is None or header[0] != HEADER:
        raise JournalError("a journal must begin with its header")
    fold = _Fold()
    fold.nodes.header(header[2])
    folds = {EVENTS: fold.apply_events, DECISION: fold.apply_decision}
    for number, record in enumerate(source, start=2):
        if record[0] in folds:
            try:
                folds[record[0]](record)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise JournalError(f"record {number} is not one of a journal that this Shoal reads: {error}") from error
        elif record[0] == BASE:
            if not fold.ids:
                raise JournalError(
                    "the journal's first segments were dropped: `shoal acct` lists the jobs that are kept"
                )
        else:  # a restart of the control plane, perhaps on a larger cluster: nodes are only added
            header = record
            fold.nodes.header(record[2])
    return fold.history(header[2])


class _Fold:
    """The columns in progress: one method for each type of event and command."""

    def __init__(self) -> None:
        self.nodes = NodeHistory()
        self.now = 0.0
        self.first = inf
        self.decisions = 0
        self.ids: list[JobId] = []
        self.tenants: list[TenantId] = []
        self.names: dict[TenantId, TenantId] = {}  # one string for all jobs of a tenant
        self.apps: list[str | None] = []
        self.types: dict[JobType, int] = {}
        self.type, self.gpus, self.outcome = array("q"), array("q"), array("q")
        self.submitted, self.ended, self.work, self.deadline = array("d"), array("d"), array("d"), array("d")
        self.incarnation: list[int] = []
        self.batch: list[int] = []
        self.hold: list[int] = []  # the number of the job's latest hold, −1 before its first
        self.crashes: dict[int, Crashes] = {}
        self.resumed: dict[int, int] = {}
        self.crashed_at: dict[int, list[Seconds]] = {}
        self.seat_hold, self.seat_node, self.seat_gpus = array("q"), array("q"), array("q")
        self.trajectories: dict[int, list[tuple[float, int]]] = {}
        self.notes: dict[int, list[tuple[Seconds, str]]] = {}
        self.job, self.held, self.kind = array("q"), array("q"), array("q")
        self.since, self.until, self.done, self.lost = array("d"), array("d"), array("d"), array("d")
        self.rate_hold, self.rate_batch = array("q"), array("q")
        self.rate_at, self.rate = array("d"), array("d")
        self.paired: dict[int, tuple[int, Seconds]] = {}
        self.overlaps: list[tuple[Seconds, Seconds, int, int]] = []
        handlers: dict[type, Callable[[list[Any]], None]] = {
            events.JobSubmitted: self._submitted,
            events.JobStarted: self._measured,
            events.JobMeasured: self._measured,
            events.BatchChanged: self._batch_changed,
            events.JobProfiled: self._profiled,
            events.JobStopped: self._stopped,
            events.JobCompleted: self._completed,
            events.JobCrashed: self._crashed,
            events.JobCancelled: self._cancelled,
            events.JobReshaped: self._reshaped,
            events.JobHeld: self._noted,
            events.HoldLifted: self._noted,
            events.PriorityChanged: self._noted,
            events.JobRequeued: self._requeued,
            events.TimeLimitReached: self._timed_out,
            events.NodeJoined: self.nodes.joined,
            events.NodeRemoved: self.nodes.removed,
        }
        self.handlers = [handlers.get(cls, self._ignored) for cls in EVENT_TAGS]

    def apply_events(self, record: list[Any]) -> None:
        handlers = self.handlers
        for event in record[2]:
            handlers[event[0]](event)
        self.now = record[1]

    def apply_decision(self, record: list[Any]) -> None:
        self.decisions += 1
        commands = record[3]
        for command in commands:  # all seats are freed before any is taken: jobs may swap
            if command[0] != _START:
                self._close(command[1], self.now)
        for command in commands:
            if command[0] not in _LEAVES:
                self._open(command)

    def _open(self, command: list[Any]) -> None:
        tag, job, incarnation, seats, *more = command
        if tag == _RESUME:
            self.resumed[job] = self.resumed.get(job, 0) + 1
        batch, partner = more or (None, None)  # a run that is resumed has neither
        number = len(self.job)
        self.job.append(job)
        self.since.append(self.now)
        self.until.append(inf)
        self.held.append(seats[0][1] if len(seats) == 1 else sum(count for _, count in seats))
        for node, count in seats:
            self.seat_hold.append(number)
            self.seat_node.append(node)
            self.seat_gpus.append(count)
        self.kind.append(self.nodes.topology.node_kind[seats[0][0]])
        self.done.append(np.nan)
        self.lost.append(0.0)
        self.hold[job] = number
        self.incarnation[job] = incarnation
        if batch is not None and batch[0]:  # 0: the job's agent chooses and reports it
            self.batch[job] = batch[0]
        if partner is not None:
            self._pair(job, partner)

    def _pair(self, job: int, partner: int) -> None:
        mine, other = self.hold[job], self.hold[partner]
        same = other >= 0 and self.until[other] == inf and self.held[other] == self.held[mine]
        if same and self.kind[other] == self.kind[mine]:
            self.paired[job], self.paired[partner] = (partner, self.now), (job, self.now)

    def _close(self, job: int, at: Seconds) -> None:
        hold = self.hold[job]
        if hold < 0 or self.until[hold] != inf:
            return
        self.until[hold] = at
        if self.paired and job in self.paired:
            partner, since = self.paired.pop(job)
            self.paired.pop(partner, None)
            self.overlaps.append((since, at, self.held[hold], self.kind[hold]))

    def _submitted(self, event: list[Any]) -> None:
        at, spec = event[1], event[2]
        self.first = min(self.first, at)
        self.ids.append(spec[_ID])
        self.tenants.append(self.names.setdefault(spec[_TENANT], spec[_TENANT]))
        self.apps.append(spec[_APP])
        kind = JobType(spec[_GPUS], spec[_MODEL], spec[_BATCH], spec[_KINDS] and tuple(spec[_KINDS]))
        self.type.append(self.types.setdefault(kind, len(self.types)))
        self.gpus.append(spec[_GPUS])
        self.outcome.append(JobState.PENDING)
        self.submitted.append(at)
        self.deadline.append(inf if spec[_DEADLINE] is None else spec[_DEADLINE])
        self.ended.append(inf)
        self.work.append(np.nan if spec[_WORK] is None else spec[_WORK])
        self.incarnation.append(0)
        self.batch.append(spec[_BATCH] or 0)
        self.hold.append(-1)
        conditions = spec[_CONDITIONS] if len(spec) > _CONDITIONS else None
        if conditions is not None and conditions[_HOLD]:
            self.notes[len(self.ids) - 1] = [(at, f"held by {spec[_TENANT]}")]

    def _measured(self, event: list[Any]) -> None:
        job = event[2]
        if event[3] == self.incarnation[job]:
            self.rate_hold.append(self.hold[job])
            self.rate_at.append(event[1])
            self.rate.append(event[4])
            self.rate_batch.append(self.batch[job])

    def _batch_changed(self, event: list[Any]) -> None:
        _, _, job, incarnation, _, done, size = event
        if incarnation == self.incarnation[job]:
            self.batch[job] = size
            # A crash may set a job back behind a change, which then happens again.
            kept = [change for change in self.trajectories.get(job, ()) if change[0] < done]
            self.trajectories[job] = [*kept, (done, size)]
            self._measured(event)

    def _profiled(self, event: list[Any]) -> None:
        if event[3] == self.incarnation[event[2]]:
            self.batch[event[2]] = event[6][_REPORT_BATCH][0]
            self._measured(event)

    def _stopped(self, event: list[Any]) -> None:
        if event[3] == self.incarnation[event[2]]:
            self.done[self.hold[event[2]]] = event[4]
            self.lost[self.hold[event[2]]] = event[5] if len(event) > 5 else 0.0  # older versions did not record it

    def _completed(self, event: list[Any]) -> None:
        _, at, job, incarnation, done = event
        if incarnation == self.incarnation[job]:
            self.work[job] = done
            self._end(job, at, JobState.COMPLETED)

    def _crashed(self, event: list[Any]) -> None:
        _, at, job, incarnation, done, blamed, _, _, *later = event
        if incarnation != self.incarnation[job]:
            return
        self.done[self.hold[job]] = done
        self.crashed_at.setdefault(job, []).append(at)
        ran, failed_on, last = (*later, None, None, None)[:3]  # journals of older versions lack them
        crashes = self.crashes.get(job, NO_CRASHES)
        self.crashes[job], failed, _ = crashes.fold_fields(done, blamed, ran, failed_on, last)
        if failed:
            self._end(job, at, JobState.FAILED)
        else:
            self._close(job, at)

    def _cancelled(self, event: list[Any]) -> None:
        if self.incarnation[event[2]] != _ENDED:
            cause, failed = event[3:] or ("", False)  # journals of older versions lack them
            if cause:
                self._noted(event, f"cancelled: {cause}")
            self._end(event[2], event[1], JobState.FAILED if failed else JobState.CANCELLED)

    def _reshaped(self, event: list[Any]) -> None:
        self.gpus[event[2]] = event[3]

    def _noted(self, event: list[Any], text: str = "") -> None:
        words = {_HELD: "held by {0}", _LIFTED: "released by {0}", _PRIORITY: "priority set to {0} by {1}"}
        self.notes.setdefault(event[2], []).append((event[1], text or words[event[0]].format(*event[3:])))

    def _requeued(self, event: list[Any]) -> None:
        _, at, job, incarnation, by = event
        if incarnation == self.incarnation[job]:
            self._noted(event, f"put back into the queue by {by}")
            self._close(job, at)

    def _timed_out(self, event: list[Any]) -> None:
        self._noted(event, f"time limit of {span(event[3])} reached")

    def _ignored(self, event: list[Any]) -> None:
        """Do nothing: the event changes no column. Each job on a lost node has events of its own."""

    def _end(self, job: int, at: Seconds, outcome: JobState) -> None:
        self._close(job, at)
        self.ended[job] = at
        self.outcome[job] = outcome
        self.incarnation[job] = _ENDED

    def history(self, settings: dict[str, Any]) -> History:
        for job in list(self.paired):
            self._close(job, self.now)
        until = np.minimum(_floats(self.until), self.now)
        holds = Holds(
            _ints(self.job),
            _floats(self.since),
            until,
            _ints(self.held),
            _ints(self.kind),
            _floats(self.done),
            _floats(self.lost),
        )
        overlaps = np.array(self.overlaps, dtype=np.float64).reshape(-1, 4).T
        return History(
            settings=settings,
            nodes=self.nodes,
            begin=self.first if self.ids else self.now,
            end=self.now,
            decisions=self.decisions,
            ids=self.ids,
            tenants=self.tenants,
            apps=self.apps,
            types=list(self.types),
            type=_ints(self.type),
            gpus=_ints(self.gpus),
            submitted=_floats(self.submitted),
            deadline=_floats(self.deadline),
            ended=_floats(self.ended),
            outcome=_ints(self.outcome),
            work=_floats(self.work),
            trajectories=self.trajectories,
            notes=self.notes,
            resumed=self.resumed,
            crashed=self.crashed_at,
            seats=Seats(_ints(self.seat_hold), _ints(self.seat_node), _ints(self.seat_gpus)),
            holds=holds,
            rates=self._rates(until),
            overlaps=Overlaps(overlaps[0], overlaps[1], overlaps[2].astype(np.int64), overlaps[3].astype(np.int64)),
        )

    def _rates(self, until: Floats) -> Rates:
        """A rate lasts until the next one measured in the same hold, or until the hold's end."""
        hold, at = _ints(self.rate_hold), _floats(self.rate_at)
        order = np.argsort(hold, kind="stable")
        hold, at = hold[order], at[order]
        ends = until[hold]
        same = hold[1:] == hold[:-1]
        ends[:-1][same] = at[1:][same]
        return Rates(hold, at, np.maximum(ends, at), _floats(self.rate)[order], _ints(self.rate_batch)[order])


def _floats(values: "array[float]") -> Floats:
    return np.frombuffer(values, dtype=np.float64) if values else np.zeros(0)


def _ints(values: "array[int]") -> Int64s:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)
