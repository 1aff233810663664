"""Folds of requests on jobs, and of events by which time limits and conditions take effect."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.core.events import (
    CancelRequested,
    HoldLifted,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobReshaped,
    PriorityChanged,
    TimeLimitReached,
)
from shoal.core.lifecycle import JobState, Trigger

if TYPE_CHECKING:
    from shoal.engine.state import State

_PENDING, _STOPPING, _HELD = int(JobState.PENDING), int(JobState.STOPPING), int(JobState.HELD)


def hold_back(state: "State", slot: int) -> None:
    """Keep a waiting job from the policy until ``JobReleased``."""
    state._move(slot, Trigger.WAITS)
    state._jobs.withdraw(slot)


def _released(state: "State", event: JobReleased) -> None:
    slot = state._jobs.live_slot(event.job)
    state.releases.pop(event.job, None)
    if slot >= 0 and state._jobs.state[slot] == _HELD:  # else it was cancelled, or held while it ran
        state._move(slot, Trigger.RELEASED)
        state._jobs.readmit(slot)


def _held(state: "State", event: JobHeld) -> None:
    slot = state._jobs.live_slot(event.job)
    if slot >= 0:
        state.on_hold.add(event.job)
        if state._jobs.state[slot] == _PENDING:
            hold_back(state, slot)


def _hold_lifted(state: "State", event: HoldLifted) -> None:
    state.on_hold.discard(event.job)


def _requeued(state: "State", event: JobRequeued) -> None:
    slot = state._jobs.current_slot(event)
    if slot >= 0 and state._jobs.state[slot] != _STOPPING:
        state._move(slot, Trigger.STOP)
        state._release(slot, event.at)
        state.suspensions = state.suspensions.resumed(event.job)


def _cancel_requested(state: "State", event: CancelRequested | TimeLimitReached) -> None:
    slot = state._jobs.live_slot(event.job)
    if slot < 0 or event.job in state.cancelling:
        return
    withdrawn = state._jobs.state[slot] == _HELD
    state._move(slot, Trigger.CANCEL_REQUESTED)
    state.releases.pop(event.job, None)
    state.cancelling.add(event.job)
    if not withdrawn:
        state._jobs.withdraw(slot)


def _cancelled(state: "State", event: JobCancelled) -> None:
    slot = state._jobs.live_slot(event.job)
    if slot >= 0:
        state._end(event.job, slot, Trigger.TIMED_OUT if event.failed else Trigger.CANCELLED, event.at)


def _priority_changed(state: "State", event: PriorityChanged) -> None:
    job = event.job
    if state._jobs.live_slot(job) >= 0:
        state._jobs.reshape(job, replace(state.register.specs[job], priority=event.priority))
        state._prioritise(job, event.priority)


def _reshaped(state: "State", event: JobReshaped) -> None:
    job, slot = event.job, state._jobs.live_slot(event.job)
    if slot < 0:
        return
    old = state.register.specs[job]
    # Work without a model is counted in seconds on the requested gang, which another gang does faster or slower.
    speed = old.speed if old.model is not None else old.speed * event.gpus / old.gpus
    spec = replace(old, gpus=event.gpus, min_gpus=event.min_gpus, max_gpus=event.max_gpus, speed=speed)
    state._jobs.reshape(job, spec)
    state._set_speeds(job, slot, state._jobs.batch[slot] or None)


REQUESTS: dict[type, Callable[["State", Any], None]] = {
    JobCancelled: _cancelled,
    JobReleased: _released,
    JobReshaped: _reshaped,
    JobHeld: _held,
    HoldLifted: _hold_lifted,
    JobRequeued: _requeued,
    CancelRequested: _cancel_requested,
    TimeLimitReached: _cancel_requested,
    PriorityChanged: _priority_changed,
}
