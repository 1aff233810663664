"""Accounts of all jobs, for views and metrics: a fold over the same events and commands as the state of the ring.

No decision depends on them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from operator import attrgetter
from typing import TypeAlias

from shoal.core import events
from shoal.core.commands import Command, Decided, Resize, Resume, Stop, Suspend
from shoal.core.job import JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.node_events import nodes_after
from shoal.core.quota import NO_QUOTA, Quota
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.topology import Node, Placement
from shoal.core.units import JobId, JobNumber, Seconds, TenantId, span
from shoal.live.crash_words import counted, why_last
from shoal.live.decision_log import DecisionLog, Move
from shoal.live.job_changes import JobChanges
from shoal.live.recovery import NO_LAUNCH, RecoveredRuns
from shoal.live.seat_history import SeatSpan, add_spans
from shoal.store.codec import Header, Record

_Request: TypeAlias = (
    events.JobCancelled
    | events.CancelRequested
    | events.TimeLimitReached
    | events.JobReleased
    | events.JobReshaped
    | events.JobSetAside
    | events.JobHeld
    | events.HoldLifted
    | events.PriorityChanged
)


@dataclass(slots=True)
class Account:
    """One job. Times are seconds since the journal began; ``done`` and ``rate`` are in the unit of its work."""

    number: JobNumber
    spec: JobSpec
    launch: Launch
    submitted: Seconds
    state: JobState = JobState.PENDING
    started: Seconds | None = None
    ended: Seconds | None = None
    incarnation: int = 0
    placement: Placement | None = None
    placed_at: Seconds = 0.0
    gpu_seconds: float = 0.0
    """GPU-seconds of earlier placements; ``used`` adds those of the present one."""
    starts: int = 0
    crashes: Crashes = NO_CRASHES
    cause: str = ""
    held_after: str = ""
    """Why it is held back, such as "crashed 2 times in a row", or why a failed job is not tried again."""
    held_until: Seconds = inf
    held_by: str = ""
    """The person who holds it, since ``held_since``; empty if none does."""
    held_since: Seconds = 0.0
    held_by_admin: bool = False
    rate: float = 0.0
    done: float = 0.0
    done_at: Seconds = 0.0
    placements: dict[int, Placement] = field(default_factory=dict)
    """The placement of each incarnation, for finding its logs."""
    history: list[tuple[Seconds, str]] = field(default_factory=list)
    """Its history: times and sentences."""
    partner: JobNumber | None = None
    """The job that it shares its GPUs with, as of its last start or resize."""
    ends_by: Seconds | None = None
    """When the grace of its run has passed, if it was cancelled while it ran."""
    lost_gpu_seconds: float = 0.0
    """GPU-seconds whose work was lost, in crashes and stops."""
    last_run: tuple[float, int, Seconds] = (0.0, 0, 0.0)
    """Of the placement it last left: its rate, its GPUs, and the seconds for which it was held."""
    saved_at: Seconds | None = None
    """When it last saved; None if it never did."""
    saves_when_warned: bool = False
    bound: Placement | None = None
    """The seats on which it can be resumed, if it is suspended."""
    suspended_at: Seconds = 0.0
    """When it was last suspended."""
    exit_status: int | None = None
    """The status of its last run that ended by itself: 0, or that of the rank that failed first."""
    limit_at: Seconds = inf
    """When its present run reaches its time limit; infinity if it has none."""
    links: tuple[str, ...] = ()
    """The runs in trackers of experiments that its trainer library last reported."""

    def __copy__(self) -> "Account":
        """Return a copy that shares the histories; lists copy a hundred accounts under the control plane's lock."""
        return Account(*_values(self))

    @property
    def live(self) -> bool:
        """Whether the job has not ended."""
        return self.state.live

    def progress(self, now: Seconds) -> float:
        """Return the work done by ``now``, extrapolated at the last rate."""
        return self.done + self.rate * max(0.0, now - self.done_at)

    def stop_cost(self, now: Seconds) -> str:
        """Return a sentence part on the work that a stop of the running job would lose; empty if it does not run."""
        if self.placement is None or self.state is JobState.STOPPING:
            return ""
        if self.spec.preemptible == "no":
            return "its owner declared that it must not be stopped to make room"
        if self.spec.preemptible == "yes" or self.saves_when_warned:
            return ""
        unsaved = f"{span(max(0.0, now - max(self.placed_at, self.saved_at or 0.0)))} of its run"
        if self.saved_at is None:
            return f"it has not saved yet and is not stopped to make room, which would lose {unsaved}"
        return f"a stop would lose the last {unsaved}"

    def time_left(self, now: Seconds) -> Seconds:
        """Return the seconds until its run reaches its time limit, infinity if it has none."""
        return max(0.0, self.limit_at - now)

    def used(self, now: Seconds) -> float:
        """Return the GPU-seconds held until ``now``."""
        return self.gpu_seconds + (self.placement.gpus * (now - self.placed_at) if self.placement else 0.0)


