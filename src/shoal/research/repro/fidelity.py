"""How far the simulator is from machines: the same queue of PyTorch jobs on the embedded cluster and in the simulator.

Six small jobs run under each of four policies as real processes, with checkpoints, resizes and batch sizes that change.
Then the same submissions are simulated. What the simulator is told of a run is the same whatever came of it: when jobs
were submitted; the median time of a first start, of a later one and of an end, and the mean time of passes by model,
GPUs and samples, all measured in that run; the median noise scale that agents reported. It is not told what was
decided, nor when anything ended.

References: Gavel (OSDI '20) table 3, Shockwave (NSDI '23) table 3 and AFS (NSDI '21) figure 15 compare theirs so.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from shoal.core.commands import Decided, Resize, Start
from shoal.core.errors import InputError
from shoal.core.events import BatchChanged, EventBatch, JobProfiled
from shoal.core.topology import Locality, parse_cluster
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.live.home import JOURNAL
from shoal.perf.catalog import Catalog
from shoal.perf.fit import Observation, fitted
from shoal.perf.profile import MeasuredRate, ScalingProfile, StepTimes, TableProfile
from shoal.report.history import History, read_history
from shoal.research.repro.fidelity_live import QueueTimings, environment, measured, play
from shoal.research.repro.fidelity_queue import (
    BATCH,
    CLUSTER,
    EPOCH_SAMPLES,
    KIND,
    MODELS,
    MOST_BATCH,
    MOST_LOCAL,
    QUEUE,
    TRIALS,
    FidelityCase,
)
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.setting import Setting
from shoal.research.repro.table import Column, Table, table
from shoal.scenario.scenario import PLACERS, Scenario
from shoal.sim.backend import SimBackend
from shoal.sim.faults import Faults, NodeFault
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import JournalFile, MemoryJournal

REPEATS = 3
_SPEEDS = "speeds.json"
_BATCHES = (BATCH, 2 * BATCH, MOST_BATCH)
_GANGS = (1, 2)


@dataclass(frozen=True, slots=True)
class Compared:
    """One queue, lived and simulated: mean completion time and makespan in seconds, and what happened to jobs."""

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


def compared(trial: FidelityCase, home: Path, setting: Setting) -> Compared:
    """Run the queue under a policy in ``home`` and simulate it."""
    home.mkdir(parents=True, exist_ok=True)
    speeds = home / _SPEEDS
    speeds.write_text(json.dumps(declared()))
    scenario = Scenario(parse_cluster(CLUSTER), trial.spec(), throughputs=str(speeds))
    play(home, scenario, [(task.at, trial.submission(task, environment())) for task in QUEUE], setting.tell)
    took = measured(home)
    live = read_history(JournalFile(home / JOURNAL).raw())
    simulated = simulate(trial, scenario, took)
    resizes, batches = changes(home / JOURNAL)
    (live_jct, live_makespan), (jct, makespan) = _times(live), _times(simulated)
    return Compared(
        policy=trial.policy,
        live_jct=live_jct,
        live_makespan=live_makespan,
        simulated_jct=jct / trial.slower,
        simulated_makespan=makespan / trial.slower,
        restarts=len(live.holds.job) - len(live),
        simulated_restarts=len(simulated.holds.job) - len(simulated),
        resizes=resizes,
        batches=batches,
        first=took.first,
        again=took.again,
        end=took.end,
    )


def _times(history: History) -> tuple[float, float]:
    """Mean completion time and makespan."""
    return float((history.ended - history.submitted).mean()), float(history.ended.max() - history.begin)


def changes(journal: Path) -> tuple[int, int]:
    """How often jobs were resized while they ran, and how often their batch size was another than before."""
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


def declared() -> dict[str, Any]:
    """What policies are told of the models' speed, as a throughput file: what their steps are drawn out to."""
    rows = {
        f"('{model} (batch size {batch})', {gpus})": {"null": 1.0 / _drawn_out(model, gpus, batch)}
        for model in MODELS
        for batch in _BATCHES
        for gpus in _GANGS
    }
    return {KIND: rows}


