"""Difference between simulator and real machines: one queue of PyTorch jobs, simulated and on the embedded cluster.

Six small jobs run under each of four policies as real processes, with checkpoints, resizes and changing batch sizes.
Then the same submissions are simulated. The simulator gets only inputs measured in that run: submission times; the
median time of a first start, of a later start and of an end; the mean time of passes by model, GPUs and samples; and
the median noise scale that agents reported. The simulator does not get decisions or completion times.

References: Gavel (OSDI '20) table 3, Shockwave (NSDI '23) table 3 and AFS (NSDI '21) figure 15 make such comparisons.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Any

from shoal.core.commands import Decided, Resize, Start
from shoal.core.events import BatchChanged, EventBatch, JobProfiled
from shoal.core.topology import Locality, parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.live.home import JOURNAL
from shoal.perf.catalog import Catalog
from shoal.perf.fit import Observation, fitted
from shoal.perf.profile import MeasuredRate, ScalingProfile, StepTimes, TableProfile
from shoal.report.history import History, read_history
from shoal.research.repro.context import ReproContext
from shoal.research.repro.fidelity_live import QueueTimings, job_environment, read_timings, run_queue
from shoal.research.repro.fidelity_queue import (
    BATCH,
    CASES,
    CLUSTER,
    EPOCH_SAMPLES,
    KIND,
    MODELS,
    MOST_BATCH,
    MOST_LOCAL,
    QUEUE,
    FidelityCase,
)
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Column, Table, table
from shoal.scenario.scenario import PLACERS, Scenario
from shoal.sim.backend import SimulatedBackend
from shoal.sim.faults import Faults, NodeFault
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import JournalFile, MemoryJournal

REPEATS = 3
_SPEEDS = "speeds.json"
_BATCHES = (BATCH, 2 * BATCH, MOST_BATCH)
_GANGS = (1, 2)


@dataclass(frozen=True, slots=True)
class FidelityResult:
    """One queue, live and simulated: mean completion times and makespans in seconds, and counts of changes to jobs.

    ``first``, ``again`` and ``end`` are the measured seconds of a first start, a later start and an end.
    """

    policy: str
    live_jct: float
    live_makespan: float
    simulated_jct: float
    simulated_makespan: float
    restarts: int
    simulated_restarts: int
    resizes: int
    batches: int
    first: float
    again: float
    end: float


def compare(case: FidelityCase, home: Path, context: ReproContext) -> FidelityResult:
    """Run the queue under a policy in ``home`` and simulate it."""
    home.mkdir(parents=True, exist_ok=True)
    speeds = home / _SPEEDS
    speeds.write_text(json.dumps(declared_throughputs()))
    scenario = Scenario(parse_cluster(CLUSTER), case.spec(), throughputs=str(speeds))
    run_queue(home, scenario, [(task.at, case.submission(task, job_environment())) for task in QUEUE], context.announce)
    timings = read_timings(home)
    live = read_history(JournalFile(home / JOURNAL).raw())
    simulated = simulate(case, scenario, timings)
    resizes, batches = changes(home / JOURNAL)
    (live_jct, live_makespan), (jct, makespan) = _times(live), _times(simulated)
    return FidelityResult(
        policy=case.policy,
        live_jct=live_jct,
        live_makespan=live_makespan,
        simulated_jct=jct / case.time_scale,
        simulated_makespan=makespan / case.time_scale,
        restarts=len(live.holds.job) - len(live),
        simulated_restarts=len(simulated.holds.job) - len(simulated),
        resizes=resizes,
        batches=batches,
        first=timings.first,
        again=timings.again,
        end=timings.end,
    )


def _times(history: History) -> tuple[float, float]:
    """Mean completion time and makespan in seconds."""
    return float((history.ended - history.submitted).mean()), float(history.ended.max() - history.begin)


def changes(journal: Path) -> tuple[int, int]:
    """Count resizes of running jobs and changes of batch size in a journal."""
    resizes, batches = 0, 0
    sizes: dict[int, int] = {}
    held: dict[int, int] = {}
    for record in JournalFile(journal).read():
        if isinstance(record, Decided):
            for command in record.commands:
                if isinstance(command, Resize):
                    resizes += command.placement.gpus != held[command.job]
                if isinstance(command, Start | Resize):
                    held[command.job] = command.placement.gpus
        for event in record.events if isinstance(record, EventBatch) else ():
            if isinstance(event, BatchChanged | JobProfiled):
                size = event.batch_size if isinstance(event, BatchChanged) else event.report.batch.size
                batches += size != sizes.get(event.job, BATCH)
                sizes[event.job] = size
    return resizes, batches


# ── speeds ────────────────────────────────────────────────────────────────────────────────────────────────────────


def declared_throughputs() -> dict[str, Any]:
    """Return the models' declared speeds as a throughput file, computed from the declared step times."""
    rows = {
        f"('{model} (batch size {batch})', {gpus})": {"null": 1.0 / _declared_seconds(model, gpus, batch)}
        for model in MODELS
        for batch in _BATCHES
        for gpus in _GANGS
    }
    return {KIND: rows}


