"""Benches of elastic sharing: whole decisions of AFS at large sizes, and the division of GPUs alone.

Jobs train the nine models of AFS's Table 4 and have all just come; the decision is timed from the snapshot to the
verdicts, the division by itself beside it. Best of three, in CPU seconds.
"""

from collections.abc import Callable
from dataclasses import replace
from time import process_time

from shoal.core.events import JobSubmitted
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.perf.catalog import catalog
from shoal.policy.registry import parse_policy
from shoal.scenario.scenario import Scenario
from shoal.solve.afs_shares import Gains, with_lengths, without_lengths
from shoal.workload.generators.registry import generate


def _moment(jobs: int, gpus: int) -> Snapshot:
    """So many jobs that wait, on so many GPUs in machines of four."""
    scenario = Scenario(parse_cluster(f"gtx1080:{gpus // 4}x4"), "afs-p")
    state = scenario.make_state(catalog())
    specs = [replace(job.spec(), submitted=0.0) for job in generate("afs", jobs=jobs, seed=3).jobs]
    state.apply_events(0.0, [JobSubmitted(0.0, spec) for spec in specs])
    return state.freeze()


def _best_of(times: int, what: Callable[[], object]) -> float:
    seconds = float("inf")
    for _ in range(times):
        begin = process_time()
        what()
        seconds = min(seconds, process_time() - begin)
    return seconds


def decision(policy: str, jobs: int, gpus: int) -> dict[str, float]:
    """Seconds of one decision of ``afs-l`` or ``afs-p``, and of dividing what is left after one GPU each."""
    moment, chosen = _moment(jobs, gpus), parse_policy(policy)
    known = {
        model: Gains.of([profile.speedup(k) for k in range(profile.peak_gpus + 1)])
        for model, profile in AFS_MODELS.items()
    }
    gains = [known[spec.model or ""] for spec in moment.specs]
    ones, work = [1] * jobs, moment.columns.remaining.tolist()

    def divide() -> list[int]:
        free = gpus - jobs
        return with_lengths(gains, work, ones, free) if policy == "afs-l" else without_lengths(gains, ones, free)

    chosen.decide(moment)  # what is looked up on first use is not the decision
    return {"seconds": _best_of(3, lambda: chosen.decide(moment)), "division_seconds": _best_of(3, divide)}


def afs_p() -> dict[str, float]:
    """AFS-P, 10,000 jobs on 20,000 GPUs; the budget is 0.1 s."""
    return decision("afs-p", 10_000, 20_000)


def afs_l() -> dict[str, float]:
    """AFS-L, 1,000 jobs on 2,000 GPUs; the budget is 0.1 s."""
    return decision("afs-l", 1_000, 2_000)
