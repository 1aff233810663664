"""Which nodes fail to start runs: when a node is drained, probed and resumed.

A start that fails on a node says little by itself: the job may be at fault. It counts against the node when the same
job starts elsewhere. A node against which ``MOST_FAILED_STARTS`` jobs count, with no successful start there since the
first of them, is drained. Then it is probed: after ``FIRST_PROBE`` seconds, and after twice as long each time that
fails, it may get one start. The first that succeeds resumes it. An operator may drain a node too: that one is not
probed, and only an operator resumes it.

Bookkeeping only: the time is an argument, and the methods return events for the ring.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from shoal.core.events import Event, NodeDrained, NodeResumed
from shoal.core.topology import Node
from shoal.core.units import JobNumber, Seconds

MOST_FAILED_STARTS = 3
"""Jobs that count against a node when it is drained."""

FIRST_PROBE: Seconds = 30.0
LONGEST_PROBE: Seconds = 1800.0
"""Seconds from draining a node to its first probe, and at most between two probes."""


def note_start(
    failures: dict[int, set[JobNumber]], job: JobNumber, nodes: Collection[int], failed_on: Collection[int]
) -> None:
    """Count one failed start of a job for each node of ``failed_on``, since it has now started, on ``nodes``."""
    for node in nodes:
        failures.pop(node, None)
    for node in failed_on:
        if node not in nodes:
            failures.setdefault(node, set()).add(job)


@dataclass(slots=True)
class _Drain:
    """A drained node: when it is probed next, and the wait before that."""

    probe_at: Seconds
    wait: Seconds
    by: str = ""
    """Who drained it; empty if failed starts did."""


@dataclass(slots=True)
class NodeHealth:
    """The failed starts that count against each node, and the nodes that are drained."""

    nodes: Sequence[Node]
    _causes: dict[int, str] = field(default_factory=dict)
    """By node, why the last start that failed there did."""
    _failures: dict[int, set[JobNumber]] = field(default_factory=dict)
    """By node, the jobs that count against it."""
    _drains: dict[int, _Drain] = field(default_factory=dict)

    def resume_counts(self, failures: Mapping[int, Collection[JobNumber]], causes: Mapping[int, str]) -> None:
        """Restore the counts of failed starts from a journal."""
        self._failures = {node: set(jobs) for node, jobs in failures.items()}
        self._causes = dict(causes)

    def resume_drains(self, drained: Mapping[int, NodeDrained], now: Seconds) -> None:
        """Take over the nodes that a journal left drained; those that are probed wait as if drained now."""
        for node, event in drained.items():
            self._drains[node] = _Drain(inf if event.by else now + FIRST_PROBE, FIRST_PROBE, event.by)

    def drained_by(self, node: int) -> str | None:
        """Return who drained a node, empty if failed starts did; None if it is not drained."""
        return self._drains[node].by if node in self._drains else None

    def failed(self, node: int, cause: str, now: Seconds) -> None:
        """Note that a node could not start a run; a drained one waits twice as long for its next probe."""
        self._causes[node] = cause
        drain = self._drains.get(node)
        if drain is not None and drain.probe_at < inf:
            drain.wait = min(2 * drain.wait, LONGEST_PROBE)
            drain.probe_at = now + drain.wait

    def started(self, job: JobNumber, nodes: Collection[int], failed_on: Collection[int], now: Seconds) -> list[Event]:
        """Note that a job's ranks are up on ``nodes``, after it had failed to start on others; return the events."""
        found: list[Event] = []
        note_start(self._failures, job, nodes, failed_on)
        for node in nodes:
            if node in self._drains and self._drains[node].probe_at < inf:
                found += self.resume(node, now)
        for node in failed_on:
            count = len(self._failures.get(node, ()))
            if count >= MOST_FAILED_STARTS and node not in self._drains:
                cause = self._causes.get(node, "not known")
                reason = f"{count} jobs that could not start here started elsewhere; the last cause: {cause}"
                found += self.drain(node, reason, now)
        return found

    def drain(self, node: int, reason: str, now: Seconds, by: str = "") -> list[Event]:
        """Drain a node; one that an operator drains is not probed."""
        self._drains[node] = _Drain(inf if by else now + FIRST_PROBE, FIRST_PROBE, by)
        return [NodeDrained(now, node, reason, by)]

    def resume(self, node: int, now: Seconds) -> list[Event]:
        """Resume a drained node; no event for any other."""
        self._failures.pop(node, None)
        return [] if self._drains.pop(node, None) is None else [NodeResumed(now, node)]

    def probe(self, now: Seconds, starting: Callable[[int], bool]) -> list[Event]:
        """Return the probes that are due, except on nodes where a run is ``starting``, which serves as the probe."""
        found: list[Event] = []
        for node, drain in self._drains.items():
            if now >= drain.probe_at:
                drain.probe_at = now + drain.wait
                if not starting(node):
                    found.append(NodeResumed(now, node, probe=True))
        return found

    @property
    def next_probe(self) -> Seconds:
        """When the next probe is due."""
        return min((drain.probe_at for drain in self._drains.values()), default=inf)
