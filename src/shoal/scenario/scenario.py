"""The one place where concrete things meet: a scenario becomes a ring, a ring becomes results."""

import gc
import resource
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from shoal import __version__
from shoal.core.decision import Decision
from shoal.core.errors import InputError, JournalError, nearest
from shoal.core.interfaces import PerfModel, Placer, Policy
from shoal.core.job import JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Node, Topology, topology_of
from shoal.engine.loop import Judgement, Loop, judge, judge_or_keep
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import ReplayDifference, Replayed, Scheduler, replay
from shoal.engine.state import State
from shoal.perf.catalog import Catalog, catalog
from shoal.perf.estimator import EstimatedModel
from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.model import OnlineModel, ProfiledModel
from shoal.perf.profile_files import read_profiles
from shoal.perf.throughput_file import read_table
from shoal.placement.any import AnyPlacer
from shoal.placement.network import NetworkPlacer
from shoal.placement.packed import PackedPlacer
from shoal.placement.rack import RackPlacer
from shoal.policy.registry import knowledge_of, parse_policy
from shoal.report.history import read_history
from shoal.report.job_story import Story, WaitingReason, stories
from shoal.report.metrics import JobTable, Summary, job_table, summarize
from shoal.scenario.specs import read_faults
from shoal.sim.backend import SimBackend
from shoal.sim.cloud import Bill, Cloud, CloudTerms
from shoal.sim.faults import Faults, JobFault
from shoal.sim.measurement import PLAIN, Habits
from shoal.sim.searches import Searches
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import JournalFile, MemoryJournal, SqliteJournal, settings_of
from shoal.workload.schema import Job, Workload

PLACERS: Mapping[str, Callable[[], Placer]] = {
    "any": AnyPlacer,
    "packed": PackedPlacer,
    "rack": RackPlacer,
    "network": NetworkPlacer,
}
KNOWLEDGE = ("oracle", "profiled", "estimated", "online")
"""What policies are told of speed; `estimated` is `profiled` with only a fifth of all pairs of models measured."""

