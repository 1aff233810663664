"""``shoal advise``: simulate a recorded Slurm history under several policies and compare them with the record."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from shoal.core.errors import InputError
from shoal.core.topology import Topology
from shoal.core.units import DAY
from shoal.report.advice import (
    Advice,
    AdviceRow,
    FigureInterval,
    Outcome,
    advice_of,
    recorded_outcome,
    simulated_outcome,
)
from shoal.report.advice_words import finding_sentences, waste_sentences
from shoal.report.recorded_use import RecordedColumns, clean_kind, cluster_spec, columns_of, waste
from shoal.scenario.scenario import Scenario
from shoal.scenario.specs import read_cluster
from shoal.scenario.sweep import sweep, tasks
from shoal.scenario.workload_source import WorkloadSource
from shoal.sim.truth import DEFAULT_RESTART_SECONDS
from shoal.workload.files import write_workload
from shoal.workload.importers.sacct import RecordedHistory, RecordedJob
from shoal.workload.schema import Job, Workload

BASELINE = "backfill"
"""The policy that stands for Slurm."""

POLICIES = (
    BASELINE,
    "fifo",
    "srtf",
    "las",
    "tiresias",
    "gandiva-fair",
    "gavel.max-min",
    "shoal",
)
"""Policies an operator chooses among, the cheap ones first."""


@dataclass(frozen=True, slots=True)
class AdviceReport:
    """A history under several policies: settings, comparison, and figures of the record itself."""

    source: str
    jobs: int
    cluster: str
    cluster_basis: str
    assumptions: tuple[str, ...]
    advice: Advice
    waste: Mapping[str, Any]
    columns: RecordedColumns
    skipped: int
    left_out: tuple[tuple[str, int], ...]

    def facts(self) -> dict[str, str]:
        """The settings of the report, by name, for its page."""
        left = "; ".join(f"{count:,} {reason}" for reason, count in self.left_out)
        return {
            "History": self.source,
            "Jobs": f"{self.jobs:,}",
            "Days": f"{self.waste['days']:.1f}",
            "Cluster": f"{self.cluster} ({self.cluster_basis})",
            "Left out": left,
            "Odd lines": f"{self.skipped:,}" if self.skipped else "",
        }

    def sentences(self) -> list[str]:
        """Sentences on the changes by policies, the accuracy of the baseline, and the GPU-hours idle or over-asked."""
        return [*finding_sentences(self.advice), *waste_sentences(self.waste)]

    def document(self) -> dict[str, Any]:
        """The report as plain values, for ``--json``."""
        advice = self.advice
        return {
            "source": self.source,
            "jobs": self.jobs,
            "compared": advice.compared,
            "cluster": self.cluster,
            "cluster_basis": self.cluster_basis,
            "findings": self.sentences(),
            "assumptions": list(self.assumptions),
            "baseline": advice.baseline,
            "intervals": advice.intervals,
            "recorded": _row_document(advice.record),
            "policies": [_row_document(row) for row in advice.policies],
            "best": dict(advice.best),
            "calibration": dict(advice.calibration),
            "waste": dict(self.waste),
            "odd_lines": self.skipped,
            "left_out": dict(self.left_out),
        }


def _row_document(row: AdviceRow) -> dict[str, Any]:
    def plain(figures: Mapping[str, FigureInterval]) -> dict[str, Any]:
        return {name: asdict(interval) for name, interval in figures.items()}

    return {
        "policy": row.name,
        "figures": plain(row.figures),
        "versus_baseline": plain(row.versus_baseline),
        "versus_recorded": plain(row.versus_record),
        "utilization": row.utilization,
        "restarts": row.restarts,
        "unfinished": row.unfinished,
        "mean_wait_by_tenant": dict(row.by_tenant),
        "cpu_seconds": row.cpu_seconds,
    }


def parse_speeds(text: str, kinds: Sequence[str]) -> dict[str, float]:
    """Relative speeds of all kinds from ``KIND=SPEED,…``; every kind of the cluster needs one."""
    speeds: dict[str, float] = {}
    for pair in filter(None, text.split(",")):
        kind, _, value = pair.partition("=")
        try:
            speeds[clean_kind(kind.strip().lower())] = speed = float(value)
        except ValueError:
            speed = 0.0
        if not 0.0 < speed < 1e6:
            raise InputError("speeds", pair, "write KIND=SPEED with a speed above 0, e.g. a100=2.5,v100=1")
    missing = [kind for kind in kinds if kind.lower() not in speeds]
    if missing:
        raise InputError("speeds", text, f"has no speed for {', '.join(missing)}; name every kind of the cluster")
    return {kind: speeds[kind.lower()] for kind in kinds}


def advise(
    history: RecordedHistory,
    source: str,
    *,
    policies: Sequence[str] = POLICIES,
    cluster: str | None = None,
    speeds: str | None = None,
    days: float | None = None,
    preemptible: str = "yes",
    oracle: bool = False,
    parallel: int = 1,
    progress: Callable[[Mapping[int, int]], None] | None = None,
) -> AdviceReport:
    """Simulate the last ``days`` days of a history under each policy, and compare them with the record.

    Policies know the time limit of a job as its declared run time, or with ``oracle`` its true one. The cluster is
    derived from the history unless given. With ``preemptible="no"`` no policy may stop a job.
    """
    chosen = list(dict.fromkeys((BASELINE, *policies)))
    recorded = _last_days(history, days)
    spec, basis = (cluster, "as given") if cluster else cluster_spec(columns_of(recorded))
    topology = read_cluster(spec)
    columns = columns_of(recorded, topology)
    factors = parse_speeds(speeds, topology.kinds) if speeds is not None else None
    workload = Workload(Path(source).name, tuple(_jobs(columns, factors, preemptible)), source=source)
    base = Scenario(topology, BASELINE, knowledge="oracle" if oracle else "profiled")
    outcomes = _simulate(base, chosen, columns, workload, factors, parallel, progress)
    record = recorded_outcome(columns, topology.total_gpus)
    return AdviceReport(
        source,
        len(columns.jobs),
        topology.describe(),
        basis,
        _assumptions(columns, topology, factors, preemptible, oracle),
        advice_of(columns, record, outcomes, BASELINE),
        waste(columns, topology),
        columns,
        len(history.skipped),
        history.left_out,
    )


def _simulate(
    base: Scenario,
    policies: Sequence[str],
    columns: RecordedColumns,
    workload: Workload,
    factors: Mapping[str, float] | None,
    parallel: int,
    progress: Callable[[Mapping[int, int]], None] | None,
) -> list[Outcome]:
    with TemporaryDirectory(prefix="shoal-advise-") as folder:
        path = Path(folder, "history.jsonl")
        write_workload(workload, path)
        speeds = None if factors is None else _throughputs(columns, factors, Path(folder))
        # The policies that take longest are last in the list; they begin first.
        source = WorkloadSource(str(path), "shoal")
        todo = tasks(replace(base, throughputs=speeds), policies[::-1], [0], source, None)
        for task in todo:
            task.scenario.make_policy()  # finds a misspelt policy before the first run
        shown = None if progress is None else _reversed_progress(progress, len(todo))
        finished = sweep(todo, parallel=parallel, progress=shown)[::-1]
    return [simulated_outcome(columns, done.outcome.jobs, done.outcome.summary) for done in finished]


def _reversed_progress(
    progress: Callable[[Mapping[int, int]], None], count: int
) -> Callable[[Mapping[int, int]], None]:
    return lambda completed: progress({count - 1 - i: done for i, done in completed.items()})


def _last_days(history: RecordedHistory, days: float | None) -> list[RecordedJob]:
    if not history.jobs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in history.left_out)
        raise InputError("history", 0, f"holds no GPU job that ran: {reasons or 'it has no rows'}")
    if days is None:
        return list(history.jobs)
    end = max(recorded.eligible for recorded in history.jobs)
    return [recorded for recorded in history.jobs if recorded.eligible >= end - days * DAY]


def _jobs(columns: RecordedColumns, factors: Mapping[str, float] | None, preemptible: str) -> list[Job]:
    """The jobs as they are simulated: submitted when they became eligible, limited to the kinds they could use."""
    jobs = []
    everywhere = len(columns.kinds)
    for i, recorded in enumerate(columns.jobs):
        usable = [kind for k, kind in enumerate(columns.kinds) if columns.usable[i, k]]
        job = msgspec.structs.replace(
            recorded.job,
            submitted=float(columns.eligible[i]),
            kinds=None if len(usable) == everywhere else tuple(usable),
            app=None,
            preemptible=preemptible,
        )
        if factors is not None:
            ran_on = columns.kinds[columns.kind[i]] if columns.kind[i] >= 0 else usable[0]
            speed, declared = factors[ran_on], job.declared_work
            job = msgspec.structs.replace(
                job,
                model=f"gang-{job.gpus}",
                work=job.work * speed,
                declared_work=None if declared is None else declared * speed,
            )
        jobs.append(job)
    return jobs


def _throughputs(columns: RecordedColumns, factors: Mapping[str, float], folder: Path) -> str:
    """Write the relative speeds as a throughput file: one model for each size of gang, of the same speed anywhere."""
    sizes = sorted({recorded.job.gpus for recorded in columns.jobs})
    rates = {
        f"{kind}{spread}": {f"('gang-{size}', {size})": {"null": speed} for size in sizes}
        for kind, speed in factors.items()
        for spread in ("", "_unconsolidated")
    }
    path = folder / "speeds.json"
    path.write_text(json.dumps(rates))
    return str(path)


def _assumptions(
    columns: RecordedColumns,
    topology: Topology,
    factors: Mapping[str, float] | None,
    preemptible: str,
    oracle: bool,
) -> tuple[str, ...]:
    limits = int((columns.limit == columns.limit).sum())
    known = (
        "Policies know every job's true run time (--oracle)."
        if oracle
        else f"Policies know what was known at submission: the time limit ({limits:,} of {len(columns.jobs):,} jobs "
        "have one), never the true run time."
    )
    if len(topology.kinds) == 1:
        kinds = "All GPUs are of one kind."
    elif factors is None:
        kinds = (
            "A job runs as fast on every kind it may use (no --speeds given). A job may use the kinds it asked for, "
            "or else those on which its partition's jobs ran."
        )
    else:
        speeds = ", ".join(f"{kind} {speed:g}" for kind, speed in factors.items())
        kinds = f"Relative speeds of the kinds, for every job: {speeds}."
    return (
        known,
        kinds,
        "A job is submitted when it became eligible, runs as long as recorded and never fails; limits per user, "
        "reservations, drained nodes and jobs that ran before the first or had not ended are not modelled.",
        f"A job that a policy stops resumes later where it was, {DEFAULT_RESTART_SECONDS:g} s after each restart. "
        "That holds for jobs that save checkpoints (--preemptible no: no job is stopped); backfill and fifo stop none."
        if preemptible == "yes"
        else "No job is stopped once it runs (--preemptible no).",
    )
