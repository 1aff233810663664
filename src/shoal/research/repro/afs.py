"""AFS's simulations (NSDI '21): eleven virtual clusters of Philly on 64 GPUs, the paper's figures and ours.

``measure_all`` runs variants and returns mean and 99th-percentile completion times; ``FIGURES`` lists the ratios that
each of the paper's figures shows. The traces are not shipped. The paper does not give the models' scaling curves, so
those of ``perf.afs_profiles`` are assumed: shapes may be compared, values may not. The folder of traces holds one file
of format ``simple`` for each, named by its number in the paper's Table 3: ``01_….csv.gz``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.policy.registry import POLICIES
from shoal.research.repro.afs_verdicts import VERDICTS
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Line, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload
from shoal.workload.generators.afs import misjudged, widest, with_models
from shoal.workload.schema import Workload

CLUSTER = "gtx1080:16x4"
TRACES = tuple(range(1, 12))
QUICK_TRACES = (4, 9, 11)
SEEDS = (0, 1, 2)
ONE_SEED = (0,)
"""The draws of figures whose policies take long."""
LONG_TRACES = (2, 3, 5, 10)
MOST_JOBS = 2000
"""Jobs taken of each of these long traces in figures that do not simulate whole traces; the others have fewer jobs."""
FIRST_JOBS = 500
FIRST = f"first {FIRST_JOBS}"
"""The jobs of runs of Themis, which holds an auction at every end of a lease, and of the runs beside it."""
FOLDER = "traces/philly_by_vc"
LENGTH_ERROR = 2.0
"""Factor by which ``misjudged`` lengths are too long or too short."""


@dataclass(frozen=True, slots=True)
class AfsVariant:
    """A policy, and a change of its jobs: ``widest`` gangs, lengths ``misjudged``, or only the ``FIRST``."""

    policy: str
    jobs: str = ""

    def __str__(self) -> str:
        return f"{self.policy} ({self.jobs})" if self.jobs else self.policy


@dataclass(frozen=True, slots=True)
class AfsResult:
    """One run, on the first ``limit`` jobs of a trace if that is set.

    ``mean`` and ``tail`` are the mean and 99th-percentile seconds from submission to completion.
    """

    trace: int
    seed: int
    policy: str
    jobs: str
    mean: float
    tail: float
    restarts: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class JctRatio:
    """How many times shorter completion times are with ``ours`` than with ``base``."""

    base: AfsVariant
    ours: AfsVariant
    of: str = "mean"


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One of the paper's figures: the ratios it shows, and the paper's statement on them."""

    number: str
    what: str
    ratios: tuple[JctRatio, ...]
    paper: str
    seeds: tuple[int, ...] = SEEDS
    whole: bool = True


def _ratios_over(base: str, *ours: str, of: str = "mean") -> tuple[JctRatio, ...]:
    return tuple(JctRatio(AfsVariant(base), AfsVariant(name), of) for name in ours if name in POLICIES)


def _beside_themis(of: str) -> JctRatio:
    return JctRatio(AfsVariant("themis", FIRST), AfsVariant("afs-p", FIRST), of)


_LENGTH_AWARE = ("srsf", "optimus", "afs-l", "rank")
_LENGTH_UNAWARE = ("optimus", "max-min", "afs-p")
FIGURES: dict[str, PaperFigure] = {
    figure.number: figure
    for figure in (
        PaperFigure(
            "5",
            "mean completion time, times shorter than SRTF's (lengths known) and Tiresias-L's (unknown)",
            (
                *_ratios_over("srtf", *_LENGTH_AWARE),
                *_ratios_over("tiresias", *_LENGTH_UNAWARE),
                _beside_themis("mean"),
            ),
            "AFS-L 1.2 to 2.7, AFS-P 1.9 to 3.1, each the best of its kind on all 11",
            ONE_SEED,
            whole=False,
        ),
        PaperFigure(
            "6",
            "mean completion time with the widest gangs that jobs can use, times longer than with those requested",
            tuple(JctRatio(AfsVariant(name, "widest"), AfsVariant(name)) for name in ("srtf", "srsf", "tiresias")),
            "up to 4.85, 5.84 and 16.14; on one trace 21 % and 17 % shorter for SRTF and SRSF",
        ),
        PaperFigure(
            "9",
            "99th-percentile completion time, times shorter than SRTF's and Tiresias-L's",
            (
                *_ratios_over("srtf", *_LENGTH_AWARE, of="tail"),
                *_ratios_over("tiresias", *_LENGTH_UNAWARE, of="tail"),
                _beside_themis("tail"),
            ),
            "AFS above 1 in most cases; Max-Min or Optimus ahead of it on some traces",
            ONE_SEED,
            whole=False,
        ),
        PaperFigure(
            "11",
            "mean completion time, times shorter than SRTF's",
            _ratios_over("srtf", "srtf-e", "srsf-e", "afs-l"),
            "SRTF-E and SRSF-E gain, AFS-L substantially more",
        ),
        PaperFigure(
            "13",
            "mean completion time, times longer than AFS-L's",
            tuple(JctRatio(AfsVariant(name), AfsVariant("afs-l")) for name in ("afs-p", "afs-s")),
            "AFS-P at most about 2; AFS-S similar to AFS-P in many cases",
            ONE_SEED,
            whole=False,
        ),
        PaperFigure(
            "rank",
            "ours, not the paper's: AFS-L's mean completion time over Rank's, and both with lengths off by a factor 2",
            (
                JctRatio(AfsVariant("afs-l"), AfsVariant("rank")),
                JctRatio(AfsVariant("afs-l", "misjudged"), AfsVariant("rank", "misjudged")),
                JctRatio(AfsVariant("afs-l"), AfsVariant("rank"), "tail"),
            ),
            "not in the paper",
        ),
    )
}
"""The figures that simulate the eleven traces, by number, and one of our own."""

