"""Which job held which GPUs when: a span for each node of each placement that a job has left."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from shoal.core.units import JobId, Seconds, TenantId

if TYPE_CHECKING:
    from shoal.live.accounts import Account

_MOST_SPANS = 5000
"""Most spans kept, the latest; up to twice as many for a moment."""

RECENT_SECONDS = 3600.0
"""The time over which the recent use of a node is counted."""


@dataclass(frozen=True, slots=True)
class SeatSpan:
    """A job's GPUs on one node, from ``began`` to ``ended`` (None: still), in seconds since the journal began."""

    job: JobId
    tenant: TenantId
    run: int
    node: int
    gpus: int
    began: Seconds
    ended: Seconds | None


def spans_of(account: "Account", ended: Seconds | None) -> Iterable[SeatSpan]:
    """Return the spans of the placement that a job holds now; none if it holds no GPUs."""
    for node, gpus in account.placement.seats if account.placement is not None else ():
        yield SeatSpan(account.spec.id, account.spec.tenant, account.incarnation, node, gpus, account.placed_at, ended)


def add_spans(past: list[SeatSpan], account: "Account", ended: Seconds) -> None:
    """Add the spans of the placement that a job leaves, and drop the oldest of too many."""
    past.extend(spans_of(account, ended))
    if len(past) >= 2 * _MOST_SPANS:
        del past[:_MOST_SPANS]


def recent_spans(past: Sequence[SeatSpan], since: Seconds) -> tuple[Seconds, Sequence[SeatSpan]]:
    """Return the spans that ended after ``since``, and the time from which on all are known: ``since`` or later."""
    since = max(0.0, since)
    if len(past) >= _MOST_SPANS:  # earlier ones may have been dropped
        since = max(since, past[0].ended or 0.0)
    return since, past[bisect_right(past, since, key=lambda span: span.ended or inf) :]