def _drawn_out(model: str, gpus: int, batch: int) -> float:
    """Seconds of a step, in as many passes as it takes."""
    fixed, per_sample = MODELS[model]
    local = batch // gpus
    passes = -(-local // MOST_LOCAL)
    return passes * fixed + per_sample * local


def truth(trial: FidelityCase, took: QueueTimings) -> Catalog:
    """How fast the models really were: as measured, and where nothing was, as much slower than drawn out as elsewhere.

    In the simulator's seconds.
    """
    if trial.tuned:
        profiles: dict[str, Any] = {model: _tunable(trial, took, model) for model in MODELS}
    else:
        profiles = {model: _table(trial, took, model) for model in MODELS}
    return Catalog(profiles, {(model, KIND): "measured in this run" for model in MODELS})


def _table(trial: FidelityCase, took: QueueTimings, model: str) -> TableProfile:
    ratios = [
        seconds / _drawn_out(name, gpus, gpus * local)
        for (name, gpus, local), seconds in took.passes.items()
        if name == model and local <= MOST_LOCAL
    ]
    slower = median(ratios)
    rows: dict[int, Mapping[str, tuple[MeasuredRate, ...]]] = {}
    for batch in _BATCHES:
        figures = []
        for gpus in _GANGS:
            seconds = took.passes.get((model, gpus, batch // gpus), slower * _drawn_out(model, gpus, batch))
            figures.append(MeasuredRate(gpus, batch / seconds / trial.slower))
        rows[batch] = {KIND: tuple(figures)}
    return TableProfile(rows)


def _tunable(trial: FidelityCase, took: QueueTimings, model: str) -> ScalingProfile:
    seen = [
        Observation(gpus, 1, Locality.SAME_NODE, local, seconds * trial.slower, seconds * trial.slower)
        for (name, gpus, local), seconds in took.passes.items()
        if name == model
    ]
    fit = fitted(seen, MOST_LOCAL)
    times = StepTimes(fit.compute, fit.node, None, fit.gamma, MOST_LOCAL, node_gpus=4, error=fit.error)
    noise = took.noise[model]
    return ScalingProfile({KIND: times}, BATCH, MOST_BATCH, ((0.0, noise), (1.0, noise)), float(EPOCH_SAMPLES))


# ── the simulator ─────────────────────────────────────────────────────────────────────────────────────────────────


def simulate(trial: FidelityCase, scenario: Scenario, took: QueueTimings) -> History:
    """The same submissions in the simulator; policies are told what they were told in the live run."""
    by_name = {task.name: task for task in QUEUE}
    # The control plane adds some letters to the name a job was given.
    jobs = [trial.job(by_name[job.rpartition("-")[0]], job, at) for job, at in took.submitted.items()]
    world = replace(scenario, policy=trial.spec(trial.slower))
    backend = SimBackend(
        Truth.of(jobs, world.cluster, truth(trial, took)),
        [job.spec() for job in jobs],
        RestartCost(constant=trial.slower * took.again, first=trial.slower * (took.first + took.end)),
        # Policies that decide by intervals count them from when the nodes came up, before anybody was there.
        Faults((NodeFault(0.0, 0, trial.slower * took.up),)),
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


def _run(setting: Setting) -> list[Table]:
    repeats = 1 if setting.quick else REPEATS
    runs: dict[str, list[Compared]] = {trial.policy: [] for trial in TRIALS}
    for number in range(repeats):
        for trial in TRIALS:

            def make(trial: FidelityCase = trial, number: int = number) -> dict[str, object]:
                setting.tell(f"{trial.spec()}, run {number + 1} of {repeats}")
                with _home(setting, f"{trial.policy}-{number + 1}") as home:
                    return asdict(compared(trial, home, setting))

            key = {"fidelity": trial.spec(), "run": number}
            runs[trial.policy].append(Compared(**setting.kept.get(key, make)))
    rows = [_row(trial.policy, runs[trial.policy]) for trial in TRIALS]
    here = (
        f"{len(QUEUE)} PyTorch jobs (gloo, processors) on {CLUSTER}; seconds, medians over the runs; off: by how "
        "much the simulator is off the live cluster, worst: in the worst run. docs/fidelity.md says what is compared."
    )
    theirs = "Gavel below 8 % (table 3), Shockwave around 5 % (table 3), AFS-P 5.2 % (figure 15); Pollux has no figure"
    return [table("simulator beside the embedded cluster", _COLUMNS, rows, theirs, here)]


@contextmanager
def _home(setting: Setting, name: str) -> Iterator[Path]:
    """Where a run is kept: beside the file that results are kept in, for `shoal report` to tell of, or nowhere."""
    if setting.kept.file is None:
        with tempfile.TemporaryDirectory(prefix="shoal-fidelity-") as folder:
            yield Path(folder)
        return
    home = setting.kept.file.absolute().with_suffix("") / name
    if home.exists():
        raise InputError("out", str(setting.kept.file), f"{home} is of a run that was not finished: remove it first")
    yield home


def _row(policy: str, runs: Sequence[Compared]) -> list[str | float]:
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
        "the simulator beside real jobs on the embedded cluster, under afs-p, pollux, shockwave and gavel.max-min",
        _run,
    ),
)
