"""Shockwave's simulations (NSDI '23) on its public traces: its figures and its predictor's error, the paper's and ours.

Speeds are those of the public simulator: one rate for each job, batch size and gang, regardless of placement, and 20 s
for a restart. ρ assumes constant contention unless stated otherwise; a job is unfair above 1.05. Seed 0 is the trace
itself; other seeds permute its jobs over its arrival times. The paper's figures are quoted where its text states them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import msgspec
import numpy as np

from shoal.core.commands import Start
from shoal.core.errors import InputError
from shoal.core.events import BatchChanged, Event, JobStarted, JobSubmitted
from shoal.core.interfaces import Policy
from shoal.core.job import JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.perf.regime_forecast import forecast
from shoal.perf.throughput_file import parse_table
from shoal.report.compare import half_width
from shoal.research.repro import shockwave_verdicts as judge
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.workload.files import read_workload
from shoal.workload.schema import Job, Workload

TRACES: Mapping[str, tuple[str, str, int]] = {
    "120": ("jobs_120_tacc.json", "tacc", 32),
    "220": ("jobs_220_wisr.json", "wisr", 64),
    "460": ("jobs_460_wisr.json", "wisr", 128),
    "900": ("jobs_900_wisr.json", "wisr", 256),
}
"""By number of jobs: the file, the name of its speeds, and the GPUs of its cluster."""

PROGRESS = (0.0, 0.3, 0.5, 0.9)
"""Fractions of a job's work at which its run time is predicted."""

ROUND = 120.0
"""Seconds in a round."""

_RESTART_COST, _NODE_GPUS = "20", 4
_BASELINES = ("themis", "gavel.max-min", "allox")
_OURS = ("shockwave", "shoal")


def public_trace(data: Path, trace: str, seed: int = 0) -> Workload:
    """Return one of the public traces; a seed above 0 permutes its jobs over the same arrival times."""
    whole = read_workload(data / "shockwave" / TRACES[trace][0], "shockwave")
    return permuted(whole, seed) if seed else whole


def permuted(whole: Workload, seed: int | Sequence[int]) -> Workload:
    """Return the workload with its jobs permuted over the same arrival times."""
    order = np.random.default_rng(seed).permutation(len(whole.jobs)).tolist()
    times = [job.submitted for job in whole.jobs]
    jobs = (msgspec.structs.replace(whole.jobs[i], submitted=at) for i, at in zip(order, times, strict=True))
    return Workload(whole.name, tuple(jobs), whole.format, whole.source)


def speeds(data: Path, name: str) -> bytes:
    """Return a throughput file in which gangs over several nodes are not slower, as in the public simulator."""
    file = data / "shockwave" / "throughputs" / f"{name}_throughputs.json"
    try:
        rates = {key: {"null": row["null"]} for key, row in json.loads(file.read_bytes())["v100"].items()}
    except (OSError, ValueError, KeyError) as error:
        raise InputError("data", str(file), "must be a throughput file with speeds of v100") from error
    return json.dumps({"v100": rates, "v100_unconsolidated": rates}).encode()


@dataclass(frozen=True, slots=True)
class TraceCase:
    """One run: a policy on ``gpus`` GPUs, with speeds of this name, off by ``noise``."""

    policy: str
    workload: Workload
    speeds: str
    gpus: int
    seed: int = 0
    noise: float = 0.0
    kind: str = "v100"


def simulate(data: Path, case: TraceCase, policy: Policy | None = None) -> SimulationResult:
    """Simulate one run; ``policy`` replaces the one that the case names."""
    nodes, left = divmod(case.gpus, _NODE_GPUS)
    cluster = f"{case.kind}:{nodes}x{_NODE_GPUS}" + (f",{case.kind}:1x{left}" if left else "")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "speeds.json"
        if case.speeds:
            file.write_bytes(speeds(data, case.speeds))
        scenario = Scenario(
            parse_cluster(cluster),
            case.policy,
            seed=case.seed,
            restart_cost=_RESTART_COST,
            noise=case.noise,
            round=ROUND,
            throughputs=str(file) if case.speeds else None,
        )
        return run(scenario, case.workload, policy=policy)


