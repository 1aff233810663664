"""Forecasts of starts, and comparisons of the present with changed ones: other policies, more nodes, one more job.

The state folded from a journal is simulated onward, once for each seed and change. Every answer assumes that no further
job arrives, none crashes, and nodes that are down stay down; what policies remember beside the state (``carry``) starts
empty, as after a restart of the control plane. The same journal, moment and question give the same answer unless the
CPU budget runs out.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.core.job import JobSpec
from shoal.core.topology import Node, Topology, parse_cluster
from shoal.core.units import JobId, Seconds, TenantId
from shoal.forecast.branches import Branch, BranchOutcome, run_branches
from shoal.forecast.present import Present, Source, read_present
from shoal.live.admission import Admission
from shoal.perf.work_prior import DECLARED_SPREAD
from shoal.policy.registry import is_policy_file
from shoal.report.compare import t_interval
from shoal.wire.messages import StartForecast, Submission, WhatIf

FORECAST_SECONDS = 4.0
"""CPU seconds of a forecast, without reading the journal: three simulations of some 20 jobs. One has no spread."""
WHAT_IF_SECONDS = 20.0
"""CPU seconds that an answer may take, without reading the journal."""

AS_IT_IS = "as it is"

ASSUMPTIONS = (
    "no further job arrives and none crashes",
    "nodes that are down stay down",
    f"declared work is off by a lognormal spread of {DECLARED_SPREAD}",
    "what is not declared is drawn from earlier runs that were longer, else as long again as it has run",
)

_MOST_NODES_ADDED = 10_000
_LOW, _HIGH = 0.1, 0.9
_HOUR: Seconds = 3600.0
_FIGURES = ("avg_jct", "makespan", "avg_wait")


def forecast(
    source: Source, now: Seconds, seeds: int = 5, most_seconds: float = FORECAST_SECONDS
) -> dict[JobId, StartForecast]:
    """Start times of the waiting jobs under the policy in force, over as many of the seeds as the CPU seconds allow.

    A job that did not start in one of the simulations, because it cannot or because time ran out, has no forecast.
    """
    present = read_present(source, now)
    fork = present.fork()
    if not fork.waiting:
        return {}
    branch = Branch(AS_IT_IS, present.scenario, present.scheduler, fork, present.review_at)
    (outcomes,) = run_branches([branch], seeds, most_seconds, to_starts=True)
    found: dict[JobId, StartForecast] = {}
    for job in sorted(fork.waiting):
        if all(job in outcome.starts for outcome in outcomes):
            low, median, high = _quantiles([outcome.starts[job] for outcome in outcomes], _LOW, 0.5, _HIGH)
            found[fork.specs[job].id] = StartForecast(median, low, high)
    return found


def what_if(
    source: Source,
    now: Seconds,
    question: WhatIf,
    *,
    tenant: TenantId | None = None,
    most_seconds: float = WHAT_IF_SECONDS,
) -> dict[str, Any]:
    """Compare the present as it is with each other policy, with more nodes, and with one more job.

    The answer is plain values: figures of the cluster, and rows for the jobs of ``tenant`` (None: of everyone).

    Simulations are paired by seed, over as many of the seeds as the CPU seconds allow. Their figures are over the same
    jobs: those that end in every branch that was not ``cut``, without the one more. ``low`` and ``high`` are the 10th
    and 90th percentile over the seeds. A difference is to ``as it is``, with a 95 % interval of its mean.
    """
    branches = _branches(source, now, question)
    outcomes = run_branches(branches, question.seeds, most_seconds)
    whole = [not any(outcome.cut for outcome in runs) for runs in outcomes]
    finished = [outcome.ends.keys() for runs, ok in zip(outcomes, whole, strict=True) if ok for outcome in runs]
    fork = branches[0].fork
    common = sorted(set(fork.live).intersection(*finished)) if finished else []
    figures = [_figures(runs, common) if ok and common else {} for runs, ok in zip(outcomes, whole, strict=True)]
    rows = [row for branch, runs in zip(branches, outcomes, strict=True) for row in _job_rows(branch, runs)]
    return {
        "now": fork.now,
        "cut": None if all(whole) and len(outcomes[0]) == question.seeds else _cut(outcomes, question.seeds),
        "assumptions": list(ASSUMPTIONS),
        "basis": {basis.value: count for basis, count in Counter(fork.bases.values()).items()},
        "runs": [
            _run_row(branch, runs, len(common), own, figures[0])
            for branch, runs, own in zip(branches, outcomes, figures, strict=True)
        ],
        "jobs": [row for row in rows if tenant in (None, row["tenant"])],
    }


def _cut(outcomes: Sequence[Sequence[BranchOutcome]], seeds: int) -> str:
    done = sum(all(not runs[seed].cut for runs in outcomes) for seed in range(len(outcomes[0])))
    return f"time was up after {done} of {seeds} seeds"


# ── the branches of a question ────────────────────────────────────────────────────────────────────────────────────


def _branches(source: Source, now: Seconds, question: WhatIf) -> list[Branch]:
    for policy in question.policies:
        if is_policy_file(policy):
            hint = "names a file, which is never loaded on a request; choose a policy of `shoal policies`"
            raise InputError("policies", policy, hint)
    present = read_present(source, now)
    scenario, scheduler, fork = present.scenario, present.scheduler, present.fork()
    branches = [Branch(AS_IT_IS, scenario, scheduler, fork, present.review_at)]
    for policy in question.policies:
        other = replace(scenario, policy=policy)
        decider = replace(scheduler, policy=other.make_policy())
        branches.append(Branch(f"policy {policy}", other, decider, fork, fork.now))
    if question.add is not None:
        added = _nodes(question.add, scenario.cluster)
        wider = read_present(source, now, added=added, most=present.records)
        branches.append(Branch(f"{question.add} added", wider.scenario, wider.scheduler, wider.fork(), fork.now))
    if question.job is not None:
        spec = _spec(question.job, present)
        branches.append(Branch(f"{spec.id} submitted", scenario, scheduler, present.fork([spec]), present.review_at))
    return branches


def _nodes(spec: str, cluster: Topology) -> list[Node]:
    """The nodes to add, in racks of their own and under unused names."""
    try:
        new = parse_cluster(spec, most_nodes=_MOST_NODES_ADDED).nodes
    except InputError as error:
        raise InputError("add", spec, error.hint) from error
    taken = set(cluster.node_index)
    return [replace(node, name=_unique(node.name, taken), rack=f"added-{node.rack}") for node in new]


def _spec(wanted: Submission, present: Present) -> JobSpec:
    """The spec as it would be admitted now."""
    state = present.scheduler.state
    name = _unique(wanted.name, set(state.register.numbers))
    admission = Admission(present.scenario.cluster, present.scenario.speeds())
    spec, _ = admission.admit(wanted, name, wanted.tenant or "default", state.now)
    return spec


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "+"
    taken.add(name)
    return name


# ── the figures of an answer ──────────────────────────────────────────────────────────────────────────────────────


def _quantiles(values: Floats | Sequence[float], *parts: float) -> list[float]:
    """Quantiles, unbiased over few seeds: the next draw lies below each with its probability, within the extremes."""
    found: list[float] = np.quantile(np.asarray(values), parts, method="weibull").tolist()
    return found


def _range(values: Sequence[float]) -> dict[str, float]:
    low, median, high = _quantiles(values, _LOW, 0.5, _HIGH)
    return {"mean": float(np.mean(values)), "median": median, "low": low, "high": high}


def _figures(outcomes: Sequence[BranchOutcome], common: Sequence[int]) -> dict[str, Floats]:
    """Each figure in seconds, by seed, over these jobs."""
    fork = outcomes[0].fork
    age = np.array([fork.now - fork.specs[job].submitted for job in common])
    ends = np.array([[outcome.ends[job] for job in common] for outcome in outcomes])
    waited = np.array([[outcome.waited[job] for job in common] for outcome in outcomes])
    return dict(zip(_FIGURES, ((ends + age).mean(axis=1), ends.max(axis=1), waited.mean(axis=1)), strict=True))


def _run_row(
    branch: Branch, outcomes: Sequence[BranchOutcome], jobs: int, own: Mapping[str, Floats], base: Mapping[str, Floats]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": branch.label,
        "policy": branch.scenario.policy,
        "cluster": branch.scenario.cluster.describe(),
        "seeds": len(outcomes),
        "jobs": jobs,
        "unfinished": len(branch.fork.live) - min(len(outcome.ends) for outcome in outcomes),
        "cut": any(outcome.cut for outcome in outcomes),
        "hour": _next_hour(outcomes),
    }
    for name in _FIGURES:
        row[name] = _mean(own[name], _percentiles) if own else None
    if branch.label != AS_IT_IS:
        both = own and base
        row["difference"] = {name: _mean(own[name] - base[name], t_interval) for name in own} if both else None
    return row


def _next_hour(outcomes: Sequence[BranchOutcome]) -> dict[str, float]:
    """Mean numbers of waiting jobs that start, of jobs that end, and of stops and suspensions within the next hour."""
    waiting = outcomes[0].fork.waiting
    counts = [
        (
            sum(at <= _HOUR for job, at in outcome.starts.items() if job in waiting),
            sum(at <= _HOUR for at in outcome.ends.values()),
            sum(at <= _HOUR for _, at in outcome.stops),
        )
        for outcome in outcomes
    ]
    starts, ends, stops = np.mean(counts, axis=0).tolist()
    return {"starts": starts, "ends": ends, "stops": stops}


def _mean(values: Floats, reach: Callable[[Floats], tuple[float, float]]) -> dict[str, float | None]:
    """A mean over seeds and the range that ``reach`` gives; one seed has no range."""
    low, high = reach(values) if len(values) > 1 else (None, None)
    return {"mean": float(values.mean()), "low": low, "high": high}


def _percentiles(values: Floats) -> tuple[float, float]:
    low, high = _quantiles(values, _LOW, _HIGH)
    return low, high


def _job_rows(branch: Branch, outcomes: Sequence[BranchOutcome]) -> Iterator[dict[str, Any]]:
    for job in branch.fork.live:
        spec = branch.fork.specs[job]
        starts = [outcome.starts[job] for outcome in outcomes if job in outcome.starts]
        ends = [outcome.ends[job] for outcome in outcomes if job in outcome.ends]
        yield {
            "id": spec.id,
            "tenant": spec.tenant,
            "label": branch.label,
            "start": _range(starts) if len(starts) == len(outcomes) else None,
            "end": _range(ends) if len(ends) == len(outcomes) else None,
        }
