"""Sia's public workloads (SOSP '23) on 24 T4, 24 2080 Ti and 16 A100, with the restart times of its simulator.

Sia itself is not one of our policies: `pollux` with kinds (``types=aware``) follows its idea, `pollux:types=off` is
Pollux, `gavel.max-min` Gavel. Three sets of results are published as numbers: average JCTs of workload 6 at ten jobs an
hour in the public simulator, the output of a run of Gavel on the Saturn workloads in the README of that simulator, and
the range of the abstract.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from shoal.report.compare import half_width
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.pollux import UNEQUAL, Experiment, PolluxResult, PolluxVariant, cache_key, measure
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import (
    REPRODUCES,
    Cell,
    Chart,
    Column,
    Line,
    Table,
    cannot_be_told,
    differs,
    table,
)

PAPER = "Sia (SOSP '23)"
POLICIES = ("shoal", "pollux", "rank", "gavel.max-min")
RATES = (10, 20, 30, 40, 50)
NEAR = 0.10
"""Relative difference from a published value up to which it counts as reproduced."""

LEAST, MOST = 0.30, 0.93
"""Part by which Sia's average JCTs are shorter than other schedulers', by its abstract."""

_PUBLISHED_6 = (("Sia", "pollux", 1460.0), ("Gavel", "gavel.max-min", 2123.0), ("Pollux", "pollux:types=off", 2972.0))
_PUBLISHED_SATURN = {
    "mean": 2.548240277777778 * 3600,
    "tail": 46.333888888888886 * 3600,
    "makespan": 43.25152777777778 * 3600,
}
_SATURN_RESTARTS = 7.408


@dataclass(frozen=True, slots=True)
class SiaRuns:
    """Results of policies on workloads of a folder, by policy and number of the workload."""

    folder: str
    numbers: tuple[int, ...]
    results: Mapping[tuple[str, int], PolluxResult]

    def of(self, policy: str, name: str) -> list[float]:
        """Return one figure of each workload under a policy."""
        return [float(getattr(self.results[policy, number], name)) for number in self.numbers]


def runs(context: ReproContext, folder: str, numbers: Sequence[int], policies: Sequence[str]) -> SiaRuns:
    """Return the results of these policies on these workloads, computed or stored; pollux-kinds shares them."""
    place = f"sia/workloads-{folder}"
    variants = [PolluxVariant(policy) for policy in policies]
    experiment = Experiment("sia", "", (place,), tuple(numbers), tuple(variants), "", UNEQUAL, "sia")
    cases = [(variant, number) for number in numbers for variant in variants]
    tasks = [
        Task(
            cache_key(experiment, place, number, variant),
            f"{place} {number}, {variant}",
            measure,
            (context.data, experiment, place, number, variant),
        )
        for variant, number in cases
    ]
    found = zip(cases, run_all(context, tasks), strict=True)
    return SiaRuns(place, tuple(numbers), {(v.policy, number): PolluxResult(**one) for (v, number), one in found})


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean relative difference of paired values and the half-width of its 95 % interval."""
    gaps = [mine / other - 1.0 for mine, other in zip(ours, theirs, strict=True)]
    if len(gaps) < 2:
        return gaps[0], None
    return fmean(gaps), half_width(gaps)


def _published(context: ReproContext) -> list[Table]:
    six = runs(context, "rate_10", (6,), [policy for _, policy, _ in _PUBLISHED_6])
    rows: list[list[Cell]] = []
    for name, policy, seconds in _PUBLISHED_6:
        ours = six.of(policy, "mean")[0]
        rows.append([f"rate_10 workload 6, average JCT, {name}", policy, seconds, ours, ours / seconds - 1.0])
    numbers = range(1, 4 if context.quick else 11)
    saturn = runs(context, "saturn", numbers, ["gavel.max-min"])
    words = {"mean": "average JCT", "tail": "99th percentile of JCT", "makespan": "makespan"}
    for name, seconds in _PUBLISHED_SATURN.items():
        ours = fmean(saturn.of("gavel.max-min", name))
        label = f"saturn workloads {numbers[0]} to {numbers[-1]}, {words[name]}, Gavel"
        rows.append([label, "gavel.max-min", seconds, ours, ours / seconds - 1.0])
    columns = [Column("result"), Column("ours"), Column("published, s", ",.0f"), Column("ours, s", ",.0f")]
    return [
        table(
            "published results of the public simulator",
            [*columns, Column("difference", "+.0%")],
            rows,
            f"in the table; under Gavel jobs of the Saturn workloads restarted {_SATURN_RESTARTS:.1f} times",
            "`pollux` stands for Sia: it has Sia's choice of kinds, and the other terms of Pollux; the README's "
            "run of Gavel reads workloads from a folder that is not public, so they may differ; a first start is free "
            "here",
            verdict=_nearness([(str(row[0]), float(row[4] or 0.0)) for row in rows]),
        )
    ]