def measure(data: Path, case: TraceCase) -> dict[str, float]:
    """Return makespan and mean completion time in seconds, worst ρ and unfair fraction, and worst time-averaged ρ."""
    summary: Mapping[str, Any] = simulate(data, case).summary
    constant, averaged = summary["rho"]["contention"], summary["rho"]["shockwave"]
    return {
        "makespan": summary["makespan"],
        "jct": summary["avg_jct"],
        "rho": constant["max"],
        "unfair": constant["unfair_1.05"],
        "rho_averaged": averaged["max"],
        "restarts": summary["restarts"],
    }


_COLUMNS = (
    Column("makespan, s", ",.0f"),
    Column("± s", ",.0f"),
    Column("mean JCT, s", ",.0f"),
    Column("± s of JCT", ",.0f"),
    Column("worst ρ"),
    Column("unfair", ".1%"),
    Column("worst ρ, time-averaged"),
    Column("restarts", ",.0f"),
)


def _row(context: ReproContext, key: Mapping[str, Any], cases: Sequence[Callable[[], TraceCase]]) -> list[Cell]:
    """Cells of a row: means over these cases, makespan and JCT with 95 % intervals (± Student's t), ρ as the worst."""
    found = _runs(context, key, cases)
    worst = [max(f[name] for f in found) for name in ("rho", "rho_averaged")]
    mean = {name: fmean(f[name] for f in found) for name in ("makespan", "jct", "unfair", "restarts")}
    spread = [_half_width([f[name] for f in found]) for name in ("makespan", "jct")]
    times = [mean["makespan"], spread[0], mean["jct"], spread[1]]
    return [*times, worst[0], mean["unfair"], worst[1], mean["restarts"]]


def _runs(
    context: ReproContext, key: Mapping[str, Any], cases: Sequence[Callable[[], TraceCase]]
) -> list[dict[str, float]]:
    """Return the figures of these cases, computed or stored."""
    found = []
    for number, make in enumerate(cases):
        whole = {"paper": "shockwave", **key, "case": number}
        label = ", ".join(f"{name} {value}" for name, value in whole.items())
        found.append(context.run(whole, label, _measure_case, context.data, make))
    return found


def _measure_case(data: Path, make: Callable[[], TraceCase]) -> dict[str, float]:
    return measure(data, make())


def _half_width(values: Sequence[float]) -> float | None:
    """Half width of the 95 % interval of a mean over orders of arrival; None for a single value."""
    return half_width(values) if len(values) > 1 else None


def _cases(
    context: ReproContext, trace: str, policy: str, seeds: Sequence[int], changed: Callable[[Workload, int], Workload]
) -> list[Callable[[], TraceCase]]:
    _, name, gpus = TRACES[trace]

    def case(seed: int) -> TraceCase:
        return TraceCase(policy, changed(public_trace(context.data, trace, seed), seed), name, gpus, seed)

    return [partial(case, seed) for seed in seeds]


def _unchanged(workload: Workload, seed: int) -> Workload:
    return workload


def compared(context: ReproContext, trace: str, policy: str, seeds: Sequence[int]) -> list[dict[str, float]]:
    """Return the figures of a policy on a trace, by order of arrival."""
    key = {"what": "compared", "trace": trace, "policy": policy}
    return _runs(context, key, _cases(context, trace, policy, seeds, _unchanged))


