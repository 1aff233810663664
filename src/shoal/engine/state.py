"""The state: a fold over the journal. The same events and commands, in the same order, give the same state.

Nothing here reads a clock: time comes with each event.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.core.bids import StandingBid
from shoal.core.columns import IntRow, sealed
from shoal.core.commands import Command, Resize, Resume, Start, Stop, Suspend
from shoal.core.errors import JournalError
from shoal.core.events import (
    AppBid,
    BatchChanged,
    Event,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobResumed,
    JobSaved,
    JobSetAside,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
    PolicyOverran,
    QuotaSet,
    RunsImported,
    SuspensionReported,
)
from shoal.core.free_gpus import FreeGpus
from shoal.core.interfaces import PerfModel
from shoal.core.job import ADAPTIVE, MOST_LOST
from shoal.core.lifecycle import TRANSITIONS, JobState, Trigger
from shoal.core.quota import NO_QUOTA, Quota
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.snapshot import Register, Snapshot
from shoal.core.suspension import NO_SUSPENSIONS
from shoal.core.topology import Topology
from shoal.core.units import JobNumber, Seconds, TenantId
from shoal.engine import suspension
from shoal.engine.job_rows import JobRows
from shoal.engine.node_folds import NODES
from shoal.engine.node_use import NodeUse
from shoal.engine.request_folds import REQUESTS, hold_back
from shoal.engine.run_findings import UNFIT, add_measurement, after_misfit, exclude_kind
from shoal.engine.training_reports import TrainingReports
from shoal.perf.length_history import LengthHistory
from shoal.perf.model import OnlineModel

# Looking up a member of an enumeration costs more than folding an event, so the fold uses plain integers.
_HELD, _CANCELLING = int(JobState.HELD), int(JobState.CANCELLING)
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_NEXT = {(int(state), trigger): int(following) for (state, trigger), following in TRANSITIONS.items()}


class State:
    """The state of the ring, folded from events and commands.

    ``releases`` holds, by job that is held back after a crash or until its earliest start, the time it may start;
    ``on_hold`` the jobs that a person holds. Jobs that are ``cancelling`` have runs that have not ended. ``most_lost``
    is the operator's limit on what a stop may lose. The first ``declared_nodes`` nodes did not join by an event.
    """

    def __init__(self, topology: Topology, perf: PerfModel, seed: int = 0, most_lost: Seconds = MOST_LOST) -> None:
        self.topology = topology
        self.declared_nodes = len(topology.nodes)
        self.perf = perf
        self.seed = seed
        self.most_lost = most_lost
        self.now: Seconds = 0.0
        self.cycle = 0
        self.carry: object | None = None
        self.free_gpus = FreeGpus.of(topology)
        self.nodes = NodeUse()
        self.suspensions = NO_SUSPENSIONS
        self.releases: dict[JobNumber, Seconds] = {}
        self.cancelling: set[JobNumber] = set()
        self.on_hold: set[JobNumber] = set()
        self.lengths = LengthHistory(speeds_known=not isinstance(perf, OnlineModel))
        self._jobs = JobRows(len(topology.kinds))
        self._paired: set[int] = set()
        self._training_reports = TrainingReports()
        self._crashes: dict[int, Crashes] = {}
        self._bids: Mapping[int, StandingBid] = {}
        self._set_aside: dict[int, JobSetAside] = {}
        self._quotas: Mapping[TenantId, Quota] = {}
        self._overran: str | None = None
        self._priorities: dict[JobNumber, int] = {}
        self._priorities_given = False  # whether a snapshot has them; they are copied then before they change
        self._decider: object = None

    @property
    def submitted(self) -> int:
        """Number of jobs ever submitted."""
        return self._jobs.submitted

    @property
    def live(self) -> int:
        """Number of jobs that need a verdict: neither ended nor cancelled nor held."""
        return self._jobs.live_count

    @property
    def held(self) -> list[JobNumber]:
        """The live jobs that no policy sees: held back after a crash, by a person, or for a condition."""
        slots = np.flatnonzero(self._jobs.ints[IntRow.STATE, : len(self.register.ids)] == _HELD)
        return [self._jobs.number_at(slot) for slot in slots.tolist()]

    @property
    def register(self) -> Register:
        """The tables of names, specifications and placements, shared with all snapshots."""
        return self._jobs.register

    def freeze(self) -> Snapshot:
        """Return a snapshot of this moment; later changes of the state do not show in it."""
        reports, model_reports, batch_changes = self._training_reports.freeze()
        ending = MappingProxyType(self._jobs.gpus_by_node(self.cancelling)) if self.cancelling else _NOTHING
        columns = self._jobs.freeze(self.now)
        self._priorities_given = True
        return Snapshot.of(
            {
                "cycle": self.cycle,
                "now": self.now,
                "seed": self.seed,
                "cluster": self.nodes.available(self.topology, self.free_gpus, ending),
                "perf": self.perf,
                "columns": columns,
                "free_gpus": self.free_gpus.freeze(),
                "register": self.register,
                "tenant_service": sealed(self._jobs.tenant_service.copy()),
                "sharing": bool(self._paired),
                "carry": self.carry,
                "reports": reports,
                "model_reports": model_reports,
                "batch_changes": batch_changes,
                "bids": MappingProxyType(self._bids) if self._bids else _NOTHING,
                "avoided": self.nodes.avoided,
                "probed": self.nodes.probed,
                "set_aside": MappingProxyType(self._set_aside) if self._set_aside else _NOTHING,
                "quotas": MappingProxyType(self._quotas) if self._quotas else _NOTHING,
                "overran": self._overran,
                "ending": ending,
                "suspensions": self.suspensions.holding(self.on_hold),
                "guarded": self._jobs.guarded,
                "most_lost": self.most_lost,
                "priorities": MappingProxyType(self._priorities) if self._priorities else _NOTHING,
                "lengths": self.lengths.view(columns),
            }
        )

    def apply_events(self, now: Seconds, events: Iterable[Event]) -> None:
        """Fold the events up to ``now``."""
        self._jobs.secure()
        for event in events:
            _FOLD[type(event)](self, event)
        self.now = now

    def apply_commands(self, commands: Sequence[Command]) -> None:
        """Fold commands as if they were carried out at once."""
        if not commands:
            return
        self._jobs.secure()
        for command in commands:  # all seats are given back before any is taken: jobs may swap
            if type(command) is Stop or type(command) is Resize:
                slot = self._jobs.slot_of(command.job)
                if type(command) is Stop:
                    self._move(slot, Trigger.STOP)
                self._release(slot, self.now)
            elif type(command) is Suspend:
                suspension.suspend(self, command)
        for command in commands:
            if type(command) is Start:
                self._begin(command, Trigger.START)
            elif type(command) is Resize:
                self._begin(command, Trigger.RESIZE)
            elif type(command) is Resume:
                suspension.resume(self, command)

    def decide_by(self, settings: Mapping[str, Any]) -> None:
        """Note the settings of a journal's header; with another policy no job stays set aside."""
        decider = [settings.get(name) for name in ("policy", "round", "knowledge", "version")]
        if decider != self._decider:
            self._set_aside = {}
        self._decider = decider

    def end_cycle(self, carry: object | None) -> None:
        """End the cycle; ``carry`` is for the policy's next snapshot."""
        self.carry = carry
        self._overran = None
        self.cycle += 1

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, order: Start | Resize, trigger: Trigger) -> None:
        jobs, job, placement = self._jobs, order.job, order.placement
        slot = jobs.slot_of(job)
        self._move(slot, trigger)
        partner = -1 if order.partner is None else jobs.slot_of(order.partner)
        if partner < 0 or jobs.placement(partner) != placement:  # a partner's seats are taken already
            self.free_gpus.take(placement)
        if self.nodes.probed:
            self.nodes.placed(placement, self.free_gpus)
        jobs.hold(slot, placement.gpus)
        jobs.kind[slot] = self.topology.kind_of(placement)
        jobs.seats[slot] = jobs.placement_number(placement)
        jobs.incarnation[slot] = order.incarnation
        jobs.partner[slot] = -1
        if order.partner is not None:
            jobs.partner[slot] = order.partner
            jobs.partner[partner] = job
            self._paired |= {job, order.partner}
        if trigger is Trigger.START:
            jobs.starts[slot] += 1
        if order.batch is None and job in self._training_reports.reports:  # its batch size is no longer adapted
            jobs.batch[slot] = self.register.specs[job].batch_size or 0
        elif order.batch is not None and order.batch != ADAPTIVE:
            jobs.batch[slot] = order.batch.size
        jobs.since[slot] = jobs.progress_since[slot] = self.now
        jobs.safe[slot] = jobs.run[slot]

    def _release(self, slot: int, at: Seconds) -> None:
        """Add the service and progress until ``at`` to the job's totals, and free its seats."""
        jobs = self._jobs
        placement = jobs.placement(slot)
        if placement is None:
            return
        elapsed = at - jobs.since[slot]
        jobs.attained[slot] += jobs.held[slot] * elapsed
        jobs.run[slot] += elapsed
        jobs.done[slot] += jobs.rate[slot] * (at - jobs.progress_since[slot])
        jobs.rate[slot] = 0.0
        number = jobs.partner[slot]
        partner = -1 if number < 0 else jobs.slot_of(number)
        jobs.hold(slot, 0)
        jobs.seats[slot] = jobs.kind[slot] = jobs.partner[slot] = -1
        if partner >= 0:
            self._paired -= {number, jobs.partner[partner]}
            jobs.partner[partner] = -1
        if partner < 0 or jobs.placement(partner) != placement:
            self.free_gpus.give(placement)

    def _prioritise(self, job: JobNumber, priority: int) -> None:
        if self._priorities_given:
            self._priorities, self._priorities_given = dict(self._priorities), False
        self._priorities.pop(job, None)
        if priority:
            self._priorities[job] = priority

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────

    def _submitted(self, event: JobSubmitted) -> None:
        job, spec = self.submitted, event.spec
        speeds = self.perf.speeds(spec)
        self._jobs.add(event.at, spec, speeds, self.lengths.submitted(job, spec, speeds))
        if spec.priority:
            self._prioritise(job, spec.priority)
        if spec.conditions is not None and spec.waits:
            if spec.conditions.begin is not None:
                self.releases[job] = spec.conditions.begin
            if spec.conditions.hold:
                self.on_hold.add(job)
            hold_back(self, self._jobs.slot_of(job))

    def _started(self, event: JobStarted) -> None:
        slot = self._jobs.slot_on_seats(event)
        if slot >= 0:
            self._move(slot, Trigger.STARTED)
            self._progress(slot, event)
            add_measurement(self._jobs, self.topology, slot, event.rate)

    def _measured(self, event: JobMeasured | BatchChanged) -> None:
        slot = self._jobs.slot_on_seats(event)
        if slot < 0:
            return
        self._move(slot, Trigger.MEASURED)
        if type(event) is BatchChanged:
            self._jobs.batch[slot] = event.batch_size
            self._set_speeds(event.job, slot, event.batch_size)
            self._training_reports.change(event.job, event.done, event.batch_size)
        self._progress(slot, event)
        add_measurement(self._jobs, self.topology, slot, event.rate)

    def _profiled(self, event: JobProfiled) -> None:
        slot = self._jobs.slot_on_seats(event)
        if slot < 0:
            return
        self._move(slot, Trigger.MEASURED)
        self._jobs.batch[slot] = event.report.batch.size
        # The rate drifts with the noise scale, so it is not kept as a measurement; the report's fits say more.
        self._progress(slot, event)
        self._training_reports.report(event.job, self.register.specs[event.job].model, event.report)

    def _progress(self, slot: int, event: JobStarted | JobMeasured | BatchChanged | JobProfiled | JobResumed) -> None:
        jobs = self._jobs
        jobs.done[slot], jobs.progress_since[slot], jobs.rate[slot] = event.done, event.at, event.rate

    def _stopped(self, event: JobStopped) -> None:
        slot = self._jobs.current_slot(event)
        if slot >= 0:
            self._move(slot, Trigger.STOPPED)
            self._jobs.done[slot] = event.done
            if event.job in self.on_hold:
                hold_back(self, slot)

    def _completed(self, event: JobCompleted) -> None:
        slot = self._jobs.current_slot(event)
        if slot >= 0:
            self._end(event.job, slot, Trigger.COMPLETED, event.at, event.done)
            self._jobs.done[slot] = event.done

    def _crashed(self, event: JobCrashed) -> None:
        slot = self._jobs.current_slot(event)
        if slot < 0:
            return
        job = event.job
        self.perf = after_misfit(self.perf, self._jobs, self.topology, event, slot)
        crashes, failed, _ = self._crashes.get(job, NO_CRASHES).fold(event)
        self._crashes[job] = crashes
        self._jobs.crashes[slot] = crashes.in_a_row
        if event.failed_on is not None:
            self.nodes.avoid(job, event.failed_on)
        elif event.blamed and crashes.in_a_row >= UNFIT:
            exclude_kind(self._jobs, self.topology, job, slot)
        if failed:
            self._end(job, slot, Trigger.GAVE_UP, event.at)
        elif event.retry_in > 0:
            self._move(slot, Trigger.HELD_BACK)
            self._release(slot, event.at)
            self._jobs.withdraw(slot)
            self.releases[job] = event.at + event.retry_in
        else:
            self._move(slot, Trigger.CRASHED)
            self._release(slot, event.at)
            if job in self.on_hold:
                hold_back(self, slot)
        self.suspensions = self.suspensions.resumed(job)
        self._jobs.done[slot] = event.done

    def _bid(self, event: AppBid) -> None:
        bid = StandingBid(event.at, event.jobs, event.rows)
        self._bids = {**self._bids, self._jobs.app_index[event.app]: bid}

    def _put_aside(self, event: JobSetAside) -> None:
        if self._jobs.live_slot(event.job) >= 0:
            self._set_aside = {**self._set_aside, event.job: event}

    def _quota_set(self, event: QuotaSet) -> None:
        others = {tenant: quota for tenant, quota in self._quotas.items() if tenant != event.tenant}
        self._quotas = others if event.quota == NO_QUOTA else {**others, event.tenant: event.quota}

    def _runs_imported(self, event: RunsImported) -> None:
        if event.source not in self.lengths.sources:
            self.lengths.merge(event.keys)
            self.lengths.sources += (event.source,)

    def _policy_overran(self, event: PolicyOverran) -> None:
        self._overran = event.reason

    # ── shared pieces ─────────────────────────────────────────────────────────────────────────────────────────

    def _move(self, slot: int, trigger: Trigger) -> None:
        if slot < 0:
            raise JournalError(f"a job that has ended cannot be {trigger.value}")
        state = self._jobs.state[slot]
        following = _NEXT.get((state, trigger))
        if following is None:
            name = self.register.ids[self._jobs.number_at(slot)]
            raise JournalError(f"job {name!r} cannot be {trigger.value} while {JobState(state).name.lower()}")
        self._jobs.state[slot] = following

    def _set_speeds(self, job: JobNumber, slot: int, batch_size: int | None) -> None:
        self._jobs.speeds_to_change(slot)[:] = self.perf.speeds(self.register.specs[job], batch_size)

    def _end(self, job: JobNumber, slot: int, trigger: Trigger, at: Seconds, done: float = 0.0) -> None:
        withdrawn = self._jobs.state[slot] in (_HELD, _CANCELLING)
        self._move(slot, trigger)
        self._release(slot, at)
        work = done or self._jobs.done[slot]
        self.lengths.ended(job, self.register.specs[job], work, self._jobs.length_scale[slot])
        self._training_reports.forget(job)
        self._crashes.pop(job, None)
        self.nodes.forget(job)
        self.suspensions = self.suspensions.forget(job)
        if job in self._set_aside:
            self._set_aside = {other: event for other, event in self._set_aside.items() if other != job}
        app = self._jobs.app[slot]
        if app in self._bids:  # the bid was made with this job
            self._bids = {other: bid for other, bid in self._bids.items() if other != app}
        self._jobs.charge(slot)
        self.on_hold.discard(job)
        self.cancelling.discard(job)
        if job in self._priorities:
            self._prioritise(job, 0)
        if not withdrawn:
            self._jobs.withdraw(slot)


_FOLD: dict[type, Callable[[State, Any], None]] = {
    JobSubmitted: State._submitted,
    JobStarted: State._started,
    JobMeasured: State._measured,
    BatchChanged: State._measured,
    JobProfiled: State._profiled,
    JobSaved: lambda state, event: state._jobs.note_saved(event),
    JobStopped: State._stopped,
    JobCompleted: State._completed,
    JobCrashed: State._crashed,
    AppBid: State._bid,
    JobSetAside: State._put_aside,
    QuotaSet: State._quota_set,
    PolicyOverran: State._policy_overran,
    **REQUESTS,
    JobSuspended: suspension.suspended,
    JobResumed: suspension.resumed,
    SuspensionReported: suspension.ability_reported,
    **NODES,
    RunsImported: State._runs_imported,
}
