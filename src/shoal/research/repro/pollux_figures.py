"""Tables of Pollux's jobs over time: figures 5, 6 and 7, and the cost of prior-driven exploration (§5.3.2).

Runs are those of ``pollux_life``, on the eight workloads of §5.3; intervals are over workloads.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.pollux_life import (
    OPTIMUS,
    SEEDED,
    TIRESIAS,
    interval,
    live_through,
    phases,
    ranked_alike,
)
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
from shoal.workload.importers.pollux import APPLICATIONS

Life = Mapping[str, Any]
"""What ``live_through`` returns."""

NUMBERS, QUICK, QUICK_JOBS = tuple(range(1, 9)), (6,), 40
SHORT, LONG = ("cifar10",), ("imagenet", "yolov3")
"""Models of §5.3.2 whose jobs are short and long."""

GAIN = (0.02, 0.05)
"""§5.3.2: by how much seeded models shorten short jobs."""

FAIR = 0.99
"""Fraction of jobs below ρ = 2 under Pollux (§5.3.1)."""

PAPER_NAMES = {"pollux": "Pollux, p = −1", OPTIMUS: "Optimus", TIRESIAS: "Tiresias"}


def lives(context: ReproContext, policies: Sequence[tuple[str, int]]) -> dict[tuple[str, int], list[Life]]:
    """Return the runs of each policy on all workloads; its number is the GPUs on which seeded jobs count as tried."""
    numbers, jobs = (QUICK, QUICK_JOBS) if context.quick else (NUMBERS, None)
    tasks = [
        Task(
            {"pollux": "life", "workload": number, "policy": policy, "share": "whole", "seen": seen, "jobs": jobs},
            f"workload {number}, {policy}{f', seeded for {seen} GPUs' if seen else ''}",
            live_through,
            (context.data, number, policy, seen, jobs),
        )
        for policy, seen in policies
        for number in numbers
    ]
    found, count = run_all(context, tasks), len(numbers)
    return {policy: found[at * count : (at + 1) * count] for at, policy in enumerate(policies)}


def _steps(name: str, hours: Sequence[float], values: Sequence[float]) -> Line:
    known = [(at, y) for at, y in zip(hours, values, strict=True) if y is not None and y == y]  # noqa: PLR0124  NaN
    return Line(name, tuple(known))


# ── figure 5 ──────────────────────────────────────────────────────────────────────────────────────────────────────


ARRIVALS = 8.0
"""Hours in which the jobs of a workload arrive."""


def trade_off(life: Life) -> float:
    """Return the rank correlation of contention and efficiency: above 0 if batches shrink while many jobs are live.

    Only the hours of ``ARRIVALS`` count. Later few jobs are left, and these, near their ends, are efficient at any
    batch size: over the whole run their progress hides the trade-off.
    """
    live, eff = np.array(life["live"], dtype=np.float64), np.array(life["efficiency"], dtype=np.float64)
    known = np.isfinite(eff) & (np.array(life["hours"]) <= ARRIVALS)
    return ranked_alike(live[known], eff[known])


def trade_off_verdict(ours: Sequence[float], fixed: Sequence[float]) -> str:
    """Return the verdict: Pollux is more efficient under contention, and more so than with fixed batch sizes."""
    low, high = interval(ours)
    if low != low:  # noqa: PLR0124  NaN
        return cannot_be_told("contention does not vary")
    if low > 0.0:
        return REPRODUCES if fmean(ours) > fmean(fixed) else differs("policies with fixed batch sizes show it as much")
    return differs(f"correlation of contention and efficiency {low:.2f} to {high:.2f}")


def _figure_5(context: ReproContext) -> list[Table]:
    policies = [("pollux", 0), (OPTIMUS, 0), (TIRESIAS, 0)]
    found = lives(context, policies)
    by_policy = {policy: [trade_off(life) for life in found[policy, 0]] for policy, _ in policies}
    rows: list[list[Cell]] = []
    for policy, values in by_policy.items():
        lifes = found[policy, 0]
        early = fmean(float(np.nanmean(life["efficiency"])) for life in lifes)
        used = fmean(float(np.mean(life["gpus"])) for life in lifes)
        rows.append([PAPER_NAMES[policy], used, early, fmean(values), *interval(values)])
    columns = [Column("policy"), Column("mean GPUs", ".1f"), Column("mean efficiency")]
    columns += [Column("contention with efficiency"), Column("from"), Column("to")]
    charts = [
        Chart(
            f"figure 5: {what}",
            "hours",
            unit,
            (),
            tuple(_steps(PAPER_NAMES[p], found[p, 0][0]["hours"], found[p, 0][0][of]) for p, _ in policies),
            "steps",
        )
        for what, of, unit in (("allocated GPUs", "gpus", "GPUs"), ("statistical efficiency", "efficiency", "fraction"))
    ]
    verdict = trade_off_verdict(by_policy["pollux"], by_policy[OPTIMUS])
    paper = "with little contention Pollux has more GPUs and larger batches, with much smaller and more efficient ones"
    here = (
        f"rank correlation of live jobs with the efficiency of those that train in the {ARRIVALS:g} hours of arrivals, "
        "95 % interval over workloads; means are over the whole run"
    )
    return [table("figure 5: the cluster over time", columns, rows, paper, here, verdict=verdict, charts=charts)]


# ── figure 6 ──────────────────────────────────────────────────────────────────────────────────────────────────────

Phases = Mapping[str, Mapping[str, float]]
CLAIMS: Mapping[str, Callable[[Phases], float]] = {
    "GPUs, A over B": lambda p: p["A"]["gpus"] - p["B"]["gpus"],
    "GPUs, C over B": lambda p: p["C"]["gpus"] - p["B"]["gpus"],
    "batch, A over B": lambda p: p["A"]["batch"] - p["B"]["batch"],
    "efficiency, B over A": lambda p: p["B"]["efficiency"] - p["A"]["efficiency"],
    "batch per GPU, C over A": lambda p: p["C"]["local"] - p["A"]["local"],
}
"""What §5.2 says of the phases of one ImageNet job: differences that are above 0."""


def adaptation_verdict(found: Sequence[Phases]) -> str:
    """Return the verdict: all differences of ``CLAIMS`` are above 0, by 95 % intervals if there are several jobs."""
    if not found:
        return cannot_be_told("no job saw little, much and again little contention")
    wrong, unclear = [], []
    for name, claim in CLAIMS.items():
        low, high = interval([claim(one) for one in found])
        if high <= 0.0:
            wrong.append(name)
        elif low <= 0.0:
            unclear.append(name)
    if wrong:
        return differs(f"not above 0: {', '.join(wrong)}")
    return cannot_be_told(f"the interval holds 0: {', '.join(unclear)}") if unclear else REPRODUCES


def _figure_6(context: ReproContext) -> list[Table]:
    found = lives(context, [("pollux", 0)])["pollux", 0]
    rows: list[list[Cell]] = []
    judged = []
    for number, life in zip(QUICK if context.quick else NUMBERS, found, strict=True):
        for name, job in life["followed"].items():
            means = phases(life["live"], job)
            if means is None:
                continue
            if name.startswith("imagenet"):
                judged.append(means)
            for phase, values in means.items():
                figures = [values[of] for of in ("gpus", "batch", "local", "efficiency")]
                rows.append([f"{number}, {name}, {phase}", *figures])
    columns = [Column("workload, job, phase"), Column("GPUs", ".1f"), Column("batch", ",.0f")]
    columns += [Column("batch per GPU", ",.0f"), Column("efficiency")]
    verdict = adaptation_verdict(judged[:9])
    paper = (
        "an ImageNet job has more GPUs, larger batches and less efficiency at first (A), fewer, smaller and more under "
        "contention (B), and more GPUs with much larger batches per GPU at the end (C); two YOLOv3 jobs alike"
    )
    here = "contention is high (B) while more jobs are live than the median over the job's life"
    title = "figure 6: co-adaptation over time"
    charts = [chart for life in found[:1] for chart in _life_charts(life)]
    return [table(title, columns, rows, paper, here, verdict=verdict, charts=charts)]


def _life_charts(life: Life) -> list[Chart]:
    hours, jobs = life["hours"], list(life["followed"].items())[:3]
    made = [Chart("figure 6: live jobs", "hours", "jobs", (), (_steps("live jobs", hours, life["live"]),), "steps")]
    for of, unit in (("gpus", "GPUs"), ("batch", "images"), ("efficiency", "fraction")):
        lines = tuple(_steps(name, hours, job[of]) for name, job in jobs)
        made.append(Chart(f"figure 6: {of} of single jobs", "hours", unit, (), lines, "steps"))
    return made


# ── figure 7 ──────────────────────────────────────────────────────────────────────────────────────────────────────

_KNOB = ("pollux", "pollux:p=1", "pollux:p=-10", OPTIMUS, TIRESIAS)


def fairness_verdict(below: Mapping[str, float], worst: Mapping[str, float]) -> str:
    """Return the verdict: with p = −1 the most ρ are below 2 (99 %), and with p = 1 the worst ρ is above 4."""
    wrong = []
    if below["pollux"] < FAIR:
        wrong.append(f"{below['pollux']:.1%} of jobs are below 2 with p = −1")
    fairer = [name for name, part in below.items() if part > below["pollux"] + 1e-9]
    if fairer:
        wrong.append(f"more are with {', '.join(fairer)}")
    if worst["pollux:p=1"] <= 4.0:
        wrong.append(f"the worst ρ with p = 1 is {worst['pollux:p=1']:.1f}")
    return differs("; ".join(wrong)) if wrong else REPRODUCES


def _figure_7(context: ReproContext) -> list[Table]:
    found = lives(context, [(policy, 0) for policy in _KNOB])
    rho = {p: np.sort([r for life in found[p, 0] for r in life["rho"] if r == r]) for p in _KNOB}  # noqa: PLR0124
    below = {policy: float((values < 2.0).mean()) for policy, values in rho.items()}
    worst = {policy: float(values[-1]) for policy, values in rho.items()}
    rows: list[list[Cell]] = [
        [policy, below[policy], float((rho[policy] > 4.0).mean()), worst[policy], worst[policy] / worst["pollux"]]
        for policy in _KNOB
    ]
    columns = [
        Column("policy"),
        Column("ρ < 2", ".1%"),
        Column("ρ > 4", ".1%"),
        Column("worst ρ"),
        Column("over Pollux's"),
    ]
    lines = tuple(
        Line(policy, tuple((x, float((values <= x).mean())) for x in np.arange(0.0, 6.01, 0.25).tolist()))
        for policy, values in rho.items()
    )
    theirs = (Line("paper: Pollux, p = −1", ((2.0, FAIR),)),)
    chart = Chart("figure 7: distribution of ρ", "ρ", "fraction of jobs", theirs, lines)
    paper = (
        "99 % of ρ below 2 with p = −1; p = 1 and Tiresias have a tail above 4; p = −10 is slightly worse; the worst "
        "ρ is 1.5 and 5.4 times better than the baselines'"
    )
    verdict = fairness_verdict(below, worst)
    here = "ρ to an equal share of an isolated cluster; Optimus and Tiresias with tuned jobs"
    return [table("figure 7: finish-time fairness", columns, rows, paper, here, verdict=verdict, charts=[chart])]


# ── §5.3.2 ────────────────────────────────────────────────────────────────────────────────────────────────────────


def exploration_verdict(gains: Mapping[str, tuple[float, float]]) -> str:
    """Return the verdict: short jobs gain 2 to 5 % from seeded models, and long ones nothing that can be told from 0.

    ``gains`` has the 95 % interval of the relative reduction of JCT by model.
    """
    wrong = []
    for model in SHORT:
        low, high = gains.get(model, (float("nan"),) * 2)
        if not (low <= GAIN[1] and high >= GAIN[0]):
            wrong.append(f"{model} gains {low:.1%} to {high:.1%}")
    for model in LONG:
        low, high = gains.get(model, (0.0, 0.0))
        if low > 0.0 or high < 0.0:
            wrong.append(f"{model} gains {low:.1%} to {high:.1%}")
    return differs("; ".join(wrong)) if wrong else REPRODUCES


def _exploration(context: ReproContext) -> list[Table]:
    found = lives(context, [("pollux", 0), (SEEDED, 1), (SEEDED, 64)])
    rows: list[list[Cell]] = []
    gains: dict[str, tuple[float, float]] = {}
    for seen, how in ((64, "no limit"), (1, "twice the GPUs tried")):
        pairs = list(zip(found["pollux", 0], found[SEEDED, seen], strict=True))
        for model in (*APPLICATIONS, ""):
            means = [[_mean_jct(life, model) for life in pair] for pair in pairs]
            known = [(explored, seeded) for explored, seeded in means if explored == explored]  # noqa: PLR0124  NaN
            if not known:
                continue
            reduced = [1.0 - seeded / explored for explored, seeded in known]
            gains[model] = interval(reduced)
            both = [fmean(pair[n] for pair in known) for n in (0, 1)]
            rows.append([f"{model or 'all jobs'}, {how}", *both, fmean(reduced), *gains[model]])
    columns = [Column("model"), Column("explored, JCT s", ",.0f"), Column("seeded, JCT s", ",.0f")]
    columns += [Column("reduced by", ".1%"), Column("from", ".1%"), Column("to", ".1%")]
    verdict = cannot_be_told("one workload, in part") if context.quick else exploration_verdict(gains)
    paper = "models seeded with data collected offline shorten short jobs like CIFAR10 by 2 to 5 %, longer ones not"
    here = (
        "seeded: fits to all published measurements before the first job, with and without the limit of twice the GPUs "
        "tried; the verdict is on seeds with the limit, since only the fits are seeded in the paper"
    )
    return [table("§5.3.2: prior-driven exploration", columns, rows, paper, here, verdict=verdict)]


def _mean_jct(life: Life, model: str) -> float:
    values = [jct for jct, of in zip(life["jct"], life["models"], strict=True) if model in ("", of)]
    return fmean(values) if values else float("nan")


_PAPER = "Pollux (OSDI '21)"
_WORKLOADS = "pollux/workloads"
REPRODUCTIONS = (
    Reproduction("pollux-5", _PAPER, "figure 5: the cluster's GPUs and efficiency over time", _figure_5, _WORKLOADS),
    Reproduction("pollux-6", _PAPER, "figure 6: GPUs, batch size and efficiency of single jobs", _figure_6, _WORKLOADS),
    Reproduction("pollux-7", _PAPER, "figure 7: distribution of finish-time fairness", _figure_7, _WORKLOADS),
    Reproduction(
        "pollux-exploration", _PAPER, "§5.3.2: with and without prior-driven exploration", _exploration, _WORKLOADS
    ),
)