def _compared(context: ReproContext) -> list[Table]:
    """All policies on every trace: the paper's table of its own cluster, figures 7 and 9."""
    policies = (
        *_OURS,
        "shockwave:rho=mean",
        *_BASELINES,
        "gavel.ftf",
        "ossp",
        "mst",
        "gandiva-fair:tickets_per=gpu",
        "srtf",
        "srsf",
    )
    traces, seeds = (("120",), (0,)) if context.quick else (tuple(TRACES), range(5))
    tables = []
    for trace in traces:
        rows = []
        for policy in policies:
            key = {"what": "compared", "trace": trace, "policy": policy}
            rows.append([policy, *_row(context, key, _cases(context, trace, policy, seeds, _unchanged))])
        paper = (
            "public simulator, 120 jobs: Shockwave 24,197 / 9,958 / 1.78 / 5.0 %, Gavel max-min 33,208 / 11,274 / "
            "2.95, OSSP 24,205 / 19,807 / 7.74, MST 31,909 / 9,655 / 4.98, Gandiva-Fair 32,367 / 12,574 / 1.85"
        )
        title = f"figures 7 and 9: {trace} jobs on {TRACES[trace][2]} GPUs, means over {len(seeds)} orders of arrival"
        chart = judge.bars(rows, title, {"shockwave": 24197.0, "gavel.max-min": 33208.0} if trace == "120" else None)
        verdict = judge.compared_verdict(rows)
        tables.append(table(title, ["policy", *_COLUMNS], rows, paper, verdict=verdict, charts=[chart]))
    return tables


def _made_static(part: float, workload: Workload, seed: int) -> Workload:
    """Make a random fraction ``part`` of the jobs static: they keep their first batch size."""
    draws = np.random.default_rng([seed, 10]).random(len(workload.jobs))
    jobs = (
        msgspec.structs.replace(job, batch_schedule=(), adaptation=None, limits=None) if draw < part else job
        for job, draw in zip(workload.jobs, draws, strict=True)
    )
    return Workload(workload.name, tuple(jobs), workload.format, workload.source)


def _mixes(context: ReproContext) -> list[Table]:
    """Return the tables of figure 10."""
    trace, mixes = ("120", (1.0, 0.0)) if context.quick else ("220", (1.0, 0.6, 0.3, 0.0))
    rows = []
    for part in mixes:
        for policy in (*_OURS, *_BASELINES):
            key = {"what": "mix", "trace": trace, "static": part, "policy": policy}
            cases = _cases(context, trace, policy, (0,), partial(_made_static, part))
            rows.append([f"({part:g}, {1 - part:g}) {policy}", *_row(context, key, cases)])
    return [
        table(
            f"figure 10: by fraction of static and dynamic jobs; {trace} jobs",
            ["(S, D), policy", *_COLUMNS],
            rows,
            "all static: makespan 18 % better than Themis's, Gavel's and AlloX's, unfair (ρ above 1) below 5 % against "
            "18 %; all dynamic: 1.3 times better, unfair 9 % against Themis's 28 % and AlloX's 22 %",
            verdict=judge.mixes_verdict(rows),
            charts=[judge.bars(rows, "figure 10: makespan")],
        )
    ]


def _noises(context: ReproContext) -> list[Table]:
    """Return the tables of figure 13."""
    trace, levels = ("120", (0.0, 0.4, 0.8)) if context.quick else ("220", (0.0, 0.2, 0.4, 0.6, 0.8, 0.99))
    rows = []
    for level in levels:
        key = {"what": "noise", "trace": trace, "noise": level}
        cases = _cases(context, trace, f"shockwave:noise={level:g}", (0,), _unchanged)
        rows.append([f"±{level:.0%}", *_row(context, key, cases)])
    return [
        table(
            f"figure 13: predicted run times multiplied by a random factor; {trace} jobs",
            ["error", *_COLUMNS],
            rows,
            "Shockwave's worst ρ, unfair part and mean JCT grow slowly; its makespan by more than 30 % at 100 %",
            verdict=judge.noises_verdict(rows),
            charts=[judge.bars(rows, "figure 13: makespan")],
        )
    ]