def _nearness(gaps: Sequence[tuple[str, float]]) -> str:
    far = [f"{name} {gap:+.0%}" for name, gap in gaps if abs(gap) > NEAR]
    return differs("; ".join(far)) if far else REPRODUCES


def _compared(folder: str, last: int, context: ReproContext) -> list[Table]:
    found = runs(context, folder, range(1, 2 if context.quick else last + 1), POLICIES)
    gavel = found.of("gavel.max-min", "mean")
    rows: list[list[Cell]] = []
    for policy in POLICIES:
        means = found.of(policy, "mean")
        rest = [fmean(found.of(policy, name)) for name in ("tail", "makespan", "restarts")]
        rows.append([policy, *means, fmean(means), *rest, *difference(means, gavel)])
    columns = [Column("policy"), *(Column(str(number), ",.0f") for number in found.numbers), Column("mean", ",.0f")]
    columns += [Column("p99", ",.0f"), Column("makespan", ",.0f"), Column("restarts", ",.0f")]
    columns += [Column("JCT over Gavel's", "+.0%"), Column("±", ".0%")]
    return [
        table(
            f"average JCT in seconds: {found.folder}",
            columns,
            rows,
            f"Sia's average JCTs are {LEAST:.0%} to {MOST:.0%} shorter than other schedulers' (abstract)",
            "`pollux` stands for Sia, `gavel.max-min` is one of the others; paired by workload, 95 % intervals",
            verdict=_range_verdict(*difference(found.of("pollux", "mean"), gavel)),
        )
    ]


def _range_verdict(gap: float, half: float | None) -> str:
    """Return the verdict on ``gap``, a relative difference of JCTs; ``half`` is half the width of its interval."""
    if LEAST <= -gap <= MOST:
        return REPRODUCES
    if half is not None and gap - half <= -LEAST <= gap + half:
        return cannot_be_told(f"{-gap:.0%} shorter than Gavel's, and the interval reaches {LEAST:.0%}")
    return differs(f"{-gap:.0%} shorter than Gavel's, not {LEAST:.0%} to {MOST:.0%}")


def _rates(context: ReproContext) -> list[Table]:
    numbers, rates = ((1,), RATES[:2]) if context.quick else ((1, 2), RATES)
    by_rate = {rate: runs(context, f"rate_{rate}", numbers, POLICIES) for rate in rates}
    rows: list[list[Cell]] = [
        [policy, *(fmean(by_rate[rate].of(policy, "mean")) for rate in rates)] for policy in POLICIES
    ]
    lines = tuple(
        Line(policy, tuple((float(rate), fmean(by_rate[rate].of(policy, "mean")) / 3600) for rate in rates))
        for policy in POLICIES
    )
    return [
        table(
            f"average JCT in seconds by rate, workloads {numbers[0]} to {numbers[-1]} of each",
            ["policy", *(Column(f"{rate} jobs an hour", ",.0f") for rate in rates)],
            rows,
            "a figure of average JCT by rate, whose values are not printed",
            verdict=cannot_be_told("the paper prints no values for these workloads"),
            charts=(Chart("average JCT by rate", "jobs an hour", "average JCT, h", (), lines),),
        )
    ]


REPRODUCTIONS = (
    Reproduction("sia-published", PAPER, "results that are published as numbers", _published, "sia"),
    Reproduction("sia-philly", PAPER, "eight workloads drawn from Philly", partial(_compared, "philly", 8), "sia"),
    Reproduction(
        "sia-saturn", PAPER, "ten workloads drawn from Helios Saturn", partial(_compared, "saturn", 10), "sia"
    ),
    Reproduction(
        "sia-newtrace", PAPER, "two days of newTrace, two workloads", partial(_compared, "newtrace", 2), "sia"
    ),
    Reproduction("sia-rates", PAPER, "average JCT by rate of arrival, 10 to 50 jobs an hour", _rates, "sia"),
)
