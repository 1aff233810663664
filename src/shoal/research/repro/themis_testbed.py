"""Themis's testbed experiments, simulated: figures 9 to 14 and table 5 on 64 GPUs in 20 machines.

The paper ran them on K80 GPUs; here the machines are simulated, with P100, on which its table 1 was measured, and with
generated apps. One run gives all figures: ρ of every app, GPU time, and the placement scores of all allocations. The
score of an allocation, our metric for the paper's "inversely proportional to slowdown", is the speed of the job on its
seats over its speed on as many GPUs on as few machines as possible; its distribution is by GPU time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.topology import Locality, Placement, Topology, parse_cluster
from shoal.perf.catalog import catalog
from shoal.report.apps import app_table
from shoal.report.compare import half_width
from shoal.report.history import History, read_history
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import PairedRatio, all_at_least, all_hold, all_within, paired_ratio
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import REPRODUCES, Cell, Chart, Column, Line, Table, cannot_be_told, differs, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.registry import generate

CLUSTERS = {1: "p100:12x4,p100:8x2", 2: "p100:6x4,p100:4x2", 4: "p100:3x4,p100:2x2"}
"""The testbed by contention: whole, half and a quarter of it."""

THEMIS = "themis"
BASELINES = {
    "tiresias": "apps:by=service",
    "gandiva": "gandiva",
    "optimus": "optimus",
    "slaq": "slaq",
    "srtf": "apps:by=time",
    "srsf": "apps:by=work",
}
"""The paper's baselines by name; Tiresias, SRTF and SRSF serve whole apps, as in its setup (§6.1)."""

POLICIES = {THEMIS: THEMIS, **BASELINES}
SEEDS = 5
TRIALS = 800
INTERARRIVAL = 2400.0
"""Seconds between apps that load 64 GPUs as the generator's 900 load 168."""

LEAST_GAIN = 2.2
"""Least ratio of a baseline's worst ρ to Themis's in the paper (§6.2)."""

_QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class TestbedResult:
    """One run: ρ of each app and its GPU-seconds of work, GPU-seconds of all jobs, and placement scores.

    ``scores`` are the quantiles ``_QUANTILES`` of the score by GPU time, ``perfect`` the fraction of it at score 1.
    """

    rho: tuple[float, ...]
    work: tuple[float, ...]
    gpu_seconds: float
    score: float
    perfect: float
    scores: tuple[float, ...]

    __test__ = False


Found = Mapping[str, Sequence[TestbedResult]]
"""Results by policy and seed."""


def measure(policy: str, workload: int, contention: int, seed: int, trials: int = TRIALS) -> TestbedResult:
    """Run one policy on the testbed."""
    cluster = parse_cluster(CLUSTERS[contention])
    options = {"workload": workload, "interarrival": INTERARRIVAL, "widest": cluster.total_gpus}
    done = run(Scenario(cluster, policy, seed=seed), generate("themis", jobs=trials, seed=seed, **options))
    assert done.journal is not None
    history = read_history(done.journal.raw())
    made = app_table(history, done.jobs.exclusive)
    scores, weights = placement_scores(history)
    order = np.argsort(scores)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = np.minimum(np.searchsorted(reached, _QUANTILES), len(order) - 1)
    return TestbedResult(
        tuple(made.rho.tolist()),
        tuple(made.ideal.tolist()),
        done.summary["gpu_seconds"],
        float(np.average(scores, weights=weights)),
        float(weights[scores > 0.999].sum() / weights.sum()),
        tuple(scores[order][at].tolist()),
    )


def placement_scores(history: History) -> tuple[Floats, Floats]:
    """Return the placement score and the GPU-seconds of every allocation."""
    seats: list[list[tuple[int, int]]] = [[] for _ in history.holds.job]
    for hold, node, gpus in zip(history.seats.hold, history.seats.node, history.seats.gpus, strict=True):
        seats[hold].append((int(node), int(gpus)))
    known: dict[tuple[str | None, int, tuple[tuple[int, int], ...]], float] = {}
    scores = np.ones(len(seats))
    for hold, job in enumerate(history.holds.job.tolist()):
        kind = history.types[history.type[job]]
        key = kind.model, kind.batch_size or 0, tuple(sorted(seats[hold]))
        if key not in known:
            known[key] = _score(history.topology, kind.model, kind.batch_size, Placement(key[2]))
        scores[hold] = known[key]
    return scores, history.holds.gpu_seconds


