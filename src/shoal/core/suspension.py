"""Suspended runs, as part of the state: where each is bound, the host memory it holds, and which nodes suspend runs.

A suspended run keeps its processes, frozen, on its node; it holds no GPUs and can be resumed only on that node.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shoal.core.topology import Placement
from shoal.core.units import JobNumber, Seconds

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """A suspended run: the seats it is bound to, since when, and its bytes of host memory; 0 until they are known."""

    placement: Placement
    since: Seconds
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeSuspension:
    """How much a node can suspend: bytes of host memory for suspended runs, and the most GPUs of a run, if limited."""

    memory: int
    most_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Suspensions:
    """The suspended runs, and each node's limits on them. Each change makes a new value, so snapshots may hold one."""

    nodes: Mapping[int, NodeSuspension] = field(default_factory=dict)
    """By node that suspends runs."""
    runs: Mapping[JobNumber, SuspendedRun] = field(default_factory=dict)
    sizes: Mapping[JobNumber, int] = field(default_factory=dict)
    """By live job that was suspended before: its bytes of host memory."""
    refused: Mapping[JobNumber, str] = field(default_factory=dict)
    """By live job whose node could not suspend it: why. It is not tried again."""
    held: frozenset[JobNumber] = frozenset()
    """The suspended jobs that a person holds, in a snapshot: they are not resumed."""

    def holding(self, jobs: Collection[JobNumber]) -> "Suspensions":
        """Return a copy in which the suspended jobs among ``jobs`` are marked as held by a person, and no others."""
        if not (jobs or self.held):
            return self
        held = frozenset(job for job in jobs if job in self.runs)
        return self if held == self.held else replace(self, held=held)

    def able(self, node: int, ability: NodeSuspension | None) -> "Suspensions":
        """Return the suspensions with a node's limits on suspended runs; None if it suspends no run."""
        return replace(self, nodes=_with(self.nodes, node, ability))

    def suspended(self, job: JobNumber, run: SuspendedRun) -> "Suspensions":
        """Return the suspensions with one more suspended run."""
        sizes = _with(self.sizes, job, run.bytes) if run.bytes else self.sizes
        return replace(self, runs=_with(self.runs, job, run), sizes=sizes)

    def resumed(self, job: JobNumber) -> "Suspensions":
        """Return the suspensions without a run that continues or has ended."""
        return replace(self, runs=_with(self.runs, job, None)) if job in self.runs else self

    def refuse(self, job: JobNumber, cause: str) -> "Suspensions":
        """Return the suspensions after a job could not be suspended, with the cause."""
        return replace(self.resumed(job), refused=_with(self.refused, job, cause))

    def forget(self, job: JobNumber) -> "Suspensions":
        """Return the suspensions without a job that has ended."""
        if job not in self.runs and job not in self.sizes and job not in self.refused:
            return self
        return replace(self.resumed(job), sizes=_with(self.sizes, job, None), refused=_with(self.refused, job, None))

    def free_memory(self, node: int) -> int:
        """Return the bytes that a node has left for further suspended runs."""
        held = sum(run.bytes for run in self.runs.values() if node in run.placement.nodes)
        return self.nodes[node].memory - held if node in self.nodes else 0

    def accepts(self, job: JobNumber, placement: Placement) -> bool:
        """Return whether the run of a job on these seats could be suspended, if the host memory suffices.

        The seats must be on one node, which suspends runs with that number of GPUs.
        """
        if len(placement.seats) != 1 or job in self.refused:
            return False
        node, gpus = placement.seats[0]
        ability = self.nodes.get(node)
        return ability is not None and (ability.most_gpus is None or gpus <= ability.most_gpus)


NO_SUSPENSIONS = Suspensions()


def _with(mapping: Mapping[int, _V], key: int, value: _V | None) -> Mapping[int, _V]:
    others = {other: there for other, there in mapping.items() if other != key}
    return others if value is None else {**others, key: value}
