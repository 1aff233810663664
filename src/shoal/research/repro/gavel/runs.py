"""Runs of policies on Gavel's generated traces, and the figures of the jobs that count.

The cluster is a third of the paper's: 12 V100, 12 P100 and 12 K80 in nodes of four, at a third of its arrivals; rates
are given for the paper's 108 GPUs. Jobs arrive for `SPAN_HOURS` (a quick run: a quarter of it), where the paper's
traces span 20 to 30 days. Completion times are those of the jobs from `COUNTED` of the trace (the paper: 4,000 to 5,000
of at least 5,000): these run while the cluster is full, except for the end of the longest. A restart costs 5 s, the
paper's longest checkpoint.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from shoal.core.arrays import Flags, Floats
from shoal.core.topology import parse_cluster
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Workload

PAPER = "Gavel (OSDI '20)"
CLUSTER = "v100:3x4,p100:3x4,k80:3x4"
SCALE = 3.0
"""The paper's GPUs over those of `CLUSTER`."""

SPAN_HOURS = 320.0
COUNTED = (0.55, 0.8)
SEEDS = (0, 1, 2, 3, 4)
QUICK_SEEDS = (0,)
RESTART = "5"
HOUR = 3600.0
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

AWARE = "gavel.max-min"
AGNOSTIC = "gavel.max-min:aware=false"
SHARING = "gavel.max-min:space_sharing=true"
GANDIVA = "gandiva:space_sharing=true,migrate=false,quantum=360"
"""The paper's "LAS with Gandiva's ad-hoc space sharing", which does not know kinds."""

HIGH = 5.0
"""Weight of jobs of high priority; the paper does not print it, its public code has 5."""

HERE = (
    "a third of the paper's cluster at a third of its arrivals, for 13 days (paper: 20 to 30; a quick run: 3); "
    "the mean is over the 55th to 80th percent of jobs (paper: jobs 4,000 to 5,000), in hours"
)


@dataclass(frozen=True, slots=True)
class LoadCase:
    """One run: trace (``single`` or ``multiple``), jobs an hour on 108 GPUs, policy, seed, and settings of few figures.

    ``urgent`` is the fraction of jobs of high priority; ``span`` the hours over which jobs arrive.
    """

    trace: str
    rate: float
    policy: str
    seed: int
    round: float = 360.0
    cluster: str = CLUSTER
    scale: float = SCALE
    knowledge: str | None = None
    urgent: float = 0.0
    span: float = SPAN_HOURS

    def workload(self) -> Workload:
        """The jobs of the run."""
        per_hour = self.rate / self.scale
        jobs, gap = max(round(per_hour * self.span), 8), HOUR / per_hour
        made = generate(f"gavel-continuous-{self.trace}", jobs=jobs, seed=self.seed, interarrival=gap)
        if not self.urgent:
            return made
        high = np.random.default_rng([self.seed, 9]).random(jobs) < self.urgent
        weighed = (
            msgspec.structs.replace(job, weight=HIGH if urgent else 1.0)
            for job, urgent in zip(made.jobs, high.tolist(), strict=True)
        )
        return Workload(made.name, tuple(weighed))


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Of the jobs that count: mean hours, their quantiles at `QUANTILES`, mean ρ (`rho_isolated`); starts of all jobs.

    ``high`` and ``low`` are mean hours by priority, 0 without jobs of that priority.
    """

    hours: float
    quantiles: tuple[float, ...]
    rho: float
    restarts: int
    high: float = 0.0
    low: float = 0.0


Results = Mapping[LoadCase, LoadResult]


def measure(case: LoadCase) -> dict[str, Any]:
    """Run one case."""
    workload = case.workload()
    scenario = Scenario(
        parse_cluster(case.cluster),
        case.policy,
        seed=case.seed,
        round=case.round,
        restart_cost=RESTART,
        knowledge=case.knowledge,
    )
    return asdict(summed_up(run(scenario, workload), np.array([job.weight for job in workload.jobs])))


def summed_up(found: SimulationResult, weights: Floats) -> LoadResult:
    """The figures of the jobs that count."""
    counted = counts(len(found.jobs))
    hours, rho = found.jobs.jct / HOUR, found.jobs.rho["isolated"][counted]
    return LoadResult(
        hours=float(hours[counted].mean()),
        quantiles=tuple(np.quantile(hours[counted], QUANTILES).tolist()),
        rho=float(rho[np.isfinite(rho)].mean()),
        restarts=int(found.jobs.restarts.sum()),
        high=_mean(hours[counted & (weights > 1.0)]),
        low=_mean(hours[counted & (weights <= 1.0)]),
    )


def counts(jobs: int) -> Flags:
    """By job in order of arrival: whether it counts."""
    place = np.arange(jobs)
    first, last = (round(part * jobs, 9) for part in COUNTED)
    counted: Flags = (place >= first) & (place < max(last, first + 1))
    return counted


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def measure_all(context: ReproContext, cases: Iterable[LoadCase]) -> Results:
    """The results of all cases, each computed once or stored."""
    wanted = list(dict.fromkeys(cases))
    planned = [Task({"gavel": asdict(case)}, _label(case), measure, (case,)) for case in wanted]
    found = run_all(context, planned)
    return {
        case: LoadResult(**{**one, "quantiles": tuple(one["quantiles"])})
        for case, one in zip(wanted, found, strict=True)
    }


def _label(case: LoadCase) -> str:
    return f"{case.policy}, {case.trace}, {case.rate:g} jobs/h, seed {case.seed}, rounds of {case.round:g} s"


def seeds(context: ReproContext) -> tuple[int, ...]:
    """The seeds of a full or quick run."""
    return QUICK_SEEDS if context.quick else SEEDS


def span(context: ReproContext) -> float:
    """Hours over which jobs arrive, in a full or quick run."""
    return SPAN_HOURS / 4 if context.quick else SPAN_HOURS
