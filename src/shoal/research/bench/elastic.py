"""Benchmarks of elastic sharing: whole decisions of AFS at large sizes, and the division of GPUs alone.

All jobs are newly submitted and train the nine models of AFS's Table 4. A decision is timed from the snapshot to the
verdicts, and the division of GPUs separately. Figures are the best of three, in CPU seconds.
"""

from dataclasses import replace

from shoal.core.events import JobSubmitted
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.perf.catalog import catalog
from shoal.policy.registry import parse_policy
from shoal.research.bench.timing import best_of
from shoal.scenario.scenario import Scenario
from shoal.solve.afs_shares import Gains, with_lengths, without_lengths
from shoal.workload.generators.registry import generate


def _snapshot(jobs: int, gpus: int) -> Snapshot:
    """Return a snapshot of ``jobs`` waiting jobs on ``gpus`` GPUs, four to a node."""
    scenario = Scenario(parse_cluster(f"gtx1080:{gpus // 4}x4"), "afs-p")
    state = scenario.make_state(catalog())
    specs = [replace(job.spec(), submitted=0.0) for job in generate("afs", jobs=jobs, seed=3).jobs]
    state.apply_events(0.0, [JobSubmitted(0.0, spec) for spec in specs])
    return state.freeze()


def decision(policy: str, jobs: int, gpus: int) -> dict[str, float]:
    """Time one decision of ``afs-l`` or ``afs-p``, and the division of the GPUs left after each job has one."""
    snapshot, chosen = _snapshot(jobs, gpus), parse_policy(policy)
    known = {
        model: Gains.of([profile.speedup(k) for k in range(profile.peak_gpus + 1)])
        for model, profile in AFS_MODELS.items()
    }
    gains = [known[spec.model or ""] for spec in snapshot.specs]
    ones, work = [1] * jobs, snapshot.columns.remaining.tolist()

    def divide() -> list[int]:
        free = gpus - jobs
        return with_lengths(gains, work, ones, free) if policy == "afs-l" else without_lengths(gains, ones, free)

    chosen.decide(snapshot)  # lazy lookups of the first call are not timed
    seconds, _ = best_of(3, lambda: chosen.decide(snapshot))
    return {"seconds": seconds, "division_seconds": best_of(3, divide)[0]}


def afs_p() -> dict[str, float]:
    """Time AFS-P with 10,000 jobs on 20,000 GPUs; the budget is 0.1 s."""
    return decision("afs-p", 10_000, 20_000)


def afs_l() -> dict[str, float]:
    """Time AFS-L with 1,000 jobs on 2,000 GPUs; the budget is 0.1 s."""
    return decision("afs-l", 1_000, 2_000)
