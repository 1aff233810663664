"""Suspension on the live side: orders to suspend and resume gangs, and the events that their results become.

Each such order of a gang has a number, its *turn*: odd to suspend it, even to resume it. A result that is not the one
ordered counts as a turn of its own, so that a gang whose turn is odd is suspended.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shoal.core.commands import Resume, Suspend
from shoal.core.events import JobResumed, JobSuspended, SuspensionReported
from shoal.core.units import JobNumber, Seconds
from shoal.live.gang import End, Gang, RunEnd
from shoal.live.live_job import LiveJob, next_turn
from shoal.wire.messages import SuspensionAbility, SuspensionReport

if TYPE_CHECKING:
    from shoal.live.runs import RunRegistry

_IN_PLACE = "a job that is resized in place is not suspended"


def order_turn(registry: "RunRegistry", job: LiveJob, command: Suspend | Resume) -> None:
    """Turn a command into an order for the gang of this incarnation, unless it has ended."""
    for gang in job.gangs:
        if gang.incarnation == command.incarnation and not gang.stopping:
            gang.turn = next_turn(gang.turn, suspend=isinstance(command, Suspend))
            registry._orders_changed(gang)


def answer_in_place(registry: "RunRegistry", jobs: Iterable[JobNumber], now: Seconds) -> None:
    """Answer the orders to suspend and resume gangs of these jobs that are resized in place: they keep running.

    No agent can answer for a gang whose workers were all started by earlier incarnations. The caller carries out the
    whole decision first, so that a run which was to get the gang's seats gives way.
    """
    for job in (registry._jobs[number] for number in jobs):
        for gang in job.gangs:
            if gang.workers is not None:
                turned(registry, job, gang, SuspensionReport(turn=gang.turn, cause=_IN_PLACE), now)


def turned(registry: "RunRegistry", job: LiveJob, gang: Gang, report: SuspensionReport | None, now: Seconds) -> None:
    """Report the result of a gang's last order to the ring, once."""
    if report is None or report.turn != gang.turn or gang.turned >= gang.turn or gang.end_reported or gang.stopping:
        return
    ordered = gang.turn % 2 == 1
    if report.suspended != ordered:
        gang.turn += 1
        registry._orders_changed(gang)
    gang.turned = gang.turn
    if report.suspended:
        _suspended(registry, job, gang, report, now)
        return
    if ordered:
        _make_room(registry, gang, report.cause, now)
    gang.go_on(now)
    if gang.limit_left is not None:
        registry.held.limits[gang.job], gang.limit_left = now + gang.limit_left, None
    rate = gang.tracker.rate
    done = job.progress_now(gang, now)
    gang.tracker.reported(now, rate, done)
    registry.events.append(
        JobResumed(now, gang.job, gang.incarnation, rate, done, report.seconds, report.cause if ordered else "")
    )


def _suspended(registry: "RunRegistry", job: LiveJob, gang: Gang, report: SuspensionReport, now: Seconds) -> None:
    if gang.suspended_at is None:
        gang.suspended_at = max(now - report.seconds, gang.running_since)
    limit = registry.held.limits.pop(gang.job, None)
    if limit is not None:
        gang.limit_left = limit - gang.suspended_at
    done = job.progress_now(gang, now)
    registry.events.append(
        JobSuspended(now, gang.job, gang.incarnation, done, report.bytes, report.seconds, report.cause)
    )


def _make_room(registry: "RunRegistry", gang: Gang, cause: str, now: Seconds) -> None:
    """End the gangs that wait for the seats of a gang that could not be suspended; none of them has begun there."""
    for node, count in gang.placement.seats:
        over = count - registry.nodes[node].gpus + sum(_held(other, node) for other in _others(registry, gang, node))
        for other in [*_others(registry, gang, node)][::-1]:
            if over <= 0:
                break
            why = f"the GPUs it was to get are still in use: job {gang.id} could not be suspended ({cause})"
            if not other.started:
                over -= _held(other, node)
                registry._report_end(registry._jobs[other.job], other, RunEnd(End.LOST, why), now)
            elif other.turned < other.turn:
                over -= _held(other, node)
                other.turn = other.turned = other.turn + 1
                registry._orders_changed(other)
                _suspended(
                    registry,
                    registry._jobs[other.job],
                    other,
                    SuspensionReport(turn=other.turn, suspended=True, cause=why),
                    now,
                )


def _others(registry: "RunRegistry", gang: Gang, node: int) -> Iterator[Gang]:
    """Yield the other gangs that hold GPUs of a node by the last decision: neither stopping, ended nor suspended."""
    for other in registry.agents.nodes[node].gangs.values():
        if other is not gang and not other.stopping and not other.end_reported and other.turn % 2 == 0:
            yield other


def _held(gang: Gang, node: int) -> int:
    return dict(gang.placement.seats).get(node, 0)


def ability_event(index: int, ability: SuspensionAbility, now: Seconds) -> SuspensionReported:
    """Return the event of the ability to suspend that a node's agent reported when it registered."""
    return SuspensionReported(now, index, ability.how, ability.memory, ability.most_gpus, ability.why_not)
