"""Benchmarks of goodput: fits of a job's step times, best batch sizes of many jobs, and whole decisions of Pollux.

Measurements are generated from known step times with seeded noise. Figures are the best of three, in CPU seconds.
"""

from dataclasses import replace

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.batch_limits import BatchLimits
from shoal.core.commands import Start
from shoal.core.decision import Verdicts
from shoal.core.events import JobSubmitted
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, parse_cluster
from shoal.perf.catalog import catalog
from shoal.perf.fit import Observation, fitted
from shoal.perf.goodput import best_of_many, iteration_seconds
from shoal.policy.elastic.rank import Rank
from shoal.policy.pollux.policy import Pollux
from shoal.policy.shoal.policy import Shoal
from shoal.research.bench.timing import best_of
from shoal.scenario.scenario import Scenario

_TRUTH = StepFit((0.05, 0.002), (0.04, 0.001), (0.12, 0.002), (0.2, 0.003), 2.5, 256)
"""Step times like those of an image model on four-GPU nodes.

A pass of 64 samples takes as long as synchronising two nodes.
"""

_SIZES = np.array([1, 2, 3, 4, 8, 12, 16, 24, 32, 40, 48, 64])


def _observations(count: int, error: float) -> list[Observation]:
    """Return ``count`` measurements with a relative error, on 1 to 64 GPUs in one node, one rack or two racks."""
    rng = np.random.default_rng(5)
    seen = []
    for gpus, local in zip(rng.choice(_SIZES, count), rng.choice([16, 32, 64, 128, 256], count), strict=True):
        nodes = max(1, -(-int(gpus) // 4))
        apart = Locality.SAME_NODE if nodes == 1 else Locality(int(rng.integers(1, 3)))
        once = _TRUTH.compute[0] + _TRUTH.compute[1] * int(local)
        step = float(iteration_seconds(_TRUTH, int(local), 0, int(gpus), int(apart)))
        off = np.exp(error * rng.standard_normal(2))
        seen.append(Observation(int(gpus), nodes, apart, int(local), once * float(off[0]), step * float(off[1])))
    return seen


def fit(count: int) -> dict[str, float]:
    """Time a fit of ``count`` measurements from scratch, and a second fit with one more that starts from the first.

    ``error`` is the error of the first fit.
    """
    seen = _observations(count + 1, 0.03)
    first = fitted(seen[:-1], 256)
    again, _ = best_of(3, lambda: fitted(seen, 256, start=first))
    seconds, _ = best_of(3, lambda: fitted(seen[:-1], 256))
    return {"seconds": seconds, "again_seconds": again, "error": first.error}


def _distinct_jobs(jobs: int, seed: int) -> tuple[list[StepFit], list[BatchLimits], Floats]:
    """Return step times, batch limits and noise scales of ``jobs`` jobs of five models, all different."""
    rng = np.random.default_rng(seed)
    models = ((128, 4096, 32, 1024), (200, 12800, 20, 200), (12, 384, 4, 12), (20, 640, 5, 40), (8, 512, 4, 8))
    limits = [BatchLimits(*models[i % len(models)]) for i in range(jobs)]
    fits = []
    for limit in limits:
        once, share, exposed = rng.uniform((0.02, 0.5, 0.1), (0.3, 5.0, 8.0)).tolist()
        sync = once * exposed
        fits.append(
            StepFit(
                (once, once * share / limit.most_local),
                (sync, 0.01 * sync),
                (3.0 * sync, 0.02 * sync),
                (4.0 * sync, 0.02 * sync),
                float(rng.uniform(1.0, 10.0)),
                limit.most_local,
            )
        )
    return fits, limits, np.exp(rng.uniform(4.0, 10.0, jobs))


def batches(jobs: int) -> dict[str, float]:
    """Time the search for the best batch of ``jobs`` different jobs on each of twelve allocation sizes."""
    fits, limits, noises = _distinct_jobs(jobs, 6)
    apart = (_SIZES > 4).astype(np.int64)
    return {"seconds": best_of(3, lambda: best_of_many(fits, limits, noises, _SIZES, apart))[0]}


def _running_snapshot(jobs: int, cluster: str) -> Snapshot:
    """Return a snapshot of ``jobs`` different jobs in mid-run.

    Each holds the GPUs that Pollux granted it before any measurement, and has reported its goodput since.
    """
    fits, limits, noises = _distinct_jobs(jobs, 7)
    rng = np.random.default_rng(8)
    world = parse_cluster(cluster)
    state = Scenario(world, "pollux").make_state(catalog())
    work = np.exp(rng.uniform(10.0, 18.0, jobs)).tolist()
    specs = [
        JobSpec(f"j{i}", 0.0, 1, work[i], 1, 64, model=f"m{i % 5}", batch_size=limit.initial, limits=limit)
        for i, limit in enumerate(limits)
    ]
    state.apply_events(0.0, [JobSubmitted(0.0, spec) for spec in specs])
    first = state.freeze()
    given = Verdicts.of(first, Pollux().decide(first).verdicts).placements
    state.apply_commands([Start(i, 1, seats) for i, seats in given.items()])
    state.apply_events(3600.0, [])
    reports = {
        i: GoodputReport(
            tuple((kind, fit) for kind in world.kinds), noise, limit.initial, int(seen), BatchSetting(limit.initial)
        )
        for i, (fit, limit, noise, seen) in enumerate(
            zip(fits, limits, noises.tolist(), rng.choice([1, 2, 4, 8, 16], jobs), strict=True)
        )
    }
    return replace(state.freeze(), reports=reports)


def decision(jobs: int, cluster: str) -> dict[str, float]:
    """Time one decision of ``pollux`` and of ``rank``; ``gap`` is Pollux's gap to the Lagrangian bound."""
    snapshot, pollux, rank = _running_snapshot(jobs, cluster), Pollux(), Rank()
    return {
        "seconds": best_of(3, lambda: pollux.decide(snapshot))[0],
        "rank_seconds": best_of(3, lambda: rank.decide(snapshot))[0],
        "gap": pollux.allotment(snapshot)[2].gap,
    }


def market(jobs: int, cluster: str) -> dict[str, float]:
    """Time a first decision of ``shoal``, which lists the options of all jobs, and the next one."""
    snapshot, again = _running_snapshot(jobs, cluster), Shoal()
    first, _ = best_of(3, lambda: Shoal().decide(snapshot))
    again.decide(snapshot)
    return {"seconds": first, "again_seconds": best_of(3, lambda: again.decide(snapshot))[0]}


def against_genetic(jobs: int, cluster: str) -> dict[str, float]:
    """Time the same decision by the paper's genetic search: how many times longer it takes, and the value it loses."""
    snapshot, exact, genetic = _running_snapshot(jobs, cluster), Pollux(), Pollux(search="genetic")
    ours, _ = best_of(3, lambda: exact.decide(snapshot))
    theirs, _ = best_of(1, lambda: genetic.decide(snapshot))
    best, evolved = exact.allotment(snapshot)[2], genetic.allotment(snapshot)[2]
    return {"seconds": ours, "times_longer": theirs / ours, "worth_less": 1.0 - evolved.value / best.value}
