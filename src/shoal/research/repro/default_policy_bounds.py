"""How far the default policy ``shoal`` is from the best possible schedule on Shockwave's public traces.

Bounds come from ``completion_bound`` with the jobs' true run times known in advance and free restarts, which no policy
has. Policies are measured as in ``repro.shockwave``, whose stored results are reused.
"""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np

from shoal.research.repro.completion_bound import Tasks, least_completion
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.shockwave import TRACES, TraceCase, measure, public_trace, true_seconds
from shoal.research.repro.table import Cell, Column, Table, table

FAIR_RHO = 2.0
"""Worst ρ below which a policy counts as fair and its JCT is compared."""

_OTHERS = ("shockwave", "srtf", "srsf")


def least_mean_jct(data: Path, trace: str, seed: int, makespan: float, rho: float = inf) -> float:
    """Return a lower bound on the mean JCT of a public trace, in seconds.

    It holds for every schedule that ends by ``makespan`` and has no ρ above ``rho``.
    """
    jobs = public_trace(data, trace, seed).jobs
    gpus = TRACES[trace][2]
    released = np.array([job.submitted for job in jobs])
    seconds = true_seconds(data, trace, jobs)
    fair = released + rho * max(1.0, len(jobs) / gpus) * seconds
    tasks = Tasks(released, seconds, np.array([float(job.gpus) for job in jobs]), np.minimum(fair, makespan))
    return float((least_completion(tasks, gpus).total - released.sum()) / len(jobs))


def _policy_figures(context: ReproContext, trace: str, policy: str, seed: int) -> Mapping[str, float]:
    key = {"paper": "shockwave", "what": "compared", "trace": trace, "policy": policy, "case": seed}
    label = f"trace {trace}, policy {policy}, order {seed}"
    found: Mapping[str, float] = context.run(key, label, _measure, context.data, trace, policy, seed)
    return found


def _measure(data: Path, trace: str, policy: str, seed: int) -> dict[str, float]:
    _, speeds, gpus = TRACES[trace]
    return measure(data, TraceCase(policy, public_trace(data, trace, seed), speeds, gpus, seed))


def _bound(context: ReproContext, trace: str, seed: int, makespan: float, rho: float = inf) -> float:
    limit = None if rho == inf else rho
    key = {"paper": "house", "what": "least JCT", "trace": trace, "case": seed, "makespan": makespan, "rho": limit}
    label = f"trace {trace}, order {seed}: least mean JCT by {makespan:,.0f} s, worst ρ {rho:.2f}"
    found: float = context.run(key, label, least_mean_jct, context.data, trace, seed, makespan, rho)
    return found


def _row(context: ReproContext, trace: str, seeds: Sequence[int]) -> list[Cell]:
    runs = {policy: [_policy_figures(context, trace, policy, seed) for seed in seeds] for policy in ("shoal", *_OTHERS)}
    worst = {policy: max(run["rho"] for run in found) for policy, found in runs.items()}
    fairest = min(worst[policy] for policy in _OTHERS)
    theirs = [run["makespan"] for run in runs["shockwave"]]
    ours = [run["makespan"] for run in runs["shoal"]]
    jct = {policy: fmean(run["jct"] for run in found) for policy, found in runs.items()}
    return [
        trace,
        jct["shoal"],
        jct["srtf"],
        jct["srsf"] if worst["srsf"] < FAIR_RHO else None,
        fmean(_bound(context, trace, seed, by) for seed, by in zip(seeds, ours, strict=True)),
        fmean(_bound(context, trace, seed, by) for seed, by in zip(seeds, theirs, strict=True)),
        fmean(_bound(context, trace, seed, by, fairest) for seed, by in zip(seeds, theirs, strict=True)),
    ]


def _tables(context: ReproContext) -> list[Table]:
    traces, seeds = (("120",), range(1)) if context.quick else (tuple(TRACES), range(5))
    columns = (
        "shoal, JCT s",
        "srtf",
        "srsf, if fair at all",
        "no schedule below, done when shoal is",
        "done when shockwave is",
        "and no worse ρ than the fairest other",
    )
    return [
        table(
            f"mean completion times and their lower bounds, means over {len(seeds)} orders of arrival",
            ["jobs", *(Column(name, ",.0f") for name in columns)],
            [_row(context, trace, seeds) for trace in traces],
            "none: the policy is ours",
            "each bound holds for each order; a bound above a policy's JCT means that no schedule achieves both",
        )
    ]


REPRODUCTIONS = (
    Reproduction("house-room", "the default policy", "lower bounds that hold for any schedule", _tables, "shockwave"),
)
