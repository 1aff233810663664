"""``shoal.simulate``: one simulation from Python, from names or from objects."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError, nearest
from shoal.core.interfaces import Policy
from shoal.core.topology import Topology
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.scenario.specs import read_cluster
from shoal.scenario.workload_source import WorkloadSource
from shoal.workload.schema import Job, Workload

_NAMED = ("cluster", "policy", "tolerate_policy_errors")
_SETTINGS = tuple(f.name for f in fields(Scenario) if f.name not in _NAMED)


def simulate(
    policy: str | Policy | type[Policy],
    workload: str | Path | Workload | Iterable[Job],
    cluster: str | Topology,
    *,
    jobs: int | None = None,
    journal: str | Path | None = None,
    **settings: Any,
) -> SimulationResult:
    """Simulate a workload under a policy on a cluster.

    - ``policy``: a specification such as ``"las:quantum=600"``, or an object with a ``decide`` method, or its class.
    - ``workload``: a file, a generator's name, a ``Workload``, or jobs; ``jobs`` is how many to keep, or to generate.
    - ``cluster``: ``"v100:2x4,k80:2x4"``, a YAML file, or a ``Topology``.
    - ``journal``: a new file for the journal; without one it is kept in memory.
    - ``settings``: further fields of ``Scenario``, e.g. ``seed=1``, ``knowledge="oracle"``, ``noise=0.1``.

    Bad input raises ``InputError``, which names the field, the value and a way out.
    """
    for name in settings:
        if name not in _SETTINGS:
            raise InputError("setting", name, nearest(name, _SETTINGS))
    name, own = _policy(policy)
    if own is not None and settings.get("round") is not None:
        raise InputError("round", settings["round"], "applies to policies given by name; set it on the object")
    topology = cluster if isinstance(cluster, Topology) else read_cluster(cluster)
    if "profiles" in settings:
        settings["profiles"] = tuple(settings["profiles"])
    if "quotas" in settings:
        settings["quotas"] = tuple(settings["quotas"])
    try:
        scenario = Scenario(topology, name, **settings)
    except TypeError as error:
        raise InputError("settings", settings, str(error)) from error
    path = None if journal is None else Path(journal)
    return run(scenario, _workload(workload, jobs, scenario.seed), journal_path=path, policy=own)


def _policy(policy: str | Policy | type[Policy]) -> tuple[str, Policy | None]:
    """The name that the journal records, and the policy object unless the name specifies it."""
    if isinstance(policy, str):
        return policy, None
    own: Policy = policy() if isinstance(policy, type) else policy
    if not callable(getattr(own, "decide", None)):
        raise InputError("policy", own, "must be a specification or an object with a method decide(snapshot)")
    module = type(own).__module__
    return type(own).__qualname__ if module == "__main__" else f"{module}.{type(own).__qualname__}", own


def _workload(workload: str | Path | Workload | Iterable[Job], jobs: int | None, seed: int) -> Workload:
    if isinstance(workload, str | Path):
        return WorkloadSource(str(workload), jobs=jobs).load(seed)
    if not isinstance(workload, Workload):
        given = tuple(workload)
        if wrong := next((job for job in given if not isinstance(job, Job)), None):
            raise InputError("workload", wrong, "must be a file, a generator's name, a Workload or jobs")
        workload = Workload("jobs", given)
    return workload if jobs is None else workload.first(jobs)
