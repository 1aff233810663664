"""Themis's simulations (NSDI '20): apps that search by successive halving on 168 GPUs, the paper's figures and ours.

``measure_all`` runs policies on workloads of the ``themis`` generator;
each figure is a function of their results that returns its table. The apps are generated, not those of the paper's
trace, so directions and factors may be compared and values may not. A quick run uses a fifth of the apps and two seeds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from shoal.core.topology import parse_cluster
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import PairedRatio, all_at_least, ratio_of
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, table
from shoal.research.repro.themis_verdicts import by_errors, by_filters, by_leases, by_mixes
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.registry import generate
from shoal.workload.generators.themis import CLUSTER

TRIALS = 700
"""Number of trials of all apps of a run together: about forty apps."""

SEEDS = 6

THEMIS = "themis:f=0.9,rounding=random"
BASELINES = (
    "tiresias",
    "optimus",
    "slaq",
    "gandiva",
    "srtf",
    "srsf",
    "apps:by=service",
    "apps:by=time",
    "apps:by=work",
)
"""The paper's baselines; Tiresias, SRTF and SRSF order jobs and, as in the paper's setup, apps."""

PAPER_FACTOR = 2.2
"""Least ratio of a baseline's worst ρ to Themis's in the paper."""

MIXES = (0.0, 0.5, 1.0)
"""Fractions of network-intensive apps; figures 10 and 12 use the second."""

ERRORS = (0.05, 0.1, 0.2)
ERROR_FILTERS = (0.9, 0.0)
"""At f = 0.9 few apps bid at a time, often one, so a wrong bid decides little; at f = 0 all bid."""

FILTERS = (0.0, 0.4, 0.8, 0.9, 1.0)
LEASES_MINUTES = (5, 10, 20, 40)


@dataclass(frozen=True, slots=True)
class ThemisCase:
    """A policy, the seed of its apps, and the fraction ``network`` of network-intensive ones."""

    policy: str
    seed: int
    network: float = 0.5


@dataclass(frozen=True, slots=True)
class ThemisResult:
    """The worst finish-time fairness of any app, the GPU-seconds of all apps, and the number of restarts."""

    max_rho: float
    gpu_seconds: float
    restarts: int


Results = Mapping[ThemisCase, ThemisResult]


def measure(case: ThemisCase, trials: int = TRIALS) -> ThemisResult:
    """Run one case on the paper's heterogeneous cluster."""
    workload = generate("themis", jobs=trials, seed=case.seed, network=case.network)
    summary = run(Scenario(parse_cluster(CLUSTER), case.policy, seed=case.seed), workload).summary
    return ThemisResult(summary["apps"]["rho"]["max"], summary["gpu_seconds"], summary["restarts"])


def measure_all(context: ReproContext, cases: Iterable[ThemisCase], trials: int = TRIALS) -> Results:
    """Return the results of all cases, each computed once or stored."""
    wanted = tuple(dict.fromkeys(cases))
    tasks = [
        Task(
            {"themis": asdict(case), "trials": trials},
            f"{case.policy}, seed {case.seed}, {case.network:.0%} network-intensive",
            measure,
            (case, trials),
        )
        for case in wanted
    ]
    return {case: ThemisResult(**found) for case, found in zip(wanted, run_all(context, tasks), strict=True)}


def themis_policy(f: float, lease_minutes: int) -> str:
    """Return Themis's spec with one filter and one lease."""
    return f"themis:f={f:g},lease={60 * lease_minutes}"


def mistaken_policy(error: float, f: float) -> str:
    """Return the spec of Themis with estimates of every app that are off by up to ± ``error``."""
    return f"{themis_policy(f, 10)},noise={error:g}"


def baseline_cases(seeds: Sequence[int], mixes: Sequence[float] = MIXES) -> list[ThemisCase]:
    """Return cases of Themis and all baselines at each fraction of network-intensive apps."""
    return [ThemisCase(policy, seed, mix) for mix in mixes for policy in (THEMIS, *BASELINES) for seed in seeds]


def error_cases(seeds: Sequence[int]) -> list[ThemisCase]:
    """Return cases of Themis with and without wrong estimates, for both filters."""
    wrong = [ThemisCase(mistaken_policy(error, f), seed) for f in ERROR_FILTERS for error in ERRORS for seed in seeds]
    return [*wrong, *(ThemisCase(themis_policy(f, 10), seed) for f in ERROR_FILTERS for seed in seeds)]


def filter_lease_cases(seeds: Sequence[int]) -> list[ThemisCase]:
    """Return cases of Themis with every filter and every lease."""
    return [ThemisCase(themis_policy(f, lease), seed) for f in FILTERS for lease in LEASES_MINUTES for seed in seeds]


