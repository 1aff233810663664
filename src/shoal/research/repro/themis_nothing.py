"""Two readings of ρ without GPUs in Themis's bids: unbounded, as in equation 1, or a multiple of ρ with the fewest.

Fairness, completion times, payments and lies with each, on workloads whose apps do and do not outnumber the GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.policy.registry import parse_policy
from shoal.policy.themis.policy import Themis, decision_of
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import PairedRatio, paired_ratio
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, cannot_be_told, table
from shoal.research.repro.themis_lies import by_lie, contests, lie_effects
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.registry import generate
from shoal.workload.generators.themis import CLUSTER
from shoal.workload.schema import Workload

READINGS = ("2", "inf")
"""Values of the option ``nothing``; the last is equation 1."""

SEEDS = 5
FILTERS = (0.8, 0.0)


@dataclass(frozen=True, slots=True)
class Market:
    """A cluster and a workload, by seed, on which the readings are compared; ``quick`` is its smaller form."""

    name: str
    cluster: str
    make: Callable[[int], Workload]
    quick: Callable[[int], Workload]


MARKETS = (
    Market(
        "searches, 168 GPUs",
        CLUSTER,
        lambda seed: generate("themis", jobs=700, seed=seed),
        lambda seed: generate("themis", jobs=100, seed=seed),
    ),
    Market(
        "searches, a quarter of the GPUs",
        "p100:4x8,p100:2x4,p100:4x1",
        lambda seed: generate("themis", jobs=300, seed=seed),
        lambda seed: generate("themis", jobs=60, seed=seed),
    ),
    Market(
        "single jobs in gangs, 32 GPUs",
        "v100:8x4",
        lambda seed: generate("shockwave", jobs=120, seed=seed, static=1.0, accordion=0.0, gns=0.0),
        lambda seed: generate("shockwave", jobs=60, seed=seed, static=1.0, accordion=0.0, gns=0.0),
    ),
    Market(
        "single elastic jobs, 64 GPUs",
        "gtx1080:16x4",
        lambda seed: generate("afs", jobs=400, seed=seed, interarrival=120.0),
        lambda seed: generate("afs", jobs=100, seed=seed, interarrival=60.0),
    ),
)
"""Apps seldom outnumber GPUs on the first two, and mostly do on the last two."""


@dataclass(slots=True)
class PaymentRecorder:
    """Themis, which records all payments: GPUs won and the fraction kept, of every winner of every auction."""

    themis: Themis
    won: list[tuple[int, float]] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide as Themis does."""
        auctions = self.themis.auctions(snapshot)
        self.won += [(award.won, award.kept) for award in auctions.awards.values() if award.won]
        return decision_of(auctions)


@dataclass(frozen=True, slots=True)
class ReadingResult:
    """One run: the worst ρ of an app, mean seconds of apps, and payments.

    ``paid`` is the fraction of the GPUs won that was paid, ``all_paid`` the fraction of winners that paid nearly all.
    """

    worst: float
    seconds: float
    paid: float
    all_paid: float


def measure_reading(market: Market, policy: str, seed: int, *, quick: bool = False) -> ReadingResult:
    """Run Themis on a market."""
    themis = parse_policy(policy)
    assert isinstance(themis, Themis)
    recorder = PaymentRecorder(themis)
    workload = (market.quick if quick else market.make)(seed)
    summary = run(Scenario(parse_cluster(market.cluster), policy, seed=seed), workload, policy=recorder).summary
    apps = summary["apps"]
    worst = (apps["rho"] if apps else summary["rho"]["themis"])["max"]
    seconds = apps["avg_seconds"] if apps else summary["avg_jct"]
    gpus = sum(won for won, _ in recorder.won)
    paid = sum(won * (1.0 - kept) for won, kept in recorder.won)
    nearly = fmean(kept < 0.05 for _, kept in recorder.won) if recorder.won else 0.0
    return ReadingResult(worst, seconds, paid / gpus if gpus else 0.0, nearly)


def reading_policy(f: float, reading: str) -> str:
    """Return Themis's spec with one filter and one reading."""
    return f"themis:f={f:g},nothing={reading}"


def _results(
    context: ReproContext, market: Market, f: float, reading: str, seeds: Sequence[int]
) -> list[ReadingResult]:
    policy, found = reading_policy(f, reading), []
    for seed in seeds:
        key = {"themis-nothing": market.name, "policy": policy, "seed": seed, "quick": context.quick}
        label = f"{market.name}, {policy}, seed {seed}"
        found.append(ReadingResult(**context.run(key, label, _measured, market, policy, seed, context.quick)))
    return found


def _measured(market: Market, policy: str, seed: int, quick: bool) -> dict[str, float]:
    return asdict(measure_reading(market, policy, seed, quick=quick))


def readings_table(found: Sequence[tuple[str, float, Sequence[ReadingResult], Sequence[ReadingResult]]]) -> Table:
    """Return fairness, times and payments by market and filter: our reading, the paper's, and ratios of the two."""
    rows: list[list[Cell]] = []
    worse: list[str] = []
    for name, f, ours, paper in found:
        rho = paired_ratio([r.worst for r in paper], [r.worst for r in ours])
        seconds = paired_ratio([r.seconds for r in paper], [r.seconds for r in ours])
        worse += [f"{name} at f = {f:g}: {what}" for what in _worse(rho, seconds)]
        worst = [fmean(r.worst for r in side) for side in (ours, paper)]
        paid = [fmean(r.paid for r in side) for side in (ours, paper)]
        rows.append([name, f, *worst, str(rho), str(seconds), *paid, fmean(r.all_paid for r in paper)])
    percent = [Column(name, ".0%") for name in ("paid, 2", "paid, ∞", "winners that pay all, ∞")]
    return table(
        "ρ without GPUs: twice that of the fewest (2) or unbounded as in eq. 1 (∞); ratios: ∞ ÷ 2, 95 % intervals",
        ["workload", Column("f", "g"), "worst ρ, 2", "worst ρ, ∞", "worst ρ", "mean time", *percent],
        rows,
        "ρ becomes unbounded without GPUs; no figures (§3.3.2)",
        f"unbounded is worse beyond chance: {'; '.join(worse) or 'nowhere'}",
        verdict=cannot_be_told("the paper gives no figures for this choice"),
    )


def _worse(rho: PairedRatio, seconds: PairedRatio) -> list[str]:
    return [f"{name} {ratio}" for name, ratio in (("worst ρ", rho), ("mean time", seconds)) if ratio.low > 1.0]


def reading_tables(context: ReproContext) -> list[Table]:
    """Compare the readings: the markets, then lies in the contests of figure 18."""
    seeds = range(2 if context.quick else SEEDS)
    ours, paper = READINGS
    found = [
        (market.name, f, _results(context, market, f, ours, seeds), _results(context, market, f, paper, seeds))
        for market in MARKETS
        for f in FILTERS
    ]
    return [readings_table(found), *_lies(context)]


def _lies(context: ReproContext) -> list[Table]:
    """Return the effect of lies of one app, as in figure 18, with both readings."""
    seeds = range(2 if context.quick else SEEDS)
    tables = []
    for contest in contests()[:1] if context.quick else contests():
        for reading in READINGS:
            name, policy = f"{contest.name}; nothing={reading}", f"{contest.policy},nothing={reading}"
            chosen = replace(contest, name=name, policy=policy)
            tables.append(by_lie(chosen, lie_effects(context, chosen, seeds)))
    return tables


REPRODUCTIONS = (
    Reproduction("themis-nothing", "Themis (NSDI '20)", "ρ without GPUs: two readings of equation 1", reading_tables),
)