_values = attrgetter(*(f.name for f in fields(Account)))


@dataclass(slots=True)
class Accounts:
    """The live jobs and those that ended lately, by admission number, and totals over all jobs ever submitted.

    ``runs`` folds the same records for the backend of a restarted control plane.
    """

    nodes: Sequence[Node]
    accounts: dict[JobNumber, Account] = field(default_factory=dict)
    numbers: dict[JobId, JobNumber] = field(default_factory=dict)
    keys: dict[tuple[TenantId, str], JobId] = field(default_factory=dict)
    live: dict[JobNumber, Account] = field(default_factory=dict)
    placed: dict[JobNumber, Account] = field(default_factory=dict)
    """The live jobs that hold GPUs."""
    ended_gpu_seconds: dict[TenantId, float] = field(default_factory=dict)
    """GPU-seconds of ended jobs, by tenant."""
    lost_gpu_seconds: float = 0.0
    """GPU-seconds of work that was lost in crashes and stops."""
    restarts: int = 0
    crashes: int = 0
    completed: int = 0
    submitted: int = 0
    runs: RecoveredRuns = field(default_factory=RecoveredRuns)
    quotas: dict[TenantId, Quota] = field(default_factory=dict)
    past_seats: list[SeatSpan] = field(default_factory=list)
    now: Seconds = 0.0
    """The time of the last events folded by ``fold``."""
    changes: JobChanges = field(default_factory=JobChanges)
    decisions: DecisionLog = field(default_factory=DecisionLog)

    def fold(self, record: Record) -> None:
        """Fold one record of a journal."""
        if isinstance(record, events.EventBatch):
            self.now = record.now
            self.apply_events(record.events)
        elif isinstance(record, Decided):
            self.apply_commands(self.now, record.commands)
        elif isinstance(record, Header) and "away" in record.settings:
            self.leave_out(*record.settings["away"])

    def leave_out(self, begin: Seconds, end: Seconds) -> None:
        """Charge no job for the time from ``begin`` to ``end``, in which the control plane was away.

        No record says which jobs ran then, and a clock that was set ahead makes it longer than it was. No effect if
        events after ``begin`` are folded already: each segment repeats the header of its control plane.
        """
        if self.now > begin:
            return
        for account in self.live.values():
            if account.placement is not None:
                account.placed_at += end - begin
            elif account.bound is not None:  # it may turn out not to have left its GPUs
                account.suspended_at += end - begin
        self.now = end

    def apply_events(self, new: Iterable[events.Event]) -> None:
        """Fold events; those of an earlier incarnation, or of a job that has ended, change nothing."""
        new = tuple(new)
        self.nodes = nodes_after(self.nodes, new)
        self.runs.apply_events(new)
        for event in new:
            if isinstance(event, events.JobSubmitted):
                self._submitted(event)
            elif isinstance(event, events.QuotaSet):
                self.quotas.pop(event.tenant, None)
                if event.quota != NO_QUOTA:
                    self.quotas[event.tenant] = event.quota
            elif isinstance(event, _Request):
                if event.job in self.live:
                    self._changed(self.live[event.job])
                    self._requested(self.live[event.job], event)
            elif isinstance(event, events.RunEvent):
                account = self.live.get(event.job)
                if account is not None and event.incarnation == account.incarnation:
                    self._changed(account)
                    self._ran(account, event)

    def apply_commands(self, now: Seconds, commands: Iterable[Command]) -> None:
        """Fold commands given at ``now``."""
        commands = tuple(commands)
        self.runs.apply_commands(commands)
        self.decisions.note(now, map(self._move, commands))
        for command in commands:
            account = self.accounts[command.job]
            self._changed(account)
            if isinstance(command, Suspend | Resume):
                self._turn(account, now, command)
                continue
            self._leave_seats(account, now)
            if isinstance(command, Stop):
                account.state = JobState.STOPPING
                account.history.append((now, "warned to save and stop"))
                continue
            account.state = JobState.STARTING
            account.incarnation, account.partner, account.bound = command.incarnation, command.partner, None
            self._take_seats(account, command.placement, now)
            account.placements[command.incarnation] = command.placement
            account.started = now if account.started is None else account.started
            where = f"on {self._seats(command.placement)} as run {command.incarnation}"
            if isinstance(command, Resize) and account.launch.in_place:
                account.history.append((now, f"resized in place, {where}"))
                continue
            self.restarts += account.starts > 0
            account.starts += 1
            account.history.append((now, f"seated {where}"))

    def _move(self, command: Command) -> Move:
        spec = self.accounts[command.job].spec
        return type(command).__name__.lower(), spec.id, spec.tenant

    def _turn(self, account: Account, now: Seconds, command: Suspend | Resume) -> None:
        if isinstance(command, Suspend):
            account.bound, account.suspended_at = account.placement, now
            self._leave_seats(account, now)
            account.state = JobState.SUSPENDED
            account.history.append((now, "to be suspended in place, losing nothing"))
        else:
            account.state = JobState.STARTING
            self._take_seats(account, command.placement, now)
            account.history.append((now, f"to be resumed on {self._seats(command.placement)}"))

    def _turned(self, account: Account, event: events.JobSuspended | events.JobResumed) -> None:
        took = f" in {event.seconds:,.1f} s" if event.seconds else ""
        if isinstance(event, events.JobResumed):
            if event.cause and account.placement is None and account.bound is not None:  # it never left its seats
                if not self._free(account.bound):  # the ring has given them away: it counts as suspended until resumed
                    return
                self._take_seats(account, account.bound, account.suspended_at)
            what = f"could not be suspended: {event.cause}" if event.cause else f"resumed{took}"
            account.state, account.bound, account.rate = JobState.RUNNING, None, event.rate
            account.limit_at = self.runs.limits.get(account.number, inf)
        else:
            self._leave_seats(account, event.at)
            account.state = JobState.SUSPENDED
            size = f"; holds {event.bytes / 1e9:,.1f} GB of host memory" if event.bytes else ""
            what = f"not resumed yet: {event.cause}" if event.cause else f"suspended{took}{size}"
        account.done, account.done_at = event.done, event.at
        account.history.append((event.at, what))

    def _changed(self, account: Account) -> None:
        self.changes.note(account.number, account.spec.id, account.spec.tenant)

    def _seats(self, placement: Placement) -> str:
        return ", ".join(f"{self.nodes[node].name} ({count} GPU{'s' * (count > 1)})" for node, count in placement.seats)

    def _submitted(self, event: events.JobSubmitted) -> None:
        number, spec, launch = self.submitted, event.spec, event.launch or NO_LAUNCH
        account = Account(number, spec, launch, event.at, history=[(event.at, f"submitted by {spec.tenant}")])
        if spec.conditions is not None and spec.waits:
            account.state = JobState.HELD
            account.held_until = inf if spec.conditions.begin is None else spec.conditions.begin
            if spec.conditions.hold:
                account.held_by, account.held_since = spec.tenant, event.at
        self.submitted += 1
        self.accounts[number] = self.live[number] = account
        self._changed(account)
        self.numbers[spec.id] = number
        if launch.key:
            self.keys[spec.tenant, launch.key] = spec.id

    def code_in_use(self) -> set[tuple[TenantId, str]]:
        """Return the tenants and digests of the code of live jobs; may be called from any thread."""
        live = [*self.live.values()]
        return {(account.spec.tenant, account.launch.code) for account in live if account.launch.code is not None}

    def ended(self) -> list[Account]:
        """Return the jobs that have ended, in order of admission."""
        return [account for account in self.accounts.values() if not account.live]

    def forget(self, ended: Iterable[Account]) -> None:
        """Drop jobs that have ended; the totals stay."""
        for account in ended:
            self.accounts.pop(account.number, None)
            self.numbers.pop(account.spec.id, None)
            self.keys.pop((account.spec.tenant, account.launch.key), None)

    def _requested(self, account: Account, event: _Request) -> None:
        if isinstance(event, events.JobCancelled):
            self._cancelled(account, event)
        elif isinstance(event, events.CancelRequested | events.TimeLimitReached):
            self._to_end(account, event)
        elif isinstance(event, events.JobReleased):
            if account.state is JobState.HELD:
                account.state, account.held_until = JobState.PENDING, inf
                account.history.append((event.at, "may be tried again" if account.starts else "may start"))
        elif isinstance(event, events.JobHeld):
            account.held_by, account.held_since, account.held_by_admin = event.by, event.at, event.admin
            account.state = JobState.HELD if account.state is JobState.PENDING else account.state
            account.history.append((event.at, f"held by {event.by}"))
        elif isinstance(event, events.HoldLifted):
            account.held_by, account.held_by_admin = "", False
            account.history.append((event.at, f"released by {event.by}"))
        elif isinstance(event, events.PriorityChanged):
            account.spec = replace(account.spec, priority=event.priority)
            account.history.append((event.at, f"priority set to {event.priority:,} by {event.by}"))
        elif isinstance(event, events.JobSetAside):
            account.history.append((event.at, f"set aside: {event.reason}"))
        else:
            gpus, least, most = event.gpus, event.min_gpus, event.max_gpus
            account.spec = replace(account.spec, gpus=gpus, min_gpus=least, max_gpus=most)
            account.history.append((event.at, f"asked to run on {gpus} GPUs (at least {least}, at most {most})"))

    def _cancelled(self, account: Account, event: events.JobCancelled) -> None:
        if not event.failed:  # else the cause is known since it reached its time limit
            account.cause = event.cause or "cancelled"
        what = ": ".join(filter(None, ("cancelled", event.cause)))
        if account.ends_by is not None:
            what = "ended, after it reached its time limit" if event.failed else "ended, after it was cancelled"
        self._end(account, JobState.FAILED if event.failed else JobState.CANCELLED, event.at, what)

    def _to_end(self, account: Account, event: events.CancelRequested | events.TimeLimitReached) -> None:
        if isinstance(event, events.TimeLimitReached):
            account.cause, account.held_after = f"time limit of {span(event.limit)} reached", ""
        elif account.state is not JobState.CANCELLING:
            account.cause = "cancelled"
        account.state, account.ends_by, account.held_until = JobState.CANCELLING, event.ends_by, inf
        how = "warned to save and stop" if event.ends_by > event.at else "killed"
        account.history.append((event.at, f"{account.cause}; {how}"))

    def _ran(self, account: Account, event: events.RunEvent) -> None:
        if isinstance(event, events.JobSuspended | events.JobResumed):
            self._turned(account, event)
        elif isinstance(event, events.JobCrashed):
            self._crashed(account, event)
        elif isinstance(event, events.JobCompleted):
            self.completed += 1
            account.done, account.done_at, account.cause, account.exit_status = event.done, event.at, "", 0
            self._end(account, JobState.COMPLETED, event.at, "completed")
        elif isinstance(event, events.JobStopped):
            lost = self._lose(account, event.lost)
            account.state = JobState.HELD if account.held_by else JobState.PENDING
            account.done, account.done_at, account.rate, account.bound = event.done, event.at, 0.0, None
            account.history.append((event.at, f"stopped; {event.done:,.6g} done and saved{lost}"))
        elif isinstance(event, events.JobSaved):
            account.saved_at = event.at - event.age
            account.saves_when_warned = account.saves_when_warned or event.when_warned
        elif isinstance(event, events.JobRequeued):
            self._leave_seats(account, event.at)
            account.state = JobState.STOPPING
            account.history.append((event.at, f"put back into the queue by {event.by}: warned to save and stop"))
        else:
            account.rate, account.done, account.done_at = event.rate, event.done, event.at
            if isinstance(event, events.JobStarted):
                account.state = JobState.RUNNING
                account.limit_at = self.runs.limits.get(account.number, inf)
                account.history.append((event.at, "all ranks are up"))

    def _crashed(self, account: Account, event: events.JobCrashed) -> None:
        self._leave_seats(account, event.at)
        lost = self._lose(account, account.done - event.done)
        self.crashes += 1
        account.cause, account.done, account.done_at = event.cause, event.done, event.at
        account.exit_status = event.status
        account.crashes, failed, _ = account.crashes.fold(event)
        what = f"crashed: {event.cause}" if event.failed_on is None else f"could not start: {event.cause}"
        account.held_after = counted(account.crashes, event)
        if failed:
            account.held_after = why_last(account, event)
            self._end(account, JobState.FAILED, event.at, f"{what}; {account.held_after}")
            return
        what += lost
        account.state, account.rate = JobState.HELD if account.held_by else JobState.PENDING, 0.0
        account.bound = None
        if event.retry_in > 0:
            account.state, account.held_until = JobState.HELD, event.at + event.retry_in
            what = f"{what}; to be tried again in {span(event.retry_in)}"
        account.history.append((event.at, what))

    def _lose(self, account: Account, progress: float) -> str:
        """Count progress that a job's last run has lost; return a part of a sentence on it."""
        rate, gpus, held = account.last_run
        lost = min(max(0.0, progress) / rate, held) if rate > 0 else 0.0
        account.lost_gpu_seconds += gpus * lost
        self.lost_gpu_seconds += gpus * lost
        return f"; the last {span(lost)} of its run are lost" if lost >= 1 else ""

    def _end(self, account: Account, state: JobState, at: Seconds, what: str) -> None:
        self._leave_seats(account, at)
        account.state, account.ended, account.rate, account.held_until = state, at, 0.0, inf
        account.bound = None
        account.history.append((at, what))
        self.live.pop(account.number, None)
        tenant = account.spec.tenant
        self.ended_gpu_seconds[tenant] = self.ended_gpu_seconds.get(tenant, 0.0) + account.gpu_seconds

    def _free(self, placement: Placement) -> bool:
        """Return whether no job holds these seats; those that two jobs share count once."""
        used: Counter[int] = Counter()
        for other in self.placed.values():
            if other.placement is not None and not (other.partner in self.placed and other.partner < other.number):
                used.update(dict(other.placement.seats))
        return all(used[node] + count <= self.nodes[node].gpus for node, count in placement.seats)

    def _take_seats(self, account: Account, placement: Placement, at: Seconds) -> None:
        account.placement, account.placed_at = placement, at
        self.placed[account.number] = account

    def _leave_seats(self, account: Account, at: Seconds) -> None:
        """Add the GPU-seconds of the present placement and clear it; freeze progress at ``at``."""
        if account.placement is not None:
            add_spans(self.past_seats, account, at)
            account.last_run = account.rate, account.placement.gpus, at - account.placed_at
            account.gpu_seconds += account.placement.gpus * (at - account.placed_at)
            account.done, account.done_at = account.progress(at), at
            account.rate, account.placement, account.limit_at = 0.0, None, inf
            self.placed.pop(account.number, None)
