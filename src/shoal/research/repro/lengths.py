"""Predicted lengths (`perf.length_history`) on traces: how often the 80 % intervals hold, and their error. Ours.

Each trace is played once: at a job's submission, and when it has run 10 minutes, 1 hour, 4 hours and a day, its length
is predicted from the runs that have ended by then; it counts as started when it was submitted, since the traces do not
say when. The settings were chosen on the weeks before those that are reported here.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from math import exp

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.job import JobSpec
from shoal.core.units import span
from shoal.perf.length_history import LengthHistory
from shoal.perf.length_table import STRATA
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Column, Table, table
from shoal.workload.files import read_workload
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

WEEK = 7 * 86_400.0
_RULE_SECONDS = 600.0
_COLUMNS = (
    "trace and time run",
    Column("predictions", ",d"),
    Column("80 % interval holds", ".1%"),
    Column("below", ".1%"),
    Column("above", ".1%"),
    Column("median error, factor", ".2f"),
    Column("of the rule", ".2f"),
)
_RULE = "as long again as it has run, and 600 s"


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, and its weeks, counted from its begin, that were not used to choose settings."""

    name: str
    read: Callable[[ReproContext], Sequence[Job]]
    first_week: float


@dataclass(frozen=True, slots=True)
class Score:
    """How predictions at one time of jobs' runs turned out; errors are medians of |ln(predicted left / true left)|."""

    count: int
    below: float
    above: float
    error: float
    rule_error: float


def evaluate(jobs: Sequence[Job], since: float) -> list[Score]:
    """Play a trace; return, by stratum of the time run, the scores of the jobs submitted from ``since`` on."""
    history, one = LengthHistory(), np.ones(1)
    moments = [(job.submitted + job.work, 0, i, 0) for i, job in enumerate(jobs)]
    for i, job in enumerate(jobs):
        moments += [(job.submitted + ran, 1, i, s) for s, ran in enumerate(STRATA) if ran < job.work]
    specs: dict[int, JobSpec] = {}
    found: list[list[tuple[float, ...]]] = [[] for _ in STRATA]
    for _, predicts, i, stratum in sorted(moments):
        job = jobs[i]
        if not predicts:
            history.ended(i, specs.pop(i), job.work, 1.0)
            continue
        if not stratum:
            specs[i] = replace(job.spec(), work=None)
            number, _ = history.submitted(i, specs[i], one)
        else:
            number, _ = history.place(specs[i], one)
        if job.submitted >= since:
            low, median, high, _ = history.totals(np.array([number]), np.array([STRATA[stratum]]))[0].tolist()
            found[stratum].append((job.work, low, median, high))
    return [_score(np.array(rows).reshape(-1, 4), ran) for rows, ran in zip(found, STRATA, strict=True)]


def _score(rows: Floats, ran: float) -> Score:
    rows = rows[~np.isnan(rows[:, 2])]
    if not len(rows):
        return Score(0, 0.0, 0.0, 0.0, 0.0)
    total, low, median, high = rows.T
    left = np.log(total - ran)
    return Score(
        len(rows),
        float(np.mean(total < low)),
        float(np.mean(total > high)),
        float(np.median(np.abs(np.log(np.maximum(median - ran, 1.0)) - left))),
        float(np.median(np.abs(np.log(ran + _RULE_SECONDS) - left))),
    )


def _philly(context: ReproContext) -> Sequence[Job]:
    return read_workload(context.data / "traces/philly_pollux_82247.csv.gz").jobs


def _alibaba(context: ReproContext) -> Sequence[Job]:
    pods = read_workload(context.data / "traces/alibaba_gpu_v2023/openb_pod_list_default.csv.gz").jobs
    return [pod for pod in pods if pod.submitted >= 16 * WEEK]  # of the 16 weeks before there are 20 pods


TRACES = (
    Trace("Philly, weeks 12 to 15", _philly, 11),
    Trace("Helios-like, weeks 14 to 16", lambda _: generate("helios", jobs=70_000, seed=6).jobs, 13),
    Trace("Alibaba 2023, weeks 21 and 22", _alibaba, 20),
)


def _run(context: ReproContext) -> Sequence[Table]:
    rows: list[tuple[str | float | int | None, ...]] = []
    for trace in TRACES[1:2] if context.quick else TRACES:
        key = {"lengths": trace.name, "first_week": trace.first_week}
        scores = context.run(key, trace.name, partial(_measure, trace, context))
        for (count, below, above, error, rule), ran in zip(scores, STRATA, strict=True):
            label = f"{trace.name}, " + ("at submission" if not ran else f"after {span(ran)}")
            rows.append((label, count, 1.0 - below - above, below, above, exp(error), exp(rule)))
    paper = "none: 75 to 85 % of the intervals said to hold 80 % should"
    here = f"settings chosen on earlier weeks (Helios-like: another seed); the rule without history: {_RULE}"
    return [table("Predicted lengths on weeks that nothing was chosen on", _COLUMNS, rows, paper, here)]


def _measure(trace: Trace, context: ReproContext) -> list[tuple[float, ...]]:
    return [astuple(score) for score in evaluate(trace.read(context), trace.first_week * WEEK)]


REPRODUCTIONS = (
    Reproduction("lengths", "ours", "calibration and error of lengths predicted from earlier runs", _run, "traces"),
)