_ROUND_OPTIONS = ("round", "quantum", "interval")
"""What policies call the time between their reviews."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a run depends on, beside the workload: equal scenarios on equal workloads give equal journals."""

    cluster: Topology
    policy: str
    seed: int = 0
    placement: str = "packed"
    knowledge: str | None = None
    """What policies are told of speed; None for what the policy is told where nobody says otherwise."""
    restart_cost: str = "job"
    noise: float = 0.0
    faults: str | None = None
    round: float | None = None
    throughputs: str | None = None
    profiles: tuple[str, ...] = ()
    """Folders with measured profiles, which then are the truth about the models in them."""
    measurement_noise: float = 0.0
    """Spread σ of what jobs' agents measure around the truth."""
    cloud: str | None = None
    """By which rule the cluster's nodes are rented, e.g. ``goodput``; None where they are simply there."""
    steadfast: bool = False
    """Whether everyone stays as they are where the policy fails, as on a cluster that must go on."""

    def __post_init__(self) -> None:
        if self.placement not in PLACERS:
            raise InputError("placement", self.placement, nearest(self.placement, PLACERS))
        if self.knowledge is not None and self.knowledge not in KNOWLEDGE:
            raise InputError("knowledge", self.knowledge, nearest(self.knowledge, KNOWLEDGE))
        for name in ("noise", "measurement_noise"):
            if not 0.0 <= getattr(self, name) < 10.0:
                raise InputError(name.replace("_", "-"), getattr(self, name), "must be a spread from 0 to below 10")
        if self.round is not None and not 0 < self.round < float("inf"):
            raise InputError("round", self.round, "must be a finite number of seconds above 0")
        if self.seed < 0:
            raise InputError("seed", self.seed, "must be at least 0")
        RestartCost.parse(self.restart_cost)
        if self.cloud is not None:
            CloudTerms.parse(self.cloud)
            if knowledge_of(self.policy, adapting=True) != "online":
                hint = "rents by what agents report, and under this policy none does; take pollux or rank"
                raise InputError(f"cloud, policy {self.policy}", self.cloud, hint)

    @property
    def told(self) -> str:
        """What policies are told of speed."""
        return self.knowledge or knowledge_of(self.policy, adapting=False)

    def settled(self, jobs: Iterable[Job]) -> "Scenario":
        """The same with all said that depends on the jobs: what the policy is told of them where nobody says."""
        if self.knowledge is not None:
            return self
        adapting = any(job.limits and not job.adaptation for job in jobs)
        return replace(self, knowledge=knowledge_of(self.policy, adapting=adapting))

    def settings(self, workload: str) -> dict[str, Any]:
        """What the journal's header says of the run."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "cluster"}
        return {
            **plain,
            "knowledge": self.told,
            "profiles": list(self.profiles),
            "version": __version__,
            "workload": workload,
            "cluster": self.cluster.describe(),
            "cluster_nodes": [[n.name, n.kind, n.gpus, n.rack] for n in self.cluster.nodes],
            "prices": {t.name: t.price_per_hour for t in self.cluster.types if t.price_per_hour is not None},
        }

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> "Scenario":
        """The scenario a journal's header describes."""
        try:
            nodes = [Node(name, kind, gpus, rack) for name, kind, gpus, rack in settings["cluster_nodes"]]
            plain = {f.name: settings[f.name] for f in fields(cls) if f.name != "cluster"}
            plain["profiles"] = tuple(plain["profiles"])
            return cls(cluster=topology_of(nodes, settings["prices"]), **plain)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"the journal's header does not describe a run: {error!r}") from error

    def speeds(self) -> Catalog:
        """The built-in catalogue, with the given throughput file on top, and the measured profiles on top of that."""
        known = catalog()
        if self.throughputs is not None:
            known = known.extended(read_table(Path(self.throughputs)))
        return known.extended(read_profiles(self.profiles, known.models)) if self.profiles else known

    def make_policy(self) -> Policy:
        """The policy, its round set where it has one and none is asked for in the specification."""
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
        """An empty state that knows what policies may know."""
        perf: PerfModel = ProfiledModel(self.cluster, known)
        if self.told == "online":
            perf = OnlineModel(self.cluster)
        elif self.told == "estimated":
            perf = EstimatedModel(self.cluster, known, seed=self.seed)
        return State(self.cluster, perf, self.seed)

    def make_crew(self) -> Scheduler:
        """Those who decide in this scenario, on an empty state."""
        placer = PLACERS[self.placement]()
        how = judge_or_keep if self.steadfast else judge
        return Scheduler(self.make_state(self.speeds()), self.make_policy(), placer, StopStartPlanner(), how)

    def declared(self, job: Job, speed: float) -> JobSpec:
        """What a job's owner submits: under an oracle, the truth."""
        spec = job.spec()
        if self.told != "oracle":
            return spec
        return replace(spec, work=job.work, speed=speed, batch_schedule=job.batch_schedule)


