"""The price of suspending simulated jobs: bytes divided by bandwidth, and host memory."""

from dataclasses import dataclass, field

from shoal.core.commands import Resume, Suspend
from shoal.core.events import JobSuspended, SuspensionReported
from shoal.core.topology import Placement
from shoal.core.units import Seconds
from shoal.sim.job_run import JobRun
from shoal.sim.running_jobs import RunningJobs


@dataclass(frozen=True, slots=True)
class SuspensionCost:
    """A suspended job holds ``bytes_per_gpu`` of host memory for each GPU; a node has ``memory`` bytes for all.

    The bytes leave the GPUs at ``out_rate`` bytes a second and return at ``in_rate``; the defaults were measured on an
    H200 (docs/gpu.md).
    """

    bytes_per_gpu: int = 0
    memory: int = 400_000_000_000
    out_rate: float = 1.9e9
    in_rate: float = 5e9

    def size(self, placement: Placement) -> int:
        """Return the bytes that a run on these seats holds when it is suspended."""
        return self.bytes_per_gpu * placement.gpus

    def out_seconds(self, placement: Placement) -> Seconds:
        """Return the seconds it takes to suspend a run on these seats."""
        return self.size(placement) / self.out_rate

    def in_seconds(self, placement: Placement) -> Seconds:
        """Return the seconds it takes to resume it."""
        return self.size(placement) / self.in_rate


@dataclass(slots=True)
class SuspendedRuns:
    """Suspends and resumes the runs of simulated jobs; without a ``cost`` the nodes of the cluster suspend no run."""

    jobs: RunningJobs
    cost: SuspensionCost | None = None
    _vacated: dict[int, Seconds] = field(default_factory=dict)
    """By node, when the last run suspended there has left its GPUs."""

    def abilities(self, now: Seconds) -> list[SuspensionReported]:
        """Return the events by which the ring learns that nodes suspend runs."""
        cost, nodes = self.cost, range(len(self.jobs.truth.topology.nodes))
        return [] if cost is None else [SuspensionReported(now, node, "simulated", cost.memory) for node in nodes]

    def leave(self, command: Suspend, run: JobRun, now: Seconds) -> list[JobSuspended]:
        """Suspend a run, whose GPUs can be used once it has left them; return the event."""
        if run.placement is None or run.incarnation != command.incarnation:
            return []
        run.bound, cost = run.placement, self.cost or _FREE
        self.jobs.leave(command.job, now)
        seconds = cost.out_seconds(run.bound)
        self._vacated.update(dict.fromkeys(run.bound.nodes, now + seconds))
        return [JobSuspended(now, command.job, run.incarnation, run.done, cost.size(run.bound), seconds)]

    def resume(self, command: Resume, run: JobRun, now: Seconds) -> Seconds:
        """Give a suspended run its seats; return when it trains again."""
        run.placement = command.placement
        return now + (self.cost or _FREE).in_seconds(command.placement)

    def ready(self, placement: Placement | None, at: Seconds) -> Seconds:
        """Return when a run that takes these seats can begin: at ``at``, and when suspended runs have left them."""
        if placement is None or not self._vacated:
            return at
        return max([at, *(self._vacated.get(node, at) for node in placement.nodes)])


_FREE = SuspensionCost()
"""Suspension that takes no time, as that of a job without GPU memory."""