def _factors(context: ReproContext) -> list[Table]:
    """Return the tables of figure 16."""
    gpus, rows = 14, []
    for factor in (3.0, 2.0, 1.5):
        for policy in (*_OURS, *_BASELINES):
            key = {"what": "jobs per GPU", "factor": factor, "policy": policy}

            def case(factor: float = factor, policy: str = policy) -> TraceCase:
                return TraceCase(policy, contended(public_trace(context.data, "120"), gpus, factor), "tacc", gpus)

            rows.append([f"{factor:g}, {policy}", *_row(context, key, [case])])
    return [
        table(
            "figure 16: by contention, the number of jobs relative to 14 GPUs",
            ["contention, policy", *_COLUMNS],
            rows,
            "makespan 35 %, 19 % and 8 % better than Gavel's, AlloX's and Themis's at 3, 2 and 1.5; worst ρ 1.2 at 2, "
            "1.27 times better than theirs",
            "simulated: this number of jobs, the first of the 120-job trace, submitted together",
            verdict=judge.factors_verdict(rows),
            charts=[judge.bars(rows, "figure 16: makespan")],
        )
    ]


def contended(workload: Workload, gpus: int, factor: float) -> Workload:
    """Return the first ``factor`` jobs for each GPU, all submitted at once: appendix I's contention factor."""
    first = workload.jobs[: round(factor * gpus)]
    jobs = tuple(msgspec.structs.replace(job, submitted=0.0) for job in first)
    return Workload(workload.name, jobs, workload.format, workload.source)


def _polluxes(context: ReproContext) -> list[Table]:
    """Return the tables of figure 17."""
    workload = read_workload(context.data / "pollux" / "workloads" / "workload-1.csv", "pollux")
    # Gangs and batch sizes as requested: none of the policies compared here changes them.
    fixed = tuple(
        msgspec.structs.replace(job, min_gpus=None, max_gpus=None, limits=None, adaptation=None)
        for job in workload.jobs
        if job.gpus <= 32
    )
    fixed = fixed[:40] if context.quick else fixed
    rows = []
    for policy in (*_OURS, *_BASELINES):
        key = {"what": "pollux trace", "policy": policy, "jobs": len(fixed)}
        whole = Workload(workload.name, fixed, workload.format, workload.source)
        rows.append([policy, *_row(context, key, [partial(TraceCase, policy, whole, "", 32, kind="t4")])])
    return [
        table(
            "figure 17: Pollux's trace on 32 GPUs",
            ["policy", *_COLUMNS],
            rows,
            "makespan 20 % better than Themis's, Gavel's and AlloX's",
            "Pollux's own models at their tuned batch sizes, which do not change",
            verdict=judge.trace_verdict(rows),
            charts=[judge.bars(rows, "figure 17: makespan")],
        )
    ]


def _plans(context: ReproContext) -> list[Table]:
    """Return the tables of figure 12."""
    from shoal.solve.window import Claims, plan

    rows: list[list[Cell]] = []
    stated = {500: 0.0003, 1000: 0.0011, 2000: 0.0044}
    for jobs in (500,) if context.quick else stated:
        rng = np.random.default_rng(jobs)
        widths = rng.choice([1, 2, 4, 8], p=[0.6, 0.3, 0.09, 0.01], size=jobs).astype(np.int32)
        left = rng.lognormal(3.0, 1.0, size=jobs)
        gains = np.minimum(np.arange(21)[None, :], left[:, None]) * rng.uniform(0.5, 2.0, size=(jobs, 1))
        begin = process_time()
        made = plan(Claims(widths, gains, left), 256, 0.0)
        rows.append([str(jobs), process_time() - begin, made.gap, 15.0, stated[jobs]])
    columns = [Column("CPU s", ".3f"), Column("gap", ".3%"), Column("paper, s", ".0f"), Column("paper, gap", ".2%")]
    here = "the gap is on welfare at the plan's makespan level, the paper's on the whole objective"
    title, verdict = "figure 12: plans of 20 rounds on 256 GPUs", judge.plans_verdict(rows)
    return [table(title, ["jobs", *columns], rows, "in the table", here, verdict=verdict)]


