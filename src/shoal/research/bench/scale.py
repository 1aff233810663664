"""Growth of every policy's decisions with the cluster: CPU seconds of a cycle at three sizes, and its exponent.

A cycle is freeze, decide, place and plan. The first starts all jobs that fit; the steady ones each follow an arrival,
an end or a review. Jobs arrive and end every 20 s on average. Workloads:

- ``rigid``: gangs of 1 to 8 GPUs on one kind, at 1.4 to 3.5 times the cluster's size.
- ``elastic``: AFS's models on one kind, each from 1 GPU to the most it can use.
- ``kinds``: the demonstration's jobs on three kinds: some elastic, some of changing batch size, in apps of ten.
"""

from dataclasses import dataclass
from math import log

import msgspec
import numpy as np

from shoal.core.topology import parse_cluster
from shoal.research.bench.timing import cycle_seconds
from shoal.scenario.scenario import Scenario
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

FIRST_SECONDS = 2.0
"""Budget of the first cycle at the largest size."""

SIZES = ((2_500, 256), (10_000, 1_024), (50_000, 12_500))
"""Live jobs and nodes of eight GPUs."""

WORKLOADS = {"rigid": "gpu:{0}x8", "elastic": "gtx1080:{0}x8", "kinds": "v100:{1}x8,p100:{1}x8,k80:{2}x8"}
"""By workload its cluster, a format of three numbers: all nodes, a third of them, and the nodes left by two thirds."""

_EVERY = 20.0
_CYCLES = 60
_LATER = 200
_TOO_LONG = 8.0
"""CPU seconds of the first and a steady cycle together after which no larger size is measured."""
_ENOUGH = 60.0
"""CPU seconds of cycles at one size after which no further cycle is measured."""


@dataclass(frozen=True, slots=True)
class CycleSeconds:
    """CPU seconds of the first cycle, and the median and the longest of the others."""

    first: float
    steady: float
    longest: float


def cluster_of(workload: str, nodes: int) -> str:
    """The cluster on which a workload runs."""
    return WORKLOADS[workload].format(nodes, nodes // 3, nodes - 2 * (nodes // 3))


def jobs_of(workload: str, live: int) -> list[Job]:
    """``live`` jobs at time 0 and one more every 20 s, long enough that one ends about every 20 s."""
    rng, count = np.random.default_rng(7), live + _LATER
    lengths = rng.exponential(_EVERY * live, count).tolist()
    submitted = [0.0] * live + [_EVERY * (i + 1) for i in range(_LATER)]
    if workload == "rigid":
        sizes = rng.choice([1, 1, 1, 2, 4, 8], count).tolist()
        rows = zip(submitted, sizes, lengths, strict=True)
        return [Job(id=f"j{i}", submitted=at, gpus=gpus, work=work) for i, (at, gpus, work) in enumerate(rows)]
    drawn = generate("afs" if workload == "elastic" else "demo", jobs=count, seed=3).jobs
    typical = 5000.0  # seconds of a drawn job
    return [
        msgspec.structs.replace(
            job,
            submitted=at,
            work=job.work * length / typical,
            declared_work=None if job.declared_work is None else job.declared_work * length / typical,
            batch_schedule=tuple((done * length / typical, size) for done, size in job.batch_schedule),
            deadline=None if job.deadline is None else at + 3.0 * length,
            app=None if job.app is None else f"app{i // 10}",
        )
        for i, (job, at, length) in enumerate(zip(drawn, submitted, lengths, strict=True))
    ]


def cycles(policy: str, workload: str, live: int, nodes: int) -> CycleSeconds:
    """Measure the first cycle and up to 60 more."""
    jobs = jobs_of(workload, live)
    scenario = Scenario(parse_cluster(cluster_of(workload, nodes)), policy, restart_cost="0").resolved(jobs)
    seconds: list[float] = []
    for spent in cycle_seconds(scenario, jobs):
        seconds.append(spent)
        if len(seconds) > _CYCLES or (len(seconds) >= 2 and sum(seconds) >= _ENOUGH):
            break
    return CycleSeconds(seconds[0], float(np.median(seconds[1:])), max(seconds[1:]))


def growth(policy: str, workload: str) -> dict[str, float]:
    """Measure a policy at every size; ``seconds`` is the steady cycle of the largest.

    The exponents are the slopes of log seconds over log jobs, by least squares. A size follows only where the one
    before it took little; otherwise ``seconds`` is extrapolated by the exponent.
    """
    figures: dict[str, float] = {}
    measured: list[CycleSeconds] = []
    for live, nodes in SIZES:
        if len(measured) > 1 and measured[-1].first + measured[-1].steady > _TOO_LONG:
            break
        measured.append(cycles(policy, workload, live, nodes))
        figures |= {
            f"steady_{live}": measured[-1].steady,
            f"first_{live}": measured[-1].first,
            f"longest_{live}": measured[-1].longest,
        }
    sizes = np.array([log(live) for live, _ in SIZES[: len(measured)]])
    for name in ("steady", "first"):
        values = np.log([max(getattr(one, name), 1e-6) for one in measured])
        figures[f"{name}_exponent"] = float(np.polyfit(sizes, values, 1)[0])
    larger = SIZES[-1][0] / SIZES[len(measured) - 1][0]
    return {"seconds": measured[-1].steady * larger ** figures["steady_exponent"], **figures}


def growth_cell(figures: dict[str, float]) -> str:
    """The exponents, the first cycle of the largest size measured, and the longest of the others."""
    live = max(int(name.removeprefix("first_")) for name in figures if name.removeprefix("first_").isdigit())
    first, longest = figures[f"first_{live}"], figures[f"longest_{live}"]
    late = f", above {FIRST_SECONDS:g} s" if first > FIRST_SECONDS else ""
    guess = "extrapolated, " if live < SIZES[-1][0] else ""
    return (
        f"{guess}n^{figures['steady_exponent']:.1f}; first {first:.3g} s (n^{figures['first_exponent']:.1f}{late}), "
        f"longest {longest:.3g} s with {live:,} jobs"
    )