def _score(cluster: Topology, model: str | None, batch_size: int | None, placement: Placement) -> float:
    """Speed on these seats over that on as many GPUs on as few machines as possible."""
    if model is None or placement.gpus < 2:
        return 1.0
    kind, profile = cluster.kind_of(placement), catalog().profile(model)
    fits = placement.gpus <= cluster.node_size[kind]
    best = Locality.SAME_NODE if fits else Locality.CROSS_NODE
    here, there = (
        profile.rate(cluster.kinds[kind], placement.gpus, where, batch_size)
        for where in (cluster.locality(placement), best)
    )
    return min(here / there, 1.0)


def results(context: ReproContext, workload: int, contention: int, names: Sequence[str] = tuple(POLICIES)) -> Found:
    """Return the results of these policies by seed, computed or stored."""
    seeds, trials = (range(2), TRIALS // 8) if context.quick else (range(SEEDS), TRIALS)
    found: dict[str, list[TestbedResult]] = {}
    for name in names:
        for seed in seeds:
            key = {"themis-testbed": workload, "contention": contention, "policy": POLICIES[name], "seed": seed}
            label = f"workload {workload}, contention {contention}, {name}, seed {seed}"
            arguments = POLICIES[name], workload, contention, seed, trials
            row = context.run({**key, "trials": trials}, label, _measured, *arguments)
            found.setdefault(name, []).append(_read(row))
    return found


def _read(row: Mapping[str, Any]) -> TestbedResult:
    lists = {name: tuple(row[name]) for name in ("rho", "work", "scores")}
    return TestbedResult(**{**row, **lists})


def _measured(policy: str, workload: int, contention: int, seed: int, trials: int) -> dict[str, object]:
    return asdict(measure(policy, workload, contention, seed, trials))


def worst(found: Sequence[TestbedResult]) -> list[float]:
    """By seed the worst ρ of an app."""
    return [max(one.rho) for one in found]


def _ratios(found: Found, of: Callable[[Sequence[TestbedResult]], list[float]]) -> dict[str, PairedRatio]:
    """By baseline: its figure over Themis's, seed by seed."""
    return {name: paired_ratio(of(found[name]), of(found[THEMIS])) for name in BASELINES}


def fairness_table(found: Found, figure: str, workload: int) -> Table:
    """Figures 9 and 10: the distribution of ρ."""
    ratio = _ratios(found, worst)
    rows: list[list[Cell]] = []
    for name, runs in found.items():
        every = np.array([rho for one in runs for rho in one.rho])
        quantiles = [float(q) for q in np.quantile(every, (0.1, 0.5, 0.9))]
        spread = float(np.std(every))
        rows.append([name, *quantiles, fmean(worst(runs)), str(ratio[name]) if name in ratio else "1", spread])
    narrow = min(rows, key=lambda row: float(str(row[-1])))[0]
    steps = tuple(Line(name, _distribution([rho for one in runs for rho in one.rho])) for name, runs in found.items())
    return table(
        f"figure {figure}: ρ of apps, workload {workload}, simulated testbed",
        ["policy", "p10", "median", "p90", "max ρ", "max ρ ÷ themis", "std. deviation"],
        rows,
        "max ρ 2.2 to 3.25 times Themis's with all baselines; Themis has the narrowest distribution",
        f"the narrowest distribution is that of {narrow}",
        verdict=all_at_least("worst ρ over Themis's", ratio, LEAST_GAIN),
        charts=[Chart(f"figure {figure}: ρ of apps", "ρ", "fraction of apps", (), steps, "steps")],
    )


def _distribution(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The points of a distribution function, at most 50."""
    ordered = np.sort(np.array(values))
    at = np.unique(np.linspace(0, len(ordered) - 1, 50).astype(int))
    return tuple((float(ordered[i]), (int(i) + 1) / len(ordered)) for i in at)


def gpu_time_table(found: Found, figure: str, workload: int) -> Table:
    """Figures 11 and 12: GPU time relative to Themis's."""
    ratio = _ratios(found, lambda runs: [one.gpu_seconds for one in runs])
    theirs = {} if workload == 1 else {"gandiva": 1.048, "slaq": 3.5}
    rows: list[list[Cell]] = [[name, theirs.get(name), one.mean, str(one)] for name, one in ratio.items()]
    if workload == 1:
        verdict = all_within(ratio, 0.95, 1.05)
    else:
        more = {name: f"{name} takes more (paper {value:.3f}, ours {ratio[name]})" for name, value in theirs.items()}
        verdict = all_hold({text: ratio[name].low > 1.0 for name, text in more.items()})
    names = tuple(ratio)
    ours = Line("ours", tuple((float(i), ratio[name].mean) for i, name in enumerate(names)))
    paper = Line("paper", tuple((float(names.index(name)), value) for name, value in theirs.items()))
    drawn = (paper,) if theirs else ()
    said = "4.8 % more with Gandiva, 250 % more with SLAQ"
    return table(
        f"figure {figure}: GPU time over Themis's, workload {workload}, simulated testbed",
        ["policy", Column("paper", ".3f"), Column("ours", ".3f"), "95 % interval"],
        rows,
        said if theirs else "similar with all: all jobs have 1 or 2 GPUs",
        verdict=verdict,
        charts=[Chart(f"figure {figure}", "policy", "GPU time ÷ Themis's", drawn, (ours,), "bars", names)],
    )


def score_table(first: Found, second: Found) -> Table:
    """Figure 13: placement scores with both workloads."""
    rows: list[list[Cell]] = []
    for name in POLICIES:
        one, two = first[name], second[name]
        tenth = fmean(run.scores[_QUANTILES.index(0.1)] for run in two)
        means = [fmean(run.score for run in runs) for runs in (one, two)]
        perfect = [fmean(run.perfect for run in runs) for runs in (one, two)]
        rows.append([name, means[0], perfect[0], means[1], half_width([r.score for r in two]), tenth, perfect[1]])
    low = [str(row[0]) for row in rows if float(str(row[1])) < 0.98]
    lines = tuple(
        Line(name, tuple((fmean(run.scores[i] for run in runs), q) for i, q in enumerate(_QUANTILES)))
        for name, runs in second.items()
    )
    return table(
        "figure 13: placement scores by GPU time, simulated testbed",
        [
            "policy",
            Column("mean, workload 1", ".3f"),
            Column("at 1.0", ".0%"),
            Column("mean, workload 2", ".3f"),
            Column("±", ".3f"),
            Column("p10", ".3f"),
            Column("at 1.0, workload 2", ".0%"),
        ],
        rows,
        "best with Themis in workload 2, Gandiva and Optimus nearest; nearly all 1.0 in workload 1 with every policy",
        verdict=_score_verdict(second, low),
        charts=[Chart("figure 13: workload 2", "placement score", "fraction of GPU time", (), lines, "steps")],
    )


def _score_verdict(second: Found, low: Sequence[str]) -> str:
    """Return the verdict: Themis's scores of workload 2 are the best and no policy has ``low`` scores on workload 1."""
    gaps = {name: [a.score - b.score for a, b in zip(second[name], second[THEMIS], strict=True)] for name in BASELINES}
    ahead = [name for name, gap in gaps.items() if fmean(gap) - half_width(gap) > 0.0]
    level = [name for name, gap in gaps.items() if fmean(gap) + half_width(gap) >= 0.0]
    if ahead or low:
        better = [f"{name} has better scores than Themis" for name in ahead]
        return differs("; ".join([*better, *(f"{name} is below 0.98 in workload 1" for name in low)]))
    return cannot_be_told(f"Themis is level with {', '.join(level)}") if level else REPRODUCES


def contention_table(by_contention: Mapping[int, Found]) -> Table:
    """Figure 14: worst ρ with workload 1 on the whole, half and a quarter of the testbed."""
    rows: list[list[Cell]] = []
    keeps: dict[str, bool] = {}
    for name in POLICIES:
        values = {c: worst(found[name]) for c, found in by_contention.items()}
        rows.append([name, *(fmean(v) for v in values.values()), half_width(values[max(values)])])
        keeps[name] = fmean(values[max(values)]) <= 1.0
    others = [name for name in BASELINES if keeps[name]]
    if keeps[THEMIS] and not others:
        verdict = REPRODUCES
    elif keeps[THEMIS]:
        verdict = differs(f"max ρ at 4X is at most 1 also with {', '.join(others)}")
    else:
        verdict = differs(f"max ρ at 4X is above 1 with Themis ({float(str(rows[0][3])):.2f})")
    lines = tuple(
        Line(name, tuple((float(c), fmean(worst(found[name]))) for c, found in by_contention.items()))
        for name in POLICIES
    )
    return table(
        "figure 14: max ρ by contention, workload 1, simulated testbed",
        ["policy", "1X", "2X", "4X", "± at 4X"],
        rows,
        "Themis alone has ρ ≤ 1 for all apps also at 4X; SRSF comes close",
        verdict=verdict,
        charts=[Chart("figure 14", "contention", "max ρ", (), lines)],
    )


def long_and_short_table(found: Found) -> Table:
    """Table 5: ρ of long and short apps under Themis and Tiresias."""

    def thirds(name: str) -> tuple[list[float], list[float]]:
        long, short = [], []
        for one in found[name]:
            order = np.argsort(one.work)
            part = max(len(order) // 3, 1)
            short.append(float(np.mean(np.array(one.rho)[order[:part]])))
            long.append(float(np.mean(np.array(one.rho)[order[-part:]])))
        return long, short

    ours, theirs = thirds(THEMIS), thirds("tiresias")
    rows: list[list[Cell]] = []
    for which, paper, a, b in (("long", (1.0, 0.9), ours[0], theirs[0]), ("short", (1.2, 1.9), ours[1], theirs[1])):
        rows.append([which, *paper, fmean(a), fmean(b), str(paired_ratio(b, a))])
    short = paired_ratio(theirs[1], ours[1])
    long = paired_ratio(theirs[0], ours[0])
    claims = {
        f"short apps do worse with Tiresias (ratio {short})": short.low > 1.0,
        f"long apps do no worse with Tiresias (ratio {long})": long.low <= 1.0,
    }
    return table(
        "table 5: mean ρ of the longest and the shortest third of apps, workload 2, simulated testbed",
        ["apps", "paper, Themis", "paper, Tiresias", "ours, Themis", "ours, Tiresias", "Tiresias ÷ Themis"],
        rows,
        "one long and one short app: 1.0 and 1.2 with Themis, 0.9 and 1.9 with Tiresias",
        "means of thirds of all apps, not two chosen apps",
        verdict=all_hold(claims),
    )


def _fairness(figure: str, workload: int, context: ReproContext) -> list[Table]:
    return [fairness_table(results(context, workload, 1), figure, workload)]


def _gpu_time(figure: str, workload: int, context: ReproContext) -> list[Table]:
    return [gpu_time_table(results(context, workload, 1), figure, workload)]


def _scores(context: ReproContext) -> list[Table]:
    return [score_table(results(context, 1, 1), results(context, 2, 1))]


def _contention(context: ReproContext) -> list[Table]:
    return [contention_table({contention: results(context, 1, contention) for contention in CLUSTERS})]


def _thirds(context: ReproContext) -> list[Table]:
    return [long_and_short_table(results(context, 2, 1, (THEMIS, "tiresias")))]


_PAPER = "Themis (NSDI '20)"
REPRODUCTIONS = (
    Reproduction("themis-9", _PAPER, "distribution of ρ, workload 1, testbed", partial(_fairness, "9", 1)),
    Reproduction("themis-10-testbed", _PAPER, "distribution of ρ, workload 2, testbed", partial(_fairness, "10", 2)),
    Reproduction("themis-11", _PAPER, "GPU time, workload 1, testbed", partial(_gpu_time, "11", 1)),
    Reproduction("themis-12", _PAPER, "GPU time, workload 2, testbed", partial(_gpu_time, "12", 2)),
    Reproduction("themis-13", _PAPER, "placement scores, testbed", _scores),
    Reproduction("themis-14", _PAPER, "worst ρ by contention, workload 1, testbed", _contention),
    Reproduction("themis-table5", _PAPER, "a long and a short app, testbed", _thirds),
)