def prediction_errors(data: Path, trace: str, rule: str) -> Mapping[float, float]:
    """By progress: the mean relative error of a public job's predicted total run time.

    The predictor sees jobs as a cluster would: their owners' declarations, and events.
    """
    jobs, model = public_trace(data, trace).jobs, _model(data, trace)
    return {at: fmean(_error(model, job, at, rule) for job in jobs) for at in PROGRESS}


def _model(data: Path, trace: str) -> ProfiledModel:
    name = TRACES[trace][1]
    known = catalog().extended(parse_table(speeds(data, name), name))
    return ProfiledModel(parse_cluster("v100:1x8"), known)


def _error(model: ProfiledModel, job: Job, progress: float, rule: str) -> float:
    snapshot, true = _snapshot_at(model, job, progress)
    view = snapshot.jobs[job.id]
    return abs(view.run_seconds + forecast(snapshot, view, rule).seconds - true) / true


def _snapshot_at(model: ProfiledModel, job: Job, progress: float) -> tuple[Snapshot, float]:
    """A policy's snapshot of a job that ran alone up to this fraction of its work, and its true run time in seconds."""
    spec: JobSpec = job.spec()
    script = [(0.0, job.batch_size or 0), *job.batch_schedule, (job.work, 0)]
    events: list[Event] = []
    at = now = 0.0
    upto = progress * job.work
    for (since, size), (until, _) in pairwise(script):
        rate = float(model.speeds(spec, size)[0])
        if since == 0.0:
            events.append(JobStarted(at, 0, 1, rate, 0.0))
        elif since < upto:
            events.append(BatchChanged(at, 0, 1, rate, since, size))
        if since <= upto <= until:
            now = at + (upto - since) / rate
        at += (until - since) / rate
    state = State(model.topology, model)
    state.apply_events(0.0, [JobSubmitted(0.0, spec)])
    state.apply_commands([Start(0, 1, Placement(((0, spec.gpus),)))])
    state.apply_events(now, events)
    return state.freeze(), at


def _predicted(context: ReproContext) -> list[Table]:
    """Return the tables of figure 5."""
    rows: list[list[Cell]] = []
    for trace in ("120",) if context.quick else TRACES:
        for rule in ("restatement", "bayesian", "reactive"):
            errors = prediction_errors(context.data, trace, rule)
            rows.append([f"{trace}, {rule}", *(errors[at] for at in PROGRESS)])
    columns = [Column(f"at {at:.0%}", ".2%") for at in PROGRESS]
    return [
        table(
            "figure 5: mean error of predicted total run time by progress",
            ["trace, rule", *columns],
            rows,
            "on average over the training 16 % by the restatement rule, which converges faster than both others",
            verdict=judge.predictions_verdict(rows),
            charts=[judge.error_chart(rows, PROGRESS)],
        )
    ]


_PAPER = "Shockwave (NSDI '23)"
REPRODUCTIONS = (
    Reproduction("shockwave-5", _PAPER, "error of predicted run times", _predicted, "shockwave"),
    Reproduction("shockwave-9", _PAPER, "all baselines on the public traces", _compared, "shockwave"),
    Reproduction("shockwave-10", _PAPER, "by fraction of static and dynamic jobs", _mixes, "shockwave"),
    Reproduction("shockwave-12", _PAPER, "time and gap of a window's plan", _plans),
    Reproduction("shockwave-13", _PAPER, "mistaken predictions", _noises, "shockwave"),
    Reproduction("shockwave-16", _PAPER, "by contention", _factors, "shockwave"),
    Reproduction("shockwave-17", _PAPER, "on Pollux's trace", _polluxes, "pollux"),
)
