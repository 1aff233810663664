"""Benches of goodput: fitting a job's step times, the best batches of many jobs, and whole decisions of Pollux.

Measurements are made up from known step times and seeded noise. Best of three, in CPU seconds.
"""

from collections.abc import Callable
from dataclasses import replace
from time import process_time

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.commands import Start
from shoal.core.decision import Verdicts
from shoal.core.events import JobSubmitted
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchLimits, BatchSetting, JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, parse_cluster
from shoal.perf.catalog import catalog
from shoal.perf.fit import Observation, fitted
from shoal.perf.goodput import best_of_many, iteration_seconds
from shoal.policy.elastic.rank import Rank
from shoal.policy.pollux.policy import Pollux
from shoal.scenario.scenario import Scenario

_TRUTH = StepFit((0.05, 0.002), (0.04, 0.001), (0.12, 0.002), (0.2, 0.003), 2.5, 256)
"""Close to an image model on four-GPU nodes: a pass of 64 samples takes as long as synchronising two nodes."""

_SIZES = np.array([1, 2, 3, 4, 8, 12, 16, 24, 32, 40, 48, 64])


def _best_of(times: int, what: Callable[[], object]) -> float:
    seconds = float("inf")
    for _ in range(times):
        begin = process_time()
        what()
        seconds = min(seconds, process_time() - begin)
    return seconds


def _measured(count: int, error: float) -> list[Observation]:
    """So many measurements with a relative error, on one to 64 GPUs within a node, a rack and two racks."""
    chance = np.random.default_rng(5)
    seen = []
    for gpus, local in zip(chance.choice(_SIZES, count), chance.choice([16, 32, 64, 128, 256], count), strict=True):
        nodes = max(1, -(-int(gpus) // 4))
        apart = Locality.SAME_NODE if nodes == 1 else Locality(int(chance.integers(1, 3)))
        once = _TRUTH.compute[0] + _TRUTH.compute[1] * int(local)
        step = float(iteration_seconds(_TRUTH, int(local), 0, int(gpus), int(apart)))
        off = np.exp(error * chance.standard_normal(2))
        seen.append(Observation(int(gpus), nodes, apart, int(local), once * float(off[0]), step * float(off[1])))
    return seen


def fit(count: int) -> dict[str, float]:
    """Seconds to fit so many measurements from nothing, and again with one more from the fit before; their error."""
    seen = _measured(count + 1, 0.03)
    first = fitted(seen[:-1], 256)
    again = _best_of(3, lambda: fitted(seen, 256, start=first))
    return {"seconds": _best_of(3, lambda: fitted(seen[:-1], 256)), "again_seconds": again, "error": first.error}


def _unlike(jobs: int, seed: int) -> tuple[list[StepFit], list[BatchLimits], Floats]:
    """Step times, limits and noise scales of so many jobs of five models, no two alike."""
    chance = np.random.default_rng(seed)
    models = ((128, 4096, 32, 1024), (200, 12800, 20, 200), (12, 384, 4, 12), (20, 640, 5, 40), (8, 512, 4, 8))
    limits = [BatchLimits(*models[i % len(models)]) for i in range(jobs)]
    fits = []
    for limit in limits:
        once, share, exposed = chance.uniform((0.02, 0.5, 0.1), (0.3, 5.0, 8.0)).tolist()
        sync = once * exposed
        fits.append(
            StepFit(
                (once, once * share / limit.most_local),
                (sync, 0.01 * sync),
                (3.0 * sync, 0.02 * sync),
                (4.0 * sync, 0.02 * sync),
                float(chance.uniform(1.0, 10.0)),
                limit.most_local,
            )
        )
    return fits, limits, np.exp(chance.uniform(4.0, 10.0, jobs))


def batches(jobs: int) -> dict[str, float]:
    """Seconds to find the best batch of so many unlike jobs on each of twelve sizes of allocation."""
    fits, limits, noises = _unlike(jobs, 6)
    apart = (_SIZES > 4).astype(np.int64)
    return {"seconds": _best_of(3, lambda: best_of_many(fits, limits, noises, _SIZES, apart))}


def _moment(jobs: int, cluster: str) -> Snapshot:
    """So many unlike jobs in mid-run: each has what it was given before anything was known, and has reported since."""
    fits, limits, noises = _unlike(jobs, 7)
    chance = np.random.default_rng(8)
    world = parse_cluster(cluster)
    state = Scenario(world, "pollux").make_state(catalog())
    work = np.exp(chance.uniform(10.0, 18.0, jobs)).tolist()
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
            zip(fits, limits, noises.tolist(), chance.choice([1, 2, 4, 8, 16], jobs), strict=True)
        )
    }
    return replace(state.freeze(), reports=reports)


def decision(jobs: int, cluster: str) -> dict[str, float]:
    """Seconds of one decision of ``pollux``, and of ``rank``, and the gap of the first to the Lagrangian bound."""
    moment, pollux, rank = _moment(jobs, cluster), Pollux(), Rank()
    return {
        "seconds": _best_of(3, lambda: pollux.decide(moment)),
        "rank_seconds": _best_of(3, lambda: rank.decide(moment)),
        "gap": pollux.allotment(moment)[2].gap,
    }


def against_genetic(jobs: int, cluster: str) -> dict[str, float]:
    """The same decision by the paper's search: how much longer it takes, and how much less its answer is worth."""
    moment, exact, genetic = _moment(jobs, cluster), Pollux(), Pollux(search="genetic")
    ours = _best_of(3, lambda: exact.decide(moment))
    theirs = _best_of(1, lambda: genetic.decide(moment))
    best, evolved = exact.allotment(moment)[2], genetic.allotment(moment)[2]
    return {"seconds": ours, "times_longer": theirs / ours, "worth_less": 1.0 - evolved.value / best.value}