def _declared_seconds(model: str, gpus: int, batch: int) -> float:
    """Declared seconds of a step, in as few passes as its samples allow."""
    fixed, per_sample = MODELS[model]
    local = batch // gpus
    passes = -(-local // MOST_LOCAL)
    return passes * fixed + per_sample * local


def true_speeds(case: FidelityCase, timings: QueueTimings) -> Catalog:
    """Return the models' true speeds: as measured, else the declared ones corrected by the model's measured slowdown.

    Times are in the simulator's seconds.
    """
    if case.tuned:
        profiles: dict[str, Any] = {model: _fitted_profile(case, timings, model) for model in MODELS}
    else:
        profiles = {model: _table_profile(case, timings, model) for model in MODELS}
    return Catalog(profiles, {(model, KIND): "measured in this run" for model in MODELS})


def _table_profile(case: FidelityCase, timings: QueueTimings, model: str) -> TableProfile:
    ratios = [
        seconds / _declared_seconds(name, gpus, gpus * local)
        for (name, gpus, local), seconds in timings.passes.items()
        if name == model and local <= MOST_LOCAL
    ]
    slowdown = median(ratios)
    rows: dict[int, Mapping[str, tuple[MeasuredRate, ...]]] = {}
    for batch in _BATCHES:
        figures = []
        for gpus in _GANGS:
            seconds = timings.passes.get((model, gpus, batch // gpus), slowdown * _declared_seconds(model, gpus, batch))
            figures.append(MeasuredRate(gpus, batch / seconds / case.time_scale))
        rows[batch] = {KIND: tuple(figures)}
    return TableProfile(rows)


def _fitted_profile(case: FidelityCase, timings: QueueTimings, model: str) -> ScalingProfile:
    seen = [
        Observation(gpus, 1, Locality.SAME_NODE, local, seconds * case.time_scale, seconds * case.time_scale)
        for (name, gpus, local), seconds in timings.passes.items()
        if name == model
    ]
    fit = fitted(seen, MOST_LOCAL)
    times = StepTimes(fit.compute, fit.node, None, fit.gamma, MOST_LOCAL, node_gpus=4, error=fit.error)
    noise = timings.noise[model]
    return ScalingProfile({KIND: times}, BATCH, MOST_BATCH, ((0.0, noise), (1.0, noise)), float(EPOCH_SAMPLES))


# ── the simulator ─────────────────────────────────────────────────────────────────────────────────────────────────


def simulate(case: FidelityCase, scenario: Scenario, timings: QueueTimings) -> History:
    """Simulate the same submissions; policies see the same declarations as in the live run."""
    by_name = {task.name: task for task in QUEUE}
    # The control plane adds a suffix to a job's name.
    jobs = [case.job(by_name[job.rpartition("-")[0]], job, at) for job, at in timings.submitted.items()]
    world = replace(scenario, policy=case.spec(case.time_scale))
    backend = SimulatedBackend(
        Truth.of(jobs, world.cluster, true_speeds(case, timings)),
        [job.spec() for job in jobs],
        RestartCost(constant=case.time_scale * timings.again, first=case.time_scale * (timings.first + timings.end)),
        # Policies with intervals count them from the time at which the nodes came up, before the first job.
        Faults((NodeFault(0.0, 0, case.time_scale * timings.up),)),
    )
    journal = MemoryJournal.begin(world.settings("fidelity"))
    state, placer = world.make_state(world.speeds()), PLACERS[world.placement]()
    Loop(backend, state, world.make_policy(), placer, StopStartPlanner(), journal).run()
    return read_history(journal.raw())


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────

_COLUMNS = (
    Column("policy"),
    Column("live JCT", ".1f"),
    Column("simulated", ".1f"),
    Column("off", "+.1%"),
    Column("worst", ".1%"),
    Column("live makespan", ".1f"),
    Column("simulated ", ".1f"),
    Column("off ", "+.1%"),
    Column("worst ", ".1%"),
    Column("restarts", ".0f"),
    Column("simulated  ", ".0f"),
    Column("resizes", ".0f"),
    Column("batch changes", ".0f"),
    Column("a start", ".1f"),
    Column("runs", ".0f"),
)


def _run(context: ReproContext) -> list[Table]:
    runs = live_results(context, CASES)
    rows = [_row(case.policy, runs[case.policy]) for case in CASES]
    here = (
        f"{len(QUEUE)} PyTorch jobs (gloo, processors) on {CLUSTER}; seconds, medians over the runs; off: relative "
        "error of the simulator, worst: in the worst run. docs/fidelity.md explains the comparison."
    )
    theirs = "Gavel below 8 % (table 3), Shockwave around 5 % (table 3), AFS-P 5.2 % (figure 15); Pollux has no figure"
    return [table("simulator compared with the embedded cluster", _COLUMNS, rows, theirs, here)]


def live_results(
    context: ReproContext, cases: Sequence[FidelityCase], name: str = "fidelity", folder: str = ""
) -> dict[str, list[FidelityResult]]:
    """Return, by policy, the live and simulated runs of these cases, measured or stored under a key with this ``name``.

    The home folder of a run is beside the file of results, if there is one; its name begins with ``folder``.
    """
    repeats = 1 if context.quick else REPEATS
    found: dict[str, list[FidelityResult]] = {case.policy: [] for case in cases}
    for number in range(repeats):
        for case in cases:
            key = {name: case.spec(), "run": number}
            label = f"{case.spec()}, run {number + 1} of {repeats}"
            home = f"{folder}{case.policy}-{number + 1}"
            found[case.policy].append(FidelityResult(**context.run(key, label, _measure, context, case, home)))
    return found


def _measure(context: ReproContext, case: FidelityCase, name: str) -> FidelityResult:
    with _home(context, name) as home:
        return compare(case, home, context)


@contextmanager
def _home(context: ReproContext, name: str) -> Iterator[Path]:
    """Home folder of a run: beside the result file, for `shoal report`, or temporary if there is none.

    The folder of a run that was not finished is left as it is, and a new one with a number is taken.
    """
    if context.cache.file is None:
        with tempfile.TemporaryDirectory(prefix="shoal-fidelity-") as folder:
            yield Path(folder)
        return
    kept = context.cache.file.absolute().with_suffix("")
    again = (kept / f"{name}-again-{number}" for number in count(1))
    yield next(home for home in chain([kept / name], again) if not home.exists())


def _row(policy: str, runs: Sequence[FidelityResult]) -> list[str | float]:
    def middle(*names: str) -> list[float]:
        return [median(getattr(run, name) for run in runs) for name in names]

    off_jct = [run.simulated_jct / run.live_jct - 1.0 for run in runs]
    off_makespan = [run.simulated_makespan / run.live_makespan - 1.0 for run in runs]
    return [
        policy,
        *middle("live_jct", "simulated_jct"),
        median(off_jct),
        max(map(abs, off_jct)),
        *middle("live_makespan", "simulated_makespan"),
        median(off_makespan),
        max(map(abs, off_makespan)),
        *middle("restarts", "simulated_restarts", "resizes", "batches", "again"),
        len(runs),
    ]


REPRODUCTIONS = (
    Reproduction(
        "fidelity",
        "Gavel, Shockwave, AFS",
        "the simulator compared with real jobs on the embedded cluster: afs-p, pollux, shockwave, gavel.max-min",
        _run,
    ),
)
