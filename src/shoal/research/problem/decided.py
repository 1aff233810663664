"""A policy's whole numbers of GPUs for a written-down problem: one decision, as in the ring, on jobs that all wait.

Any policy that gives GPUs and not time shares can be asked. Its jobs scale as ``by_gpus`` says; where only
``throughput`` is given the job is a gang of ``gpus``. One with ``goodput`` may be given any number of GPUs.
"""

from dataclasses import replace
from time import process_time
from typing import Any

from shoal.core.decision import Verdicts
from shoal.core.errors import InputError
from shoal.core.events import JobSubmitted
from shoal.core.interfaces import Policy
from shoal.core.job import BatchLimits, JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Node, topology_of
from shoal.engine.state import State
from shoal.perf.catalog import Catalog
from shoal.perf.model import ProfiledModel
from shoal.perf.profile import MeasuredRate, ScalingProfile, StepTimes, TableProfile
from shoal.research.problem.written import Goodput, WrittenJob, WrittenProblem, check

Answer = dict[str, Any]


def decide(problem: WrittenProblem, policy: Policy) -> Answer:
    """GPUs by job, the throughput each then has, and what it is told; nothing is optimised, so there is no gap."""
    check(problem)
    at = moment(problem)
    begin = process_time()
    verdicts = Verdicts.of(at, policy.decide(at).verdicts)
    seconds = process_time() - begin
    shares = dict(zip(at.ids, verdicts.gpus.tolist(), strict=True))
    kinds = [_kind(at, verdicts, i) for i in range(len(at.ids))]
    return {
        "objective": None,
        "shares": shares,
        "kinds": dict(zip(at.ids, kinds, strict=True)),
        "levels": {name: _level(at, i, kinds[i], shares[name]) for i, name in enumerate(at.ids)},
        "gap": None,
        "seconds": seconds,
        "refused": {},
        "notes": {name: verdicts.reason(i).sentence() for i, name in enumerate(at.ids)},
    }


def _kind(moment: Snapshot, verdicts: Verdicts, i: int) -> str | None:
    if not verdicts.gpus[i]:
        return None
    chosen = int(verdicts.kinds[i]) if verdicts.kinds is not None else -1
    return moment.cluster.kinds[chosen if chosen >= 0 else int(moment.columns.speeds[i].argmax())]


def _level(moment: Snapshot, i: int, kind: str | None, gpus: int) -> float:
    return 0.0 if kind is None else float(moment.perf.curve(moment.jobs.at(i), kind)[gpus])


def moment(problem: WrittenProblem) -> Snapshot:
    """The problem as a policy in the ring would see it: all its jobs wait."""
    nodes: list[Node] = []
    for kind, gpus in problem.cluster.items():
        size = problem.gpus_per_node.get(kind, max(min(gpus, 255), 1))
        sizes = [size] * (gpus // size) + [gpus % size] * (gpus % size > 0)
        nodes += [Node(f"{kind}-{n}", kind, count) for n, count in enumerate(sizes)]
    if not nodes:
        raise InputError("cluster", problem.cluster, "has no GPUs; this policy needs at least one")
    cluster = topology_of(nodes, problem.prices)
    profiles = {job.id: _profile(problem, job) for job in problem.jobs}
    sources = {(name, kind): "the problem" for name, p in profiles.items() for kind in p.kinds or ()}
    state = State(cluster, ProfiledModel(cluster, Catalog(profiles, sources)), 0)
    specs = sorted((_spec(job) for job in problem.jobs), key=lambda spec: spec.submitted)
    now = max([problem.now, *(spec.submitted for spec in specs)])
    state.apply_events(now, [JobSubmitted(spec.submitted, spec) for spec in specs])
    return state.freeze()


def _profile(problem: WrittenProblem, job: WrittenJob) -> TableProfile | ScalingProfile:
    if job.goodput is not None:
        return _scaling(problem, job.goodput, job.steps_left)
    rates = {kind: {job.gpus: rate} for kind, rate in job.throughput.items()} | job.by_gpus
    figures = {kind: tuple(MeasuredRate(n, by[n], by[n]) for n in sorted(by)) for kind, by in rates.items() if by}
    return TableProfile({1: figures})


def _scaling(problem: WrittenProblem, goodput: Goodput, steps_left: float | None) -> ScalingProfile:
    times = {}
    for kind, theta in goodput.theta.items():
        local = theta.alpha_local, theta.beta_local
        nodes = None if theta.alpha_node is None else (theta.alpha_node, theta.beta_node or 0.0)
        size = problem.gpus_per_node.get(kind, max(problem.cluster[kind], 1))
        compute = theta.alpha_grad, theta.beta_grad
        times[kind] = StepTimes(compute, local, nodes, theta.gamma, goodput.batch.most_local, size)
    noise = ((0.0, goodput.pgns), (1.0, goodput.pgns))
    return ScalingProfile(times, goodput.batch.initial, goodput.batch.most, noise, steps_left or 1.0)


def _spec(job: WrittenJob) -> JobSpec:
    batch = job.goodput.batch if job.goodput is not None else None
    counts = sorted(n for by in job.by_gpus.values() for n in by)
    if batch is not None:
        counts = [1, max(batch.most // batch.least_local, 1)]
    low = job.min_gpus or (counts[0] if counts else job.gpus)
    high = job.max_gpus or (counts[-1] if counts else job.gpus)
    if not 1 <= low <= high:
        raise InputError(f"job {job.id}, min_gpus", low, f"must be from 1 to max_gpus, which is {high}")
    gang = min(max(job.gpus, low), high)
    spec = JobSpec(job.id, job.arrived, gang, job.steps_left, low, high, model=job.id, weight=job.weight)
    if batch is None:
        return spec
    limits = BatchLimits(batch.initial, batch.most, batch.least_local, batch.most_local)
    return replace(spec, batch_size=batch.initial, limits=limits)
