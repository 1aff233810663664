"""Suspension inside the ring: folds of commands and events, the leaving jobs that are suspended, and their return."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.core.commands import Resume, Suspend
from shoal.core.decision import Grant, Refusal, Seating, Verdict, Verdicts
from shoal.core.events import JobResumed, JobSuspended, SuspensionReported
from shoal.core.lifecycle import JobState, Trigger
from shoal.core.reasons import SUSPENDED_THERE, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.suspension import NodeSuspension, SuspendedRun

if TYPE_CHECKING:
    from shoal.engine.state import State

_STARTING, _RUNNING, _SUSPENDED = int(JobState.STARTING), int(JobState.RUNNING), int(JobState.SUSPENDED)

# ── which jobs are suspended, and where they are resumed ──────────────────────────────────────────────────────────


def to_suspend(snapshot: Snapshot, leaving: Iterable[int]) -> set[int]:
    """Return which of the jobs that leave their seats are suspended and not stopped, by position.

    Suspended are jobs whose stop would lose work, first those that may not be stopped. Their node must suspend runs and
    have free the host memory that they held when they were last suspended; for a first time any amount suffices.
    """
    suspensions, columns = snapshot.suspensions, snapshot.columns
    if not suspensions.nodes:
        return set()
    chosen: set[int] = set()
    left: dict[int, int] = {}
    for i in sorted(leaving, key=lambda i: (not snapshot.unstoppable[i], i)):
        job, placement = int(columns.rows[i]), snapshot.placement(i)
        alone = columns.state[i] == _RUNNING and columns.partner[i] < 0
        if placement is None or not alone or not suspensions.accepts(job, placement) or not columns.unsaved[i]:
            continue
        node, size = placement.nodes[0], suspensions.sizes.get(job, 0)
        free = left.setdefault(node, suspensions.free_memory(node))
        if 0 < free >= size:
            left[node] = free - size
            chosen.add(i)
    return chosen


def bound_to_nodes(snapshot: Snapshot, verdicts: Verdicts) -> Verdicts:
    """Return the verdicts with every grant to a suspended job on the seats it is bound to, and on no others."""
    runs = snapshot.suspensions.runs
    positions = {job: snapshot.position_of(job) for job in runs}
    return verdicts.pinned({i: runs[job].placement for job, i in positions.items() if i >= 0 and verdicts.gpus[i]})


def checked_seating(snapshot: Snapshot, seating: Seating) -> Seating:
    """Return the seating in which suspended jobs have the seats they are bound to, or wait with a reason."""
    runs, seated = snapshot.suspensions.runs, dict(seating.seated)
    overruled: dict[int, Verdict] = dict(seating.overruled)
    for job, run in runs.items():
        i = snapshot.position_of(job)
        if (i in seated and seated[i] != run.placement) or isinstance(overruled.get(i), Refusal):
            seated.pop(i, None)
            node, gpus = run.placement.seats[0]
            free = snapshot.free_gpus.node_free[node]
            overruled[i] = Refusal(Reason(SUSPENDED_THERE, (snapshot.cluster.nodes[node].name, gpus, free)))
        elif isinstance(overruled.get(i), Grant):
            overruled.pop(i)
    return replace(seating, seated=seated, overruled=overruled)


# ── the fold ──────────────────────────────────────────────────────────────────────────────────────────────────────


def suspend(state: "State", command: Suspend) -> None:
    """Fold a command to suspend a run: it leaves its seats and stays bound to them."""
    slot = state._jobs.slot_of(command.job)
    placement = state._jobs.placement(slot)
    state._move(slot, Trigger.SUSPEND)
    state._release(slot, state.now)
    if placement is not None:
        size = state.suspensions.sizes.get(command.job, 0)
        state.suspensions = state.suspensions.suspended(command.job, SuspendedRun(placement, state.now, size))


def resume(state: "State", command: Resume) -> None:
    """Fold a command to resume a run on the seats it is bound to."""
    state._move(state._jobs.slot_of(command.job), Trigger.RESUME)
    _seat(state, command.job, state.suspensions.runs[command.job], state.now)
    state.suspensions = state.suspensions.resumed(command.job)


def _seat(state: "State", job: int, run: SuspendedRun, at: float) -> None:
    jobs, slot = state._jobs, state._jobs.slot_of(job)
    state.free_gpus.take(run.placement)
    jobs.hold(slot, run.placement.gpus)
    jobs.kind[slot] = state.topology.kind_of(run.placement)
    jobs.seats[slot] = jobs.placement_number(run.placement)
    jobs.since[slot] = jobs.progress_since[slot] = at


def suspended(state: "State", event: JobSuspended) -> None:
    """Fold the end of a suspension, or the report that a run which was to be resumed is still suspended."""
    slot = state._jobs.current_slot(event)
    now = state._jobs.state[slot] if slot >= 0 else -1
    if now == _STARTING and event.cause:
        placement = state._jobs.placement(slot)
        assert placement is not None
        run = SuspendedRun(placement, event.at, state.suspensions.sizes.get(event.job, 0))
        state._release(slot, event.at)
    elif now == _SUSPENDED:
        known = state.suspensions.runs[event.job]
        run = replace(known, bytes=event.bytes or known.bytes)
    else:
        return
    state._move(slot, Trigger.SUSPENDED)
    state._jobs.done[slot] = event.done
    state.suspensions = state.suspensions.suspended(event.job, run)


def resumed(state: "State", event: JobResumed) -> None:
    """Fold that a run continues: after it was resumed, or since it could not be suspended.

    In the second case the run still holds its seats. If the ring has given these to other jobs, the run counts as
    suspended until it is resumed, which then takes no time.
    """
    slot = state._jobs.current_slot(event)
    now = state._jobs.state[slot] if slot >= 0 else -1
    if now == _SUSPENDED:
        run = state.suspensions.runs[event.job]
        free, closed = state.free_gpus.node_free, state.free_gpus.closed
        if any(closed.get(node, free[node]) < count for node, count in run.placement.seats):
            return
        _seat(state, event.job, run, event.at)
        state.suspensions = state.suspensions.refuse(event.job, event.cause)
    elif now != _STARTING:
        return
    state._move(slot, Trigger.RESUMED)
    state._progress(slot, event)


def ability_reported(state: "State", event: SuspensionReported) -> None:
    """Fold a node's limits on suspended runs."""
    able = None if event.why_not else NodeSuspension(event.memory, event.most_gpus)
    state.suspensions = state.suspensions.able(event.node, able)
