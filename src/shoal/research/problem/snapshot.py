"""A problem file as a snapshot, for policies that give whole GPUs: all its jobs wait.

A job scales as ``by_gpus`` says; with ``throughput`` alone it is a gang of ``gpus``. One with ``goodput`` may have any
number of GPUs.
"""

from dataclasses import replace

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError
from shoal.core.events import JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Node, topology_of
from shoal.engine.state import State
from shoal.perf.catalog import Catalog
from shoal.perf.model import ProfiledModel
from shoal.perf.profile import MeasuredRate, ScalingProfile, StepTimes, TableProfile
from shoal.research.problem.problem_file import Goodput, Problem, ProblemJob


def snapshot_of(problem: Problem) -> Snapshot:
    """The problem as a policy in the ring would see it, at the latest of ``now`` and all arrivals."""
    sizes = {kind: enumerate(problem.node_sizes(kind)) for kind in problem.cluster}
    nodes = [Node(f"{kind}-{number}", kind, gpus) for kind, numbered in sizes.items() for number, gpus in numbered]
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


def _profile(problem: Problem, job: ProblemJob) -> TableProfile | ScalingProfile:
    if job.goodput is not None:
        return _scaling(problem, job.goodput, job.steps_left)
    rates = {kind: {job.gpus: rate} for kind, rate in job.throughput.items()} | job.by_gpus
    figures = {kind: tuple(MeasuredRate(n, by[n], by[n]) for n in sorted(by)) for kind, by in rates.items() if by}
    return TableProfile({1: figures})


def _scaling(problem: Problem, goodput: Goodput, steps_left: float | None) -> ScalingProfile:
    times = {}
    for kind, theta in goodput.theta.items():
        local = theta.alpha_local, theta.beta_local
        nodes = None if theta.alpha_node is None else (theta.alpha_node, theta.beta_node or 0.0)
        size = problem.gpus_per_node.get(kind, max(problem.cluster[kind], 1))
        compute = theta.alpha_grad, theta.beta_grad
        times[kind] = StepTimes(compute, local, nodes, theta.gamma, goodput.batch.most_local, size)
    noise = ((0.0, goodput.pgns), (1.0, goodput.pgns))
    return ScalingProfile(times, goodput.batch.initial, goodput.batch.most, noise, steps_left or 1.0)


def _spec(job: ProblemJob) -> JobSpec:
    batch = job.goodput.batch if job.goodput is not None else None
    counts = sorted(n for by in job.by_gpus.values() for n in by)
    if batch is not None:
        counts = [1, max(batch.most // batch.least_local, 1)]
    low = job.min_gpus or (counts[0] if counts else job.gpus)
    high = job.max_gpus or (counts[-1] if counts else job.gpus)
    if low > high:
        raise InputError(f"job {job.id}, min_gpus", low, f"must be from 1 to max_gpus, which is {high}")
    gang = min(max(job.gpus, low), high)
    spec = JobSpec(job.id, job.arrived, gang, job.steps_left, low, high, model=job.id, weight=job.weight)
    if batch is None:
        return spec
    limits = BatchLimits(batch.initial, batch.most, batch.least_local, batch.most_local)
    return replace(spec, batch_size=batch.initial, limits=limits)