def against_baselines(results: Results, seeds: Sequence[int]) -> Table:
    """Figures 9 to 12, on a larger cluster than the paper's testbed: the baselines' figures relative to Themis's."""
    factor = {policy: median(_rho_ratios(policy, results, seeds)) for policy in BASELINES}
    short = [policy for policy in BASELINES if factor[policy] < PAPER_FACTOR]
    fairer = ", ".join(p for p in short if factor[p] < 1.0) or "none"
    return table(
        "figures 10 and 12: baselines' worst ρ and GPU time relative to Themis's (f = 0.9), medians over seeds",
        ["policy", "max ρ", "÷ Themis", "(range)", Column("GPU time", ".3f"), Column("restarts", ".0f")],
        [_baseline_row(policy, results, seeds) for policy in (THEMIS, *BASELINES)],
        "2.2 to 3.25 times the max ρ with all baselines; GPU time 4.8 % more with Gandiva, 250 % with SLAQ",
        f"below {PAPER_FACTOR} with {', '.join(short) or 'none'}; fairer than Themis: {fairer}",
        verdict=all_at_least(
            "worst ρ over Themis's", {p: ratio_of(_rho_ratios(p, results, seeds)) for p in BASELINES}, PAPER_FACTOR
        ),
        charts=[_bars("figure 10: max ρ ÷ Themis's", factor, Line("paper, least", _level(PAPER_FACTOR)))],
    )


def _level(value: float) -> tuple[tuple[float, float], ...]:
    """Return points that have this value for each baseline."""
    return tuple((float(i), value) for i in range(len(BASELINES)))


def _bars(title: str, values: Mapping[str, float], theirs: Line) -> Chart:
    ours = Line("ours", tuple((float(i), value) for i, value in enumerate(values.values())))
    return Chart(title, "policy", "ratio", (theirs,), (ours,), "bars", tuple(values))


def _rho_ratios(policy: str, results: Results, seeds: Sequence[int]) -> list[float]:
    """By seed: the policy's worst ρ divided by Themis's."""
    return [results[ThemisCase(policy, seed)].max_rho / results[ThemisCase(THEMIS, seed)].max_rho for seed in seeds]


def _baseline_row(policy: str, results: Results, seeds: Sequence[int]) -> list[Cell]:
    ours, theirs = ([results[ThemisCase(p, seed)] for seed in seeds] for p in (THEMIS, policy))
    fairness = _rho_ratios(policy, results, seeds)
    gpu_time = median(b.gpu_seconds / a.gpu_seconds for a, b in zip(ours, theirs, strict=True))
    worst, moves = median(b.max_rho for b in theirs), median(b.restarts for b in theirs)
    spread = f"{min(fairness):.2f}–{max(fairness):.2f}"
    return [_label(policy), worst, median(fairness), spread, gpu_time, moves]


def _label(policy: str) -> str:
    return "themis" if policy == THEMIS else policy


def by_mix(results: Results, seeds: Sequence[int]) -> Table:
    """Figures 15 and 16: worst ρ, and GPU time relative to Themis's, by fraction of network-intensive apps."""
    rows: list[list[Cell]] = []
    for policy in (THEMIS, *BASELINES):
        rho = [median(results[ThemisCase(policy, seed, mix)].max_rho for seed in seeds) for mix in MIXES]
        time = [
            median(
                results[ThemisCase(policy, seed, mix)].gpu_seconds / results[ThemisCase(THEMIS, seed, mix)].gpu_seconds
                for seed in seeds
            )
            for mix in MIXES
        ]
        rows.append([_label(policy), *rho, *time])
    return table(
        "figures 15 and 16: median max ρ and GPU time ÷ Themis's, by share of network-intensive apps",
        ["policy", *(f"ρ at {mix:.0%}" for mix in MIXES), *(Column(f"GPU {mix:.0%}", ".3f") for mix in MIXES)],
        rows,
        "the worst ρ is highest at 40 to 60 %; at 100 % the others' is 1.24 to 1.77 times Themis's, and Gandiva's GPU "
        "time 1.08 times; at 0 % all take the same",
        verdict=_mix_verdict(results, seeds),
        charts=[
            Chart(
                "figure 15: max ρ",
                "network-intensive apps",
                "max ρ",
                (),
                tuple(
                    Line(str(row[0]), tuple((m, float(str(row[1 + i]))) for i, m in enumerate(MIXES))) for row in rows
                ),
            )
        ],
    )


def _mix_verdict(results: Results, seeds: Sequence[int]) -> str:
    def over(policy: str, of: str) -> PairedRatio:
        pairs = [(results[ThemisCase(policy, s, 1.0)], results[ThemisCase(THEMIS, s, 1.0)]) for s in seeds]
        return ratio_of([getattr(a, of) / getattr(b, of) for a, b in pairs])

    rho = {mix: median(results[ThemisCase(THEMIS, seed, mix)].max_rho for seed in seeds) for mix in MIXES}
    at_all = {policy: over(policy, "max_rho") for policy in BASELINES}
    return by_mixes(rho, at_all, over("gandiva", "gpu_seconds"), "ours")