@dataclass(slots=True)
class _Stopwatch:
    """A policy that is timed; what it decides is untouched."""

    policy: Policy
    seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def decide(self, snapshot: Snapshot) -> Decision:
        """What the policy decides."""
        begin = perf_counter()
        decision = self.policy.decide(snapshot)
        self.seconds.append(perf_counter() - begin)
        return decision

    def figures(self) -> dict[str, float]:
        """Mean, median, 99th percentile and maximum."""
        times = np.asarray(self.seconds) if self.seconds else np.zeros(1)
        p50, p99 = np.quantile(times, (0.5, 0.99)).tolist()
        return {"mean": float(times.mean()), "p50": p50, "p99": p99, "max": float(times.max())}


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The results of one run."""

    summary: Summary
    jobs: JobTable
    bill: Bill | None = None
    """What was rented, in a cloud."""


def run(
    scenario: Scenario,
    workload: Workload,
    *,
    journal_path: Path | None = None,
    progress: Callable[[int], None] | None = None,
    policy: Policy | None = None,
) -> SimulationResult:
    """Simulate a workload. With ``journal_path`` the journal is kept there; ``progress`` is told of completed jobs.

    ``policy`` stands in for the one the scenario names: how a policy of one's own is run from Python.
    """
    begin = process_time()
    scenario = scenario.settled(workload.jobs)
    known = scenario.speeds()
    check_types(workload.jobs, scenario.cluster, known)
    _check_measured(scenario, workload.jobs, known)
    stopwatch = _Stopwatch(policy or scenario.make_policy())
    backend = make_backend(scenario, workload.jobs, known)
    settings = scenario.settings(workload.name)
    journal = MemoryJournal.begin(settings) if journal_path is None else SqliteJournal.begin(journal_path, settings)
    placer = PLACERS[scenario.placement]()
    loop = Loop(backend, scenario.make_state(known), stopwatch, placer, StopStartPlanner(), journal)
    try:
        with _quiet_collector():
            _turn(loop, backend, progress)
    finally:
        if isinstance(journal, SqliteJournal):
            journal.close()
    raw = journal.raw() if isinstance(journal, MemoryJournal) else JournalFile(journal.path).raw()
    history = read_history(raw)
    table = job_table(history, known)
    measured = {
        "unfinished": unfinished(loop),
        "decision_seconds": stopwatch.figures(),
        "cpu_seconds": process_time() - begin,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    bill = backend.bill() if isinstance(backend, Cloud) else None
    if bill is not None:
        measured["rent"] = bill.summary()
    return SimulationResult(summarize(history, table, measured=measured), table, bill)


def unfinished(loop: Loop, most: int = 10) -> list[dict[str, str]]:
    """Why the jobs that are left at the end of a run do not run: the first few of them, each with its last reason."""
    if not loop.state.live:
        return []
    snapshot = loop.state.freeze()
    verdicts = judge(snapshot, loop.policy, loop.placer, loop.move_planner).verdicts
    return [{"id": name, "reason": verdicts.reason(i).sentence()} for i, name in enumerate(snapshot.ids[:most])]


def make_backend(scenario: Scenario, jobs: Sequence[Job], known: Catalog) -> SimBackend | Searches | Cloud:
    """The simulated world of a scenario: with people who search in it where there are trials, on rented nodes if so."""
    terms = None if scenario.cloud is None else CloudTerms.parse(scenario.cloud)
    front = _make_front(scenario, jobs, known, PLAIN if terms is None else terms.habits)
    if terms is None:
        return front
    return Cloud(front, front.world if isinstance(front, Searches) else front, terms)


def _make_front(scenario: Scenario, jobs: Sequence[Job], known: Catalog, habits: Habits) -> SimBackend | Searches:
    truth = Truth.of(jobs, scenario.cluster, known, noise=scenario.noise, seed=scenario.seed)
    faults, restart_cost = _faults(scenario, jobs), RestartCost.parse(scenario.restart_cost)
    if any(job.search is not None for job in jobs):
        noise = scenario.measurement_noise
        return Searches.of(truth, scenario.declared, restart_cost, faults, scenario.seed, noise, habits=habits)
    specs = [scenario.declared(job, speed) for job, speed in zip(jobs, truth.factors, strict=True)]
    measuring = scenario.measurement_noise
    return SimBackend(truth, specs, restart_cost, faults, scenario.seed, measuring=measuring, habits=habits)


def _faults(scenario: Scenario, jobs: Sequence[Job]) -> Faults:
    numbers = {job.id: number for number, job in enumerate(jobs)} if scenario.faults else {}
    faults = read_faults(scenario.faults, scenario.cluster, numbers)
    if any(isinstance(fault, JobFault) for fault in faults.script) and any(job.search is not None for job in jobs):
        # Which job is the n-th depends on how the searches go.
        hint = "a job cannot be named where trials are searched; lose nodes instead"
        raise InputError("faults", scenario.faults, hint)
    return faults


def _turn(loop: Loop, backend: SimBackend | Searches | Cloud, progress: Callable[[int], None] | None) -> None:
    turns = 0
    while loop.cycle():
        turns += 1
        if progress is not None and not turns % 200:
            progress(backend.completed)
    if progress is not None:
        progress(backend.completed)


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keep the garbage collector from walking a whole simulation again and again: the ring makes no cycles."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def check(scenario: Scenario, workload: Workload) -> None:
    """Refuse what ``simulate`` would refuse, before anything is run or written."""
    known = scenario.speeds()
    check_types(workload.jobs, scenario.cluster, known)
    _check_measured(scenario, workload.jobs, known)
    _faults(scenario, workload.jobs)


def _check_measured(scenario: Scenario, jobs: Sequence[Job], known: Catalog) -> None:
    """Refuse profiles that lack a model of the workload: it would run by figures from elsewhere, unnoticed."""
    for model in filter(None, dict.fromkeys(job.model for job in jobs) if scenario.profiles else ()):
        if not isinstance(known.profile(model), MeasuredProfile):
            hint = f"has no folder {model}, a model of this workload"
            raise InputError("profiles", ", ".join(scenario.profiles), hint)


def check_types(jobs: Sequence[Job], cluster: Topology, known: Catalog) -> None:
    """Refuse a GPU type that is nowhere known, and a model with figures for none of the cluster's."""
    models = dict.fromkeys(job.model for job in jobs)
    for kind in cluster.kinds:
        # A job without a model runs on anything, so to it no type is unknown.
        if models and None not in models and kind not in known.kinds:
            raise InputError(
                "cluster, GPU type", kind, f"{nearest(kind, known.kinds)} (--throughputs FILE adds others)"
            )
    for model in filter(None, models):
        if model not in known.models:
            first = next(job.id for job in jobs if job.model == model)
            raise InputError(f"job {first}, model", model, nearest(model, known.models))
        kinds = known.profile(model).kinds
        if kinds is not None and not set(kinds) & set(cluster.kinds):
            kind = cluster.kinds[0]
            raise InputError(
                "cluster, GPU type",
                kind,
                f"{nearest(kind, kinds)} (types with figures for {model}; --throughputs FILE adds others)",
            )


