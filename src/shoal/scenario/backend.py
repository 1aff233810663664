"""The simulated backend of a scenario, and checks that a workload can be simulated in it."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.core.errors import InputError, nearest
from shoal.core.quota import parse_quota
from shoal.core.topology import Topology
from shoal.perf.catalog import Catalog
from shoal.perf.measured_profile import MeasuredProfile
from shoal.scenario.scenario import Scenario
from shoal.scenario.specs import read_faults
from shoal.sim.adaptive_jobs import TunerOptions
from shoal.sim.backend import SimulatedBackend
from shoal.sim.cloud import Cloud, CloudTerms
from shoal.sim.faults import Faults, JobFault
from shoal.sim.searches import Searches
from shoal.sim.truth import RestartCost, Truth
from shoal.workload.schema import Job, Workload


def make_backend(scenario: Scenario, jobs: Sequence[Job], known: Catalog) -> SimulatedBackend | Searches | Cloud:
    """Return the simulated cluster: with app schedulers if jobs are trials, on rented nodes in a cloud."""
    if scenario.cloud is None:
        return _cluster_backend(scenario, jobs, known, TunerOptions())
    terms = CloudTerms.parse(scenario.cloud)
    simulated = _cluster_backend(scenario, jobs, known, terms.tuning)
    return Cloud(simulated, simulated.world if isinstance(simulated, Searches) else simulated, terms)


def _cluster_backend(
    scenario: Scenario, jobs: Sequence[Job], known: Catalog, tuning: TunerOptions
) -> SimulatedBackend | Searches:
    faults, restart_cost = _faults(scenario, jobs), RestartCost.parse(scenario.restart_cost)
    truth = Truth.of(jobs, faults.grown(scenario.cluster), known, noise=scenario.noise, seed=scenario.seed)
    spread = scenario.measurement_noise
    if any(job.search is not None for job in jobs):
        return Searches.of(truth, scenario.declared, restart_cost, faults, scenario.seed, spread, tuning=tuning)
    specs = [scenario.declared(job, speed) for job, speed in zip(jobs, truth.factors, strict=True)]
    return SimulatedBackend(truth, specs, restart_cost, faults, scenario.seed, measurement_noise=spread, tuning=tuning)


def _faults(scenario: Scenario, jobs: Sequence[Job]) -> Faults:
    numbers = {job.id: number for number, job in enumerate(jobs)} if scenario.faults else {}
    faults = read_faults(scenario.faults, scenario.cluster, numbers)
    if any(isinstance(fault, JobFault) for fault in faults.script) and any(job.search is not None for job in jobs):
        # Which job is the n-th depends on how the searches go.
        hint = "a job cannot be named where trials are searched; lose nodes instead"
        raise InputError("faults", scenario.faults, hint)
    if faults.joins and scenario.cloud is not None:
        raise InputError("faults", scenario.faults, "no node can join where nodes are rented (cloud)")
    return faults


def check(scenario: Scenario, workload: Workload) -> None:
    """Raise the ``InputError`` that simulating this workload would raise, before anything is run or written."""
    faults = _faults(scenario, workload.jobs)
    check_speeds(replace(scenario, cluster=faults.grown(scenario.cluster)), workload.jobs, scenario.speeds())
    tenants = {job.tenant for job in workload.jobs}
    for tenant, _ in map(parse_quota, scenario.quotas):
        if tenant not in tenants:  # it would have no effect
            raise InputError("quotas, tenant", tenant, nearest(tenant, tenants))


def check_speeds(scenario: Scenario, jobs: Sequence[Job], known: Catalog) -> None:
    """Refuse GPU types and models without known speeds, and profiles that lack a model of the workload."""
    models = dict.fromkeys(job.model for job in jobs)
    _check_kinds(models, scenario.cluster, known)
    for model in filter(None, models):
        if model not in known.models:
            first = next(job.id for job in jobs if job.model == model)
            raise InputError(f"job {first}, model", model, nearest(model, known.models))
        kinds = known.profile(model).kinds
        if kinds is not None and not set(kinds) & set(scenario.cluster.kinds):
            kind = scenario.cluster.kinds[0]
            hint = f"{nearest(kind, kinds)} (types with figures for {model}; --throughputs FILE adds others)"
            raise InputError("cluster, GPU type", kind, hint)
    for model in filter(None, models if scenario.profiles else ()):
        if not isinstance(known.profile(model), MeasuredProfile):  # the catalogue's figures would be used unnoticed
            hint = f"has no folder {model}, a model of this workload"
            raise InputError("profiles", ", ".join(scenario.profiles), hint)


def _check_kinds(models: dict[str | None, None], cluster: Topology, known: Catalog) -> None:
    if not models or None in models:  # a job without a model runs on any type
        return
    for kind in cluster.kinds:
        if kind not in known.kinds:
            hint = f"{nearest(kind, known.kinds)} (--throughputs FILE adds others)"
            raise InputError("cluster, GPU type", kind, hint)