Results = Mapping[tuple[int, int, AfsVariant], AfsResult]


def variants(figures: Iterable[PaperFigure]) -> tuple[AfsVariant, ...]:
    """Return all variants that these figures need, each once."""
    return tuple(dict.fromkeys(v for f in figures for r in f.ratios for v in (r.base, r.ours)))


def trace(folder: Path, number: int, seed: int, jobs: int | None = None) -> Workload:
    """Return a virtual cluster's jobs, at most the first ``jobs``; the seed draws the model that each trains."""
    found = sorted(folder.glob(f"{number:02d}_*"))
    if len(found) != 1:
        raise InputError("traces", str(folder), f"holds {len(found)} files named {number:02d}_…; it must be one")
    whole = read_workload(found[0], "simple")
    return with_models(whole if jobs is None else whole.first(jobs), seed)


def measure(folder: Path, number: int, seed: int, variant: AfsVariant, jobs: int | None = None) -> AfsResult:
    """Run one policy on one trace; restarts are free, since CoDDL's take four milliseconds."""
    most = FIRST_JOBS if variant.jobs == FIRST else jobs
    workload = trace(folder, number, seed, most if jobs is None or most is None else min(most, jobs))
    if variant.jobs == "widest":
        workload = widest(workload)
    elif variant.jobs == "misjudged":
        workload = misjudged(workload, LENGTH_ERROR, seed)
    scenario = Scenario(parse_cluster(CLUSTER), variant.policy, placement="any", restart_cost="0")
    summary = run(scenario, workload).summary
    times = summary["avg_jct"], summary["p99_jct"], summary["restarts"]
    return AfsResult(number, seed, variant.policy, variant.jobs, *times, limit=jobs)


def measure_all(
    context: ReproContext,
    folder: Path,
    wanted: Sequence[AfsVariant],
    *,
    traces: Sequence[int] = TRACES,
    seeds: Sequence[int] = SEEDS,
    jobs: int | None = None,
    most: int | None = None,
) -> Results:
    """Return the results of all variants on all traces and seeds, computed or stored.

    At most ``jobs`` jobs of each trace are simulated, and at most ``most`` of a long one.
    """
    limits = {number: most if number in LONG_TRACES and jobs is None else jobs for number in traces}
    cases = [(number, seed, variant) for number in traces for seed in seeds for variant in wanted]
    tasks = [
        Task(
            {"afs": number, "seed": seed, "policy": variant.policy, "jobs": variant.jobs, "limit": limits[number]},
            f"trace {number}, seed {seed}, {variant}",
            measure,
            (folder, number, seed, variant, limits[number]),
        )
        for number, seed, variant in cases
    ]
    return {case: AfsResult(**found) for case, found in zip(cases, run_all(context, tasks), strict=True)}


def ratios(results: Results, ratio: JctRatio, traces: Sequence[int], seeds: Sequence[int]) -> list[float]:
    """Return by trace the geometric mean, over the seeds, of the times with ``base`` over those with ``ours``."""

    def mean_ratio(number: int) -> float:
        logs = [
            log(getattr(results[number, s, ratio.base], ratio.of) / getattr(results[number, s, ratio.ours], ratio.of))
            for s in seeds
        ]
        return exp(sum(logs) / len(logs))

    return [mean_ratio(number) for number in traces]


def figure_table(figure: PaperFigure, results: Results, traces: Sequence[int], seeds: Sequence[int]) -> Table:
    """Return a figure as a table: a row for each ratio, a column for each trace."""
    rows: list[list[Cell]] = []
    found: dict[str, list[float]] = {}
    for ratio in figure.ratios:
        row = ratios(results, ratio, traces, seeds)
        name = f"{ratio.base} / {ratio.ours}" + (", tail" if ratio.of == "tail" and figure.number == "rank" else "")
        found[name] = row
        rows.append([name, *row, exp(sum(map(log, row)) / len(row))])
    title = f"figure {figure.number}" if figure.number != "rank" else "Rank"
    lines = tuple(Line(name, tuple((float(i), value) for i, value in enumerate(row))) for name, row in found.items())
    return table(
        f"{title}: {figure.what}",
        ["ratio", *map(str, traces), "mean"],
        rows,
        figure.paper,
        _extent(figure, len(seeds)),
        verdict=VERDICTS[figure.number](found) if figure.number in VERDICTS else "",
        charts=[Chart(title, "trace", "ratio", (), lines, "bars", tuple(map(str, traces)))],
    )


def _extent(figure: PaperFigure, draws: int) -> str:
    drawn = "models drawn for the jobs once" if draws == 1 else f"means of {draws} draws of models for the jobs"
    return drawn if figure.whole else f"{drawn}; the first {MOST_JOBS:,} jobs of a trace"


def _run(figure: PaperFigure, context: ReproContext) -> list[Table]:
    traces, seeds = (QUICK_TRACES, ONE_SEED) if context.quick else (TRACES, figure.seeds)
    wanted = variants([figure])
    most = None if figure.whole else MOST_JOBS
    results = measure_all(context, context.data / FOLDER, wanted, traces=traces, seeds=seeds, most=most)
    return [figure_table(figure, results, traces, seeds)]


REPRODUCTIONS = tuple(
    Reproduction(f"afs-{figure.number}", "AFS (NSDI '21)", figure.what, partial(_run, figure), FOLDER)
    for figure in FIGURES.values()
)
