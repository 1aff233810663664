"""A scenario: the settings of a run, how a journal's header records them, and the objects they describe."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.core.errors import InputError, JournalError, nearest
from shoal.core.events import QuotaSet, RunsImported
from shoal.core.interfaces import PerfModel, Placer, Policy
from shoal.core.job import MOST_LOST, JobSpec
from shoal.core.quota import parse_quota
from shoal.core.topology import Node, Topology, topology_of
from shoal.core.units import Seconds
from shoal.engine.loop import judge, judge_or_keep
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import Scheduler
from shoal.engine.state import State
from shoal.perf.catalog import Catalog, catalog
from shoal.perf.colocation import EstimatedModel
from shoal.perf.model import OnlineModel, ProfiledModel
from shoal.perf.profile_files import read_profiles
from shoal.perf.throughput_file import read_table
from shoal.placement.any import AnyPlacer
from shoal.placement.network import NetworkPlacer
from shoal.placement.packed import PackedPlacer
from shoal.placement.rack import RackPlacer
from shoal.policy.registry import knowledge_of, parse_policy
from shoal.policy.tuning import constants_of
from shoal.scenario.length_source import read_runs
from shoal.sim.cloud import CloudTerms
from shoal.sim.truth import RestartCost
from shoal.workload.schema import Job

PLACERS: Mapping[str, Callable[[], Placer]] = {
    "any": AnyPlacer,
    "packed": PackedPlacer,
    "rack": RackPlacer,
    "network": NetworkPlacer,
}
KNOWLEDGE = ("oracle", "profiled", "estimated", "online")
"""Which speeds a policy may see; ``estimated`` is ``profiled`` with only a fifth of all pairs of models measured."""

_ROUND_OPTIONS = ("round", "quantum", "interval")
"""The names under which policies have their round length."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Every setting of a run except the workload: equal scenarios on equal workloads give equal journals.

    The journal's header, the summary and the comparison of runs take the list of settings from these fields.
    """

    cluster: Topology
    policy: str
    """A specification, ``name:key=value,…`` or ``file.py:Class:key=value,…``."""
    seed: int = 0
    placement: str = "packed"
    knowledge: str | None = None
    """Which speeds the policy may see, one of ``KNOWLEDGE``; None for the policy's own default."""
    restart_cost: str = "job"
    """Seconds, ``job``, or ``checkpoint:GB_PER_S``."""
    noise: float = 0.0
    """Spread σ of true speeds around their profiles."""
    faults: str | None = None
    """``key=value,…`` or a YAML file: see ``specs.read_faults``."""
    round: float | None = None
    """Round length in seconds, of policies that have rounds; None for the policy's own."""
    throughputs: str | None = None
    """A file of speeds that extends or replaces the built-in catalogue."""
    profiles: tuple[str, ...] = ()
    """Folders of measured profiles, which replace the catalogue's for their models."""
    measurement_noise: float = 0.0
    """Spread σ of the speeds that jobs' agents measure around the true ones."""
    cloud: str | None = None
    """The rule by which nodes are rented, e.g. ``goodput``; None for a cluster of fixed size."""
    quotas: tuple[str, ...] = ()
    """Quotas of tenants, each ``TENANT:gpus=N,guaranteed=N``; see ``core.quota``."""
    history: str | None = None
    """A journal, ``sacct`` output or another trace with earlier runs, from which lengths are predicted."""
    most_lost: float = MOST_LOST
    """Seconds of run that a stop may lose at most: jobs that would lose more keep their GPUs until they save."""
    tolerate_policy_errors: bool = field(default=False, metadata={"key": "steadfast"})
    """Whether jobs keep their GPUs if the policy raises, as on a live cluster, instead of ending the run."""

    def __post_init__(self) -> None:
        for name, value, known in (("placement", self.placement, PLACERS), ("knowledge", self.knowledge, KNOWLEDGE)):
            if value is not None and value not in known:
                raise InputError(name, value, nearest(value, known))
        spread, seconds = "must be a spread from 0 to below 10", "must be a finite number of seconds, at least 0"
        bounds = (("noise", 10.0, spread), ("measurement_noise", 10.0, spread), ("most_lost", float("inf"), seconds))
        for name, most, hint in bounds:
            if not 0.0 <= getattr(self, name) < most:
                raise InputError(name.replace("_", "-"), getattr(self, name), hint)
        if self.round is not None and not 0 < self.round < float("inf"):
            raise InputError("round", self.round, "must be a finite number of seconds above 0")
        if self.seed < 0:
            raise InputError("seed", self.seed, "must be at least 0")
        RestartCost.parse(self.restart_cost)
        for text in self.quotas:
            parse_quota(text)
        if self.cloud is not None:
            CloudTerms.parse(self.cloud)
            if knowledge_of(self.policy, adapting=True) != "online":
                hint = "rents by what agents report, and under this policy none does; take pollux or rank"
                raise InputError(f"cloud, policy {self.policy}", self.cloud, hint)

    @property
    def effective_knowledge(self) -> str:
        """``knowledge``, or the policy's default where that is None."""
        return self.knowledge or knowledge_of(self.policy, adapting=False)

    def resolved(self, jobs: Iterable[Job]) -> "Scenario":
        """Return this scenario with ``knowledge`` set: where it is None, to the policy's default for these jobs."""
        if self.knowledge is not None:
            return self
        adapting = any(job.limits and not job.adaptation for job in jobs)
        return replace(self, knowledge=knowledge_of(self.policy, adapting=adapting))

    def settings(self, workload: str, policy: Policy | None = None) -> dict[str, Any]:
        """The settings as a journal's header records them; ``workload`` is the workload's name.

        ``policy`` is the policy that runs, if it is not the one the scenario names.
        """
        plain = {_key(f): getattr(self, f.name) for f in _plain_fields(self)}
        return {
            **{key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()},
            "knowledge": self.effective_knowledge,
            "constants": {name: c.value for name, c in constants_of(policy or parse_policy(self.policy)).items()},
            "version": __version__,
            "workload": workload,
            "cluster": self.cluster.describe(),
            "cluster_nodes": [[n.name, n.kind, n.gpus, n.rack] for n in self.cluster.nodes],
            "prices": {t.name: t.price_per_hour for t in self.cluster.types if t.price_per_hour is not None},
        }

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> "Scenario":
        """The scenario that a journal's header records; a setting the header lacks has its default."""
        try:
            nodes = [Node(name, kind, gpus, rack) for name, kind, gpus, rack in settings["cluster_nodes"]]
            plain: dict[str, Any] = {}
            for setting in _plain_fields(cls):
                if _key(setting) in settings or setting.default is MISSING:
                    value = settings[_key(setting)]
                    plain[setting.name] = tuple(value) if isinstance(value, list) else value
            return cls(cluster=topology_of(nodes, settings["prices"]), **plain)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"the journal's header does not describe a run: {error!r}") from error

    def speeds(self) -> Catalog:
        """The built-in catalogue, extended by the throughput file and then by the measured profiles."""
        known = catalog()
        if self.throughputs is not None:
            known = known.extended(read_table(Path(self.throughputs)))
        return known.extended(read_profiles(self.profiles, known.models)) if self.profiles else known

    def make_policy(self) -> Policy:
        """The policy; ``round`` becomes its round length unless its specification sets one."""
        policy = parse_policy(self.policy)
        if self.round is None:
            return policy
        has = [name for name in _ROUND_OPTIONS if hasattr(policy, name) and f"{name}=" not in self.policy]
        try:
            changed: Policy = replace(policy, **dict.fromkeys(has[:1], self.round))  # type: ignore[type-var]
        except ValueError as error:
            raise InputError(f"round, policy {self.policy}", self.round, str(error)) from error
        return changed

    def make_state(self, known: Catalog) -> State:
        """An empty state whose speed model shows policies what ``effective_knowledge`` allows."""
        perf: PerfModel = ProfiledModel(self.cluster, known)
        if self.effective_knowledge == "online":
            perf = OnlineModel(self.cluster)
        elif self.effective_knowledge == "estimated":
            perf = EstimatedModel(self.cluster, known, seed=self.seed)
        state = State(self.cluster, perf, self.seed, self.most_lost)
        state.apply_events(0.0, [QuotaSet(0.0, *parse_quota(text)) for text in self.quotas])
        if self.history is not None:
            state.apply_events(0.0, [self.earlier_runs(Path(self.history), 0.0, state)])
        return state

    def earlier_runs(self, path: Path, at: Seconds, state: State) -> RunsImported:
        """Read the runs in a file, for this state, as an event at this time."""
        return read_runs(path, at, state.lengths, state.perf, _state_of)

    def make_scheduler(self) -> Scheduler:
        """Return a scheduler: policy, placer and move planner on an empty state."""
        placer = PLACERS[self.placement]()
        how = judge_or_keep if self.tolerate_policy_errors else judge
        return Scheduler(self.make_state(self.speeds()), self.make_policy(), placer, StopStartPlanner(), how)

    def declared(self, job: Job, speed: float) -> JobSpec:
        """The specification a job's owner submits; under ``oracle`` it holds true work, speed and batch schedule."""
        spec = job.spec()
        if self.effective_knowledge != "oracle":
            return spec
        return replace(spec, work=job.work, speed=speed, batch_schedule=job.batch_schedule)


def _state_of(settings: Mapping[str, Any]) -> State:
    """The empty state of a journal's settings."""
    scenario = Scenario.of_settings(settings)
    return scenario.make_state(scenario.speeds())


def _plain_fields(scenario: Scenario | type[Scenario]) -> list[Field[Any]]:
    return [f for f in fields(scenario) if f.name != "cluster"]


def _key(setting: Field[Any]) -> str:
    """The key of a setting in a journal's header: its name, or one kept from an earlier version."""
    return str(setting.metadata.get("key", setting.name))