def replay_file(
    path: Path,
    *,
    throughputs: str | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Snapshot, Judgement], None] | None = None,
) -> tuple[Replayed, JournalFile, dict[str, Any]]:
    """Derive every decision of a journal file again; gives what was derived, the file read, and its settings."""
    settings = settings_of(JournalFile(path).read)

    def crew_of(header: Mapping[str, Any]) -> Scheduler:
        scenario = Scenario.of_settings(header)
        if throughputs is not None:
            scenario = replace(scenario, throughputs=throughputs)
        return scenario.make_crew()

    journal = JournalFile(path)
    derived = replay(journal.read, crew_of, progress, watch)
    return derived, journal, settings


def stories_of(path: Path) -> tuple[list[Story], str]:
    """What happened to each job of a journal file, and why jobs waited: that is derived again, decision by decision.

    Where this version decides otherwise than the one that ran, it says what differs, and from there on tells only what
    the journal has itself.
    """
    told: list[WaitingReason] = []
    until, otherwise = inf, ""

    def watch(snapshot: Snapshot, judgement: Judgement) -> None:
        verdicts, rows = judgement.verdicts, snapshot.columns.rows
        for i in np.flatnonzero(verdicts.gpus == 0).tolist():
            reason = verdicts.reason(i)
            told.append(WaitingReason(snapshot.now, int(rows[i]), int(reason.code), reason.sentence()))

    try:
        replay_file(path, watch=watch)
    except ReplayDifference as difference:
        until, otherwise = difference.at, str(difference)
    return stories(read_history(JournalFile(path).raw()), told, until), otherwise