def by_error(results: Results, seeds: Sequence[int]) -> Table:
    """Figure 17: change of the worst ρ if every app's estimates are wrong."""
    rows: list[list[Cell]] = []
    judged: list[float] = []
    for f in ERROR_FILTERS:
        for error in ERRORS:
            pairs = [
                (results[ThemisCase(mistaken_policy(error, f), s)], results[ThemisCase(themis_policy(f, 10), s)])
                for s in seeds
            ]
            change = [wrong.max_rho / right.max_rho - 1.0 for wrong, right in pairs]
            judged = change if (f, error) == (ERROR_FILTERS[0], ERRORS[-1]) else judged
            each = "  ".join(f"{part:+.1%}" for part in change)
            rows.append([f, error, median(change), sum(change) / len(change), each])
    percent = "+.1%"
    return table(
        "figure 17: change of max ρ when every app's estimates are off by up to ± X",
        [Column("f", "g"), Column("X", ".0%"), Column("median", percent), Column("mean", percent), "by seed"],
        rows,
        "10.76 % at X = 20 %",
        verdict=by_errors(judged),
    )


def by_filter_and_lease(results: Results, seeds: Sequence[int]) -> tuple[Table, Table]:
    """Figure 19: worst ρ and GPU time by filter f and lease length."""

    def rho(f: float, lease: int) -> float:
        return median(results[ThemisCase(themis_policy(f, lease), seed)].max_rho for seed in seeds)

    def gpu_time(f: float, lease: int) -> float:
        chosen = [results[ThemisCase(themis_policy(0.8, 10), seed)].gpu_seconds for seed in seeds]
        these = [results[ThemisCase(themis_policy(f, lease), seed)].gpu_seconds for seed in seeds]
        return median(a / b for a, b in zip(these, chosen, strict=True))

    def grid(
        what: str, form: str, found: Mapping[tuple[float, int], float], paper: str, verdict: str, here: str = ""
    ) -> Table:
        columns = [Column("f", "g"), *(Column(f"{lease} min", form) for lease in LEASES_MINUTES)]
        rows: list[list[Cell]] = [[f, *(found[f, lease] for lease in LEASES_MINUTES)] for f in FILTERS]
        title = f"figure 19: {what} by filter and lease, medians over seeds"
        lines = tuple(Line(f"{lease} min", tuple((f, found[f, lease]) for f in FILTERS)) for lease in LEASES_MINUTES)
        charts = [Chart(f"figure 19: {what}", "f", what, (), lines)]
        return table(title, columns, rows, paper, here, verdict=verdict, charts=charts)

    pairs = [(f, lease) for f in FILTERS for lease in LEASES_MINUTES]
    rhos, times = ({pair: of(*pair) for pair in pairs} for of in (rho, gpu_time))
    fairest = min(FILTERS, key=lambda f: rhos[f, 10])
    here = (
        f"at 10 min f = {fairest:g} is the fairest, max ρ at f = 1 {rhos[1.0, 10] / rhos[fairest, 10]:.2f} times as "
        f"high; at f = 0.8, {rhos[0.8, 40] / rhos[0.8, 5]:.2f} times as high with 40 min as with 5"
    )
    falls = "falls with f up to 0.8 and is about 1.5 times as high beyond; shorter leases are fairer"
    rises = "rises with f and falls with longer leases"
    return (
        grid("max ρ", ".2f", rhos, falls, by_filters(rhos), here),
        grid("GPU time over that at f = 0.8 and 10 min", ".3f", times, rises, by_leases(times)),
    )


def _scale(context: ReproContext) -> tuple[range, int]:
    return (range(2), TRIALS // 5) if context.quick else (range(SEEDS), TRIALS)


def _figure(
    cases: Callable[[Sequence[int]], Iterable[ThemisCase]],
    tabulate: Callable[[Results, Sequence[int]], Table | tuple[Table, ...]],
    context: ReproContext,
) -> Sequence[Table]:
    seeds, trials = _scale(context)
    made = tabulate(measure_all(context, cases(seeds), trials), seeds)
    return made if isinstance(made, tuple) else (made,)


_PAPER = "Themis (NSDI '20)"
REPRODUCTIONS = (
    Reproduction(
        "themis-10",
        _PAPER,
        "worst ρ and GPU time of Themis and all baselines",
        partial(_figure, partial(baseline_cases, mixes=(0.5,)), against_baselines),
    ),
    Reproduction("themis-15", _PAPER, "by share of network-intensive apps", partial(_figure, baseline_cases, by_mix)),
    Reproduction("themis-17", _PAPER, "mistaken estimates", partial(_figure, error_cases, by_error)),
    Reproduction("themis-19", _PAPER, "filter and lease", partial(_figure, filter_lease_cases, by_filter_and_lease)),
)
