"""What would happen if: the state folded from a journal, run on in the simulator, once for each seed and each change.

The journal is only read, also while a control plane writes it. Every answer assumes that no further job arrives, none
crashes, and nodes that are down stay down; what policies remember beside the state (``carry``) starts empty, as after
a restart of the control plane. The same journal, moment and question give the same answer unless time runs out.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any, TypeAlias

import msgspec
import numpy as np

from shoal.core.arrays import Floats
from shoal.core.commands import Decided, Stop
from shoal.core.errors import InputError, JournalError, ShoalError
from shoal.core.events import EventBatch, JobCompleted, JobCrashed
from shoal.core.interfaces import Journal
from shoal.core.job import JobSpec
from shoal.core.topology import Node, Topology, parse_cluster
from shoal.core.units import JobId, Seconds, TenantId
from shoal.engine.loop import Loop
from shoal.engine.replay import Scheduler, fold
from shoal.forecast.fork import Fork
from shoal.forecast.history import Memoir, WorkHistory
from shoal.live.admission import Admission
from shoal.perf.work_prior import DECLARED_SPREAD
from shoal.report.compare import t_interval
from shoal.scenario.scenario import Scenario
from shoal.sim.truth import RestartCost
from shoal.store.codec import HEADER, Header, Record
from shoal.store.journal import JournalFile
from shoal.wire.messages import StartForecast, Submission, WhatIf

Source: TypeAlias = Path | Sequence[Record]
"""A journal: the path of its file, or its records."""

FORECAST_SECONDS = 2.0
WHAT_IF_SECONDS = 20.0
"""CPU seconds that an answer may take, reading the journal not counted."""

AS_IT_IS = "as it is"

ASSUMPTIONS = (
    "no further job arrives and none crashes",
    "nodes that are down stay down",
    f"declared work is off by a lognormal spread of {DECLARED_SPREAD}",
    "what is not declared is drawn from completed jobs that ran longer, else as long again as it has run",
)

_MOST_NODES_ADDED = 10_000
_LOW, _HIGH = 0.1, 0.9


# ── the present ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Present:
    """A cluster at one moment, as its journal tells it: ``crew`` decides there, and ``records`` were read.

    Times are in the journal's own clock.
    """

    scenario: Scenario
    crew: Scheduler
    past: WorkHistory
    review_at: Seconds
    records: int

    def fork(self, arrivals: Sequence[JobSpec] = ()) -> Fork:
        """This moment as the middle of a simulation, in which these jobs are yet to come."""
        cost = RestartCost.parse(self.scenario.restart_cost)
        return Fork.of(self.crew.state, self.past, self.scenario.speeds(), cost, arrivals)


def read_present(source: Source, now: Seconds, *, added: Sequence[Node] = (), most: int | None = None) -> Present:
    """Fold a journal, or its first ``most`` records, up to ``now``, on its cluster with nodes ``added`` to it."""
    settings = _last_settings(source, most)
    scenario = Scenario.of_settings(settings)
    scenario = replace(scenario, cluster=Topology((*scenario.cluster.nodes, *added), scenario.cluster.types))
    memoir = Memoir()
    crew = scenario.make_crew()
    state = fold(memoir.read(islice(_records(source), most)), crew.state)
    if now > state.now:
        state.apply_events(now, ())
    return Present(scenario, crew, memoir.past(), max(memoir.review_at, state.now), memoir.records)


def _records(source: Source) -> Iterator[Record]:
    if not isinstance(source, Path):
        yield from source
        return
    journal = JournalFile(source)
    yield from journal.read()
    if journal.cut is not None:
        raise JournalError(f"{source}: {journal.cut}")


def _last_settings(source: Source, most: int | None) -> Mapping[str, Any]:
    """The settings in force at the end; of a file only bare arrays are read, which is ten times cheaper."""
    if isinstance(source, Path):
        headers = [raw[2] for raw in islice(JournalFile(source).raw(), most) if raw[0] == HEADER]
    else:
        headers = [record.settings for record in islice(source, most) if isinstance(record, Header)]
    if not headers:
        raise JournalError("a journal must begin with its header")
    settings: Mapping[str, Any] = headers[-1]
    return settings


# ── one run ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Branch:
    """A present to run on, changed or not: who decides from when, on what."""

    label: str
    scenario: Scenario
    crew: Scheduler
    fork: Fork
    review_at: Seconds

    def loop(self, journal: Journal, seed: int, spread: float = DECLARED_SPREAD) -> Loop:
        """The ring, ready to turn on from here in a world of its own."""
        crew, world, state = self.crew, self.fork.world(seed, spread), self.fork.state()
        decide = (crew.policy, crew.placer, crew.move_planner)
        return Loop(world, state, *decide, journal, review_at=self.review_at, judge=crew.judge)


@dataclass(slots=True)
class BranchOutcome:
    """What became of the live jobs in one run, by admission number, in seconds from its beginning.

    ``starts`` is when each first got GPUs (0 for those that held some), ``ends`` when it completed, ``waited`` for how
    long it held none until then; ``cut`` says that time ran out first.
    """

    fork: Fork
    starts: dict[int, Seconds] = field(default_factory=dict)
    ends: dict[int, Seconds] = field(default_factory=dict)
    waited: dict[int, Seconds] = field(default_factory=dict)
    cut: bool = False
    _idle_since: dict[int, Seconds] = field(default_factory=dict)
    _now: Seconds = 0.0

    def __post_init__(self) -> None:
        waiting, now = self.fork.waiting, self.fork.now
        self.starts = {job: 0.0 for job in self.fork.live if job not in waiting}
        self.waited = dict.fromkeys(self.fork.live, 0.0)
        self._idle_since = {job: max(self.fork.specs[job].submitted, now) for job in waiting}

    def record_events(self, heard: EventBatch) -> None:
        """Note who ended."""
        self._now = heard.now
        for event in heard.events:
            if isinstance(event, JobCrashed):
                self._idle_since.setdefault(event.job, event.at)
            elif isinstance(event, JobCompleted):
                self.ends[event.job] = event.at - self.fork.now

    def record_decision(self, decided: Decided) -> None:
        """Note who got GPUs and who lost them."""
        for command in decided.commands:
            if isinstance(command, Stop):
                self._idle_since[command.job] = self._now
            elif (since := self._idle_since.pop(command.job, None)) is not None:
                self.waited[command.job] += self._now - since
                self.starts.setdefault(command.job, self._now - self.fork.now)

    def run(self, loop: Loop, seconds: float, *, to_starts: bool = False) -> "BranchOutcome":
        """Turn the ring until every job has ended, or has started, or the CPU seconds are spent."""
        enough = len(self.fork.live)
        until = thread_time() + seconds
        while loop.cycle() and not (to_starts and len(self.starts) == enough):
            if thread_time() > until:
                self.cut = True
                break
        return self


def _run(cases: Sequence[Branch], seeds: int, seconds: float, *, to_starts: bool = False) -> list[list[BranchOutcome]]:
    """By case and seed, as many seeds as fit into the time: one that is not run to its end in every case is dropped.

    Only the first is kept anyway. Each case may take an equal part of the time left to its seed.
    """
    until = thread_time() + seconds
    courses: list[list[BranchOutcome]] = [[] for _ in cases]
    for seed in range(seeds):
        paired: list[BranchOutcome] = []
        for case in cases:
            course, part = BranchOutcome(case.fork), (until - thread_time()) / (len(cases) - len(paired))
            paired.append(course.run(case.loop(course, seed), part, to_starts=to_starts))
        cut = any(course.cut for course in paired)
        if seed == 0 or not cut:
            for done, course in zip(courses, paired, strict=True):
                done.append(course)
        if cut:
            break
    return courses


# ── the questions ─────────────────────────────────────────────────────────────────────────────────────────────────


def forecast(
    source: Source, now: Seconds, seeds: int = 5, most_seconds: float = FORECAST_SECONDS
) -> dict[JobId, StartForecast]:
    """When each waiting job will start, under the policy in force, over as many of the seeds as the time allows.

    A job that did not start in one of the runs, because it cannot or because the time was up, has no forecast.
    """
    present = read_present(source, now)
    fork = present.fork()
    if not fork.waiting:
        return {}
    case = Branch(AS_IT_IS, present.scenario, present.crew, fork, present.review_at)
    (courses,) = _run([case], seeds, most_seconds, to_starts=True)
    found: dict[JobId, StartForecast] = {}
    for job in sorted(fork.waiting):
        if all(job in course.starts for course in courses):
            low, median, high = _quantiles([course.starts[job] for course in courses], _LOW, 0.5, _HIGH)
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
    """Run the present on as it is, under each other policy, with more nodes, and with one more job.

    The answer is plain values: how the cluster would fare, and job by job those of ``tenant`` (None: everyone's).

    Runs are paired by seed, over as many of the seeds as the time allows. Their figures are over the same jobs: those
    that end in every run that was not ``cut`` for want of time, and not the one more. ``low`` and ``high`` are the
    10th and 90th percentile over the seeds. A difference is to ``as it is``, with a 95 % interval of its mean.
    """
    cases = _cases(source, now, question)
    courses = _run(cases, question.seeds, most_seconds)
    whole = [not any(course.cut for course in runs) for runs in courses]
    finished = [course.ends.keys() for runs, ok in zip(courses, whole, strict=True) if ok for course in runs]
    fork = cases[0].fork
    common = sorted(set(fork.live).intersection(*finished)) if finished else []
    figures = [_figures(runs, common) if ok and common else {} for runs, ok in zip(courses, whole, strict=True)]
    return {
        "now": fork.now,
        "cut": None if all(whole) and len(courses[0]) == question.seeds else _short(courses, question.seeds),
        "assumptions": list(ASSUMPTIONS),
        "basis": {basis.value: count for basis, count in Counter(fork.bases.values()).items()},
        "runs": [
            _run_row(case, runs, len(common), own, figures[0])
            for case, runs, own in zip(cases, courses, figures, strict=True)
        ],
        "jobs": [
            row
            for case, runs in zip(cases, courses, strict=True)
            for row in _job_rows(case, runs)
            if tenant in (None, row["tenant"])
        ],
    }


def _short(courses: Sequence[Sequence[BranchOutcome]], seeds: int) -> str:
    done = sum(all(not runs[seed].cut for runs in courses) for seed in range(len(courses[0])))
    return f"time was up after {done} of {seeds} seeds"


def _cases(source: Source, now: Seconds, question: WhatIf) -> list[Branch]:
    present = read_present(source, now)
    scenario, crew, fork = present.scenario, present.crew, present.fork()
    cases = [Branch(AS_IT_IS, scenario, crew, fork, present.review_at)]
    for policy in question.policies:
        other = replace(scenario, policy=policy)
        cases.append(Branch(f"policy {policy}", other, replace(crew, policy=other.make_policy()), fork, fork.now))
    if question.add is not None:
        added = _nodes(question.add, scenario.cluster)
        wider = read_present(source, now, added=added, most=present.records)
        cases.append(Branch(f"{question.add} added", wider.scenario, wider.crew, wider.fork(), fork.now))
    if question.job is not None:
        spec = _spec(question.job, present)
        cases.append(Branch(f"{spec.id} submitted", scenario, crew, present.fork([spec]), present.review_at))
    return cases


def _nodes(spec: str, cluster: Topology) -> list[Node]:
    """The nodes to add, in racks of their own, under names that no node has."""
    try:
        new = parse_cluster(spec).nodes
    except InputError as error:
        raise InputError("add", spec, error.hint) from error
    if len(new) > _MOST_NODES_ADDED:
        raise InputError("add", spec, f"adds {len(new):,} nodes; at most {_MOST_NODES_ADDED:,} can be asked about")
    taken = set(cluster.node_index)
    return [replace(node, name=_unique(node.name, taken), rack=f"added-{node.rack}") for node in new]


def _spec(wanted: Submission, present: Present) -> JobSpec:
    """The job as it would be admitted now."""
    name = _unique(wanted.name, set(present.crew.state.register.ids))
    admission = Admission(present.scenario.cluster, present.scenario.speeds())
    spec, _ = admission.admit(wanted, name, wanted.tenant or "default", present.crew.state.now)
    return spec


def _unique(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "+"
    taken.add(name)
    return name


# ── the answers ───────────────────────────────────────────────────────────────────────────────────────────────────


def _quantiles(values: Floats | Sequence[float], *parts: float) -> list[float]:
    """Unbiased over few seeds: the next draw lies below the given part of the time, as far as the extremes reach."""
    found: list[float] = np.quantile(np.asarray(values), parts, method="weibull").tolist()
    return found


def _range(values: Sequence[float]) -> dict[str, float]:
    low, median, high = _quantiles(values, _LOW, 0.5, _HIGH)
    return {"mean": float(np.mean(values)), "median": median, "low": low, "high": high}


def _figures(courses: Sequence[BranchOutcome], common: Sequence[int]) -> dict[str, Floats]:
    """Each figure by seed, over these jobs."""
    fork = courses[0].fork
    age = np.array([fork.now - fork.specs[job].submitted for job in common])
    ends = np.array([[course.ends[job] for job in common] for course in courses])
    waited = np.array([[course.waited[job] for job in common] for course in courses])
    return {
        "avg_jct": (ends + age).mean(axis=1),
        "makespan": ends.max(axis=1),
        "avg_wait": waited.mean(axis=1),
    }


def _run_row(
    case: Branch, courses: Sequence[BranchOutcome], jobs: int, own: Mapping[str, Floats], base: Mapping[str, Floats]
) -> dict[str, Any]:
    ended = min(len(course.ends) for course in courses)
    row: dict[str, Any] = {
        "label": case.label,
        "policy": case.scenario.policy,
        "cluster": case.scenario.cluster.describe(),
        "seeds": len(courses),
        "jobs": jobs,
        "unfinished": len(case.fork.live) - ended,
        "cut": any(course.cut for course in courses),
    }
    for name in ("avg_jct", "makespan", "avg_wait"):
        row[name] = _mean(own[name], _percentiles) if own else None
    if case.label != AS_IT_IS:
        both = own and base
        row["difference"] = {name: _mean(own[name] - base[name], t_interval) for name in own} if both else None
    return row


def _mean(values: Floats, reach: Callable[[Floats], tuple[float, float]]) -> dict[str, float | None]:
    """A mean over seeds and how far it reaches; one seed says nothing about that."""
    low, high = reach(values) if len(values) > 1 else (None, None)
    return {"mean": float(values.mean()), "low": low, "high": high}


def _percentiles(values: Floats) -> tuple[float, float]:
    low, high = _quantiles(values, _LOW, _HIGH)
    return low, high


def _job_rows(case: Branch, courses: Sequence[BranchOutcome]) -> Iterator[dict[str, Any]]:
    for job in case.fork.live:
        spec = case.fork.specs[job]
        starts = [course.starts[job] for course in courses if job in course.starts]
        ends = [course.ends[job] for course in courses if job in course.ends]
        yield {
            "id": spec.id,
            "tenant": spec.tenant,
            "label": case.label,
            "start": _range(starts) if len(starts) == len(courses) else None,
            "end": _range(ends) if len(ends) == len(courses) else None,
        }


def main() -> None:
    """Answer one question, asked as JSON on the standard input by a control plane that goes on deciding meanwhile.

    ``{"journal", "now"}`` with ``"forecast": true``, or with ``"question"`` and ``"tenant"``; the answer is
    ``{"answer"}``, or ``{"error": [field, value, hint]}``.
    """
    asked = json.load(sys.stdin)
    path, now = Path(asked["journal"]), float(asked["now"])
    try:
        if asked.get("forecast"):
            answer = msgspec.to_builtins(forecast(path, now))
        else:
            answer = what_if(path, now, msgspec.convert(asked["question"], WhatIf), tenant=asked["tenant"])
    except InputError as error:
        json.dump({"error": [error.field, error.value, error.hint]}, sys.stdout, default=str)
    except ShoalError as error:
        json.dump({"error": ["journal", str(path), str(error)]}, sys.stdout)
    else:
        sys.stdout.write(msgspec.json.encode({"answer": answer}).decode())


if __name__ == "__main__":
    main()
