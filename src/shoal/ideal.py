"""The ideal mechanism: every job gets exactly its share of time at every moment, and changing costs nothing.

No cluster can do this, which is the point: it says what a policy's shares are worth before rounds, restarts and seats
take their toll (Gavel, OSDI '20, §7.5 and figure 15b). Between an arrival and the next event shares are constant, so
progress is linear and the completion times are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.errors import InputError
from shoal.core.topology import Topology
from shoal.core.units import JobId, Seconds
from shoal.perf.catalog import Catalog, catalog
from shoal.perf.model import ProfiledModel
from shoal.problem import Job as PosedJob
from shoal.problem import Problem, solve
from shoal.workload.schema import Job


@dataclass(slots=True)
class _Fluid:
    """A job that flows: what is left of it, and how fast its share lets it go."""

    job: Job
    throughput: Mapping[str, float]
    left: float
    rate: float = 0.0
    since: Seconds = 0.0

    def settle(self, now: Seconds) -> None:
        """Count the progress made since the shares last changed."""
        self.left = max(self.left - self.rate * (now - self.since), 0.0)
        self.since = now

    def done_at(self) -> Seconds:
        """When it is done if its share stays."""
        return self.since + self.left / self.rate if self.rate > 0 else float("inf")


@dataclass(slots=True)
class _World:
    cluster: Topology
    policy: str
    live: list[_Fluid] = field(default_factory=list)

    def share(self, now: Seconds) -> None:
        """Ask the policy for its shares of the jobs that are live, and let them flow."""
        for fluid in self.live:
            fluid.settle(now)
        if not self.live:
            return
        capacity = dict(zip(self.cluster.kinds, self.cluster.capacity, strict=True))
        prices = {t.name: t.price_per_hour for t in self.cluster.types if t.price_per_hour is not None}
        posed = [
            PosedJob(
                id=f.job.id,
                throughput=dict(f.throughput),
                gpus=f.job.gpus,
                weight=f.job.weight,
                steps_left=f.left,
                elapsed=now - f.job.submitted,
                arrived=f.job.submitted,
            )
            for f in self.live
        ]
        levels = solve(Problem(cluster=capacity, jobs=posed, prices=prices, now=now), self.policy)["levels"]
        for fluid in self.live:
            fluid.rate = levels.get(fluid.job.id, 0.0)


def ideal_completions(
    jobs: Sequence[Job], cluster: Topology, policy: str, known: Catalog | None = None
) -> dict[JobId, Seconds]:
    """When each job would complete under a policy's exact shares, re-computed at every arrival and completion.

    Jobs that never get a share are not in the answer. Speeds are the catalogue's, at the first batch size.
    """
    if any(job.batch_schedule for job in jobs):
        raise InputError("workload", "batch_schedule", "the ideal mechanism knows no changing batch sizes")
    perf = ProfiledModel(cluster, known or catalog())
    world, completed = _World(cluster, policy), {}
    coming = sorted(jobs, key=lambda job: job.submitted)
    while coming or world.live:
        ending = min((fluid.done_at() for fluid in world.live), default=float("inf"))
        now = min(ending, coming[0].submitted if coming else float("inf"))
        if now == float("inf"):
            break
        for fluid in [f for f in world.live if f.done_at() <= now]:
            completed[fluid.job.id] = now
            world.live.remove(fluid)
        while coming and coming[0].submitted <= now:
            job = coming.pop(0)
            speeds = dict(zip(cluster.kinds, perf.speeds(job.spec()).tolist(), strict=True))
            world.live.append(_Fluid(job, speeds, job.work, since=now))
        world.share(now)
    return completed
