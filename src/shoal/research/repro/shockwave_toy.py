"""Shockwave's example of filters (NSDI '23 §2.1, table 1, figures 1 and 15): its schedules beside all possible ones.

Three jobs on four GPUs take 12, 8 and 6 rounds on one GPU and ask for 3, 2 and 2; with fewer they are slower in
proportion. A job's deadline is its serial time times N over M: 9, 6 and 4.5 rounds. The schedules are those of figures
1 and 15, the figures of table 1 follow from them. ``best_outcomes`` searches every schedule that leaves no GPU idle.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from statistics import fmean

from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import REPRODUCES, Cell, Chart, Column, Line, Table, differs, table

JOBS, GPUS = "ABC", 4
SERIAL: Mapping[str, int] = {"A": 12, "B": 8, "C": 6}
"""Rounds on one GPU."""

ASKED: Mapping[str, int] = {"A": 3, "B": 2, "C": 2}

SCHEDULES: Mapping[str, Sequence[str]] = {
    "adaptive": ("BBCC", "BBCC", "BBCC", "AAAB", "AAAB", "AAA", "AAA"),
    "1/3": ("ABCC", "ABBC", "AAAC", "BBCC", "AAAB", "AABB", "AA"),
    "2/3": ("AABB", "BBCC", "AACC", "AABB", "BBCC", "AAA", "AAA"),
    "1": ("AABC", "ABBC", "ABCC", "AABC", "ABBC", "AAAB", "AA"),
}
"""By filter, round by round: the jobs on the GPUs (figures 15c, 15a, 1 and 15b)."""

TABLE_1: Mapping[str, tuple[float, float, float]] = {
    "adaptive": (0.83, 5.0, 7.0),
    "1/3": (1.0, 5.7, 7.0),
    "2/3": (1.1, 5.7, 7.0),
    "1": (1.1, 6.0, 7.0),
}
"""Worst ρ, average JCT and makespan."""

_ROUNDING = 0.05
Outcome = tuple[float, float, float]
"""Worst ρ, average JCT and makespan."""


def deadline(job: str) -> float:
    """Return the completion time at which a job's ρ is 1."""
    return SERIAL[job] * len(JOBS) / GPUS


def completions(schedule: Sequence[str]) -> dict[str, float]:
    """Return when each job ends; work beyond its last round counts only as far as it is needed."""
    found: dict[str, float] = {}
    for job in JOBS:
        done = 0
        for number, shown in enumerate(schedule):
            gpus = shown.count(job)
            if gpus and done + gpus >= SERIAL[job]:
                found[job] = number + (SERIAL[job] - done) / gpus
                break
            done += gpus
    return found


def outcome(ends: Mapping[str, float]) -> Outcome:
    """Return worst ρ, average JCT and makespan of these completion times."""
    return max(end / deadline(job) for job, end in ends.items()), fmean(ends.values()), max(ends.values())


def faults(schedule: Sequence[str]) -> list[str]:
    """Return the faults of a schedule: too many GPUs, more than a job asks for, work not done."""
    wrong = [f"round {n} has {len(shown)} GPUs" for n, shown in enumerate(schedule) if len(shown) > GPUS]
    for job in JOBS:
        if max(shown.count(job) for shown in schedule) > ASKED[job]:
            wrong.append(f"{job} has more GPUs than it asks for")
        if sum(shown.count(job) for shown in schedule) < SERIAL[job]:
            wrong.append(f"{job} does not end")
    return wrong


def filtered(part: float) -> list[str]:
    """Return the schedule of a fixed filter over predicted ρ: the worst ``part`` of the jobs first, then the others.

    Predicted is the ρ of a job that runs from now on with what it asks for. The paper's example does not say how its
    auction divides GPUs; here each job gets what it asks for as far as GPUs are left.
    """
    left, schedule = dict(SERIAL), list[str]()
    while any(left.values()):
        live = [job for job in JOBS if left[job]]
        now = len(schedule)
        worst = sorted(live, key=lambda job: -(now + left[job] / ASKED[job]) / deadline(job))
        chosen = worst[: max(round(part * len(live)), 1)]
        shown = ""
        for job in (*chosen, *(one for one in live if one not in chosen)):
            gpus = min(ASKED[job], left[job], GPUS - len(shown))
            shown += job * gpus
            left[job] -= gpus
        schedule.append(shown)
    return schedule


def best_outcomes(weigh: Callable[[Outcome], tuple[float, ...]]) -> Outcome:
    """Return the best outcome of all schedules that leave no GPU idle, by this order of outcomes."""
    makespan_and_all = _reachable(tuple(SERIAL[job] for job in JOBS), 0)
    return min((outcome(dict(zip(JOBS, ends, strict=True))) for ends in makespan_and_all), key=weigh)


@cache
def _reachable(left: tuple[int, ...], now: int) -> frozenset[tuple[float, ...]]:
    """Return the completion times of all schedules from here on; 0 for jobs that have ended before."""
    if not any(left):
        return frozenset({(0.0,) * len(left)})
    asked = [min(ASKED[job], rest) for job, rest in zip(JOBS, left, strict=True)]
    used = min(GPUS, sum(asked))
    found: set[tuple[float, ...]] = set()
    for gpus in product(*(range(most + 1) for most in asked)):
        if sum(gpus) != used:
            continue
        rest = tuple(a - b for a, b in zip(left, gpus, strict=True))
        for later in _reachable(rest, now + 1):
            ends = (
                float(now + 1) if before and not after else end
                for before, after, end in zip(left, rest, later, strict=True)
            )
            found.add(tuple(ends))
    return frozenset(found)


def table_verdict(found: Mapping[str, Outcome]) -> str:
    """Return the verdict: the outcomes of all printed schedules are those of table 1."""
    off = [
        f"filter {name}: {figure:.2f} instead of {stated:g}"
        for name, stated_outcome in TABLE_1.items()
        for figure, stated in zip(found[name], stated_outcome, strict=True)
        if abs(figure - stated) > _ROUNDING
    ]
    return differs("; ".join(off)) if off else REPRODUCES


def _table_1(context: ReproContext) -> list[Table]:
    found = {name: outcome(completions(schedule)) for name, schedule in SCHEDULES.items()}
    rows: list[list[Cell]] = [_row(f"filter {name}, as printed", TABLE_1[name], found[name]) for name in SCHEDULES]
    for name, part in (("1/3", 1 / 3), ("2/3", 2 / 3), ("1", 1.0)):
        rows.append(_row(f"filter {name}, of predicted ρ", None, outcome(completions(filtered(part)))))
    rows.append(_row("any schedule, least worst ρ", None, best_outcomes(lambda o: o)))
    rows.append(_row("any schedule, least JCT", None, best_outcomes(lambda o: (o[1], o[0], o[2]))))
    columns = [Column("schedule")]
    for name in ("worst ρ", "JCT", "makespan"):
        columns += [Column(f"{name}, paper", ".3g"), Column(name, ".3g")]
    columns.append(Column("sharing incentive"))
    paper = (
        "fixed filters of 2/3 and 1 break the sharing incentive (ρ above 1), 1/3 costs JCT; the adaptive does neither"
    )
    here = "of predicted ρ: ours, as the paper does not print how its filter chooses; any schedule: exhaustive search"
    return [table("table 1: filters in an example", columns, rows, paper, here, verdict=table_verdict(found))]


def _row(name: str, theirs: Outcome | None, ours: Outcome) -> list[Cell]:
    pairs: list[Cell] = []
    for at in range(3):
        pairs += [None if theirs is None else theirs[at], ours[at]]
    return [name, *pairs, "kept" if ours[0] <= 1.0 + 1e-9 else "broken"]


def figure_verdict(schedules: Mapping[str, Sequence[str]]) -> str:
    """Return the verdict: the printed schedules keep to the GPUs, the requests and the work of the example."""
    wrong = [f"filter {name}: {one}" for name, schedule in schedules.items() for one in faults(schedule)]
    return differs("; ".join(wrong)) if wrong else REPRODUCES


def _figure_15(context: ReproContext) -> list[Table]:
    rows: list[list[Cell]] = []
    charts = []
    shown = {**{f"filter {name}": s for name, s in SCHEDULES.items()}, "filter 2/3 of predicted ρ": filtered(2 / 3)}
    for name, schedule in shown.items():
        counts = {job: [round_.count(job) for round_ in schedule] for job in JOBS}
        rows += [[f"{name}, {job}", *(counts[job] + [0] * (7 - len(schedule)))[:7]] for job in JOBS]
        lines = tuple(Line(job, tuple((float(n), float(c)) for n, c in enumerate(counts[job]))) for job in JOBS)
        theirs, ours = ((), lines) if "predicted" in name else (lines, ())
        charts.append(Chart(f"figure 15: {name}", "round", "GPUs", theirs, ours, "steps"))
    columns = [Column("filter, job"), *(Column(f"round {n}", ".0f") for n in range(7))]
    paper = "figures 1 and 15 show the schedules GPU by GPU"
    title = "figures 1 and 15: schedules of the example"
    return [table(title, columns, rows, paper, verdict=figure_verdict(SCHEDULES), charts=charts)]


_PAPER = "Shockwave (NSDI '23)"
REPRODUCTIONS = (
    Reproduction("shockwave-table1", _PAPER, "table 1: filters in an example of three jobs", _table_1),
    Reproduction("shockwave-15", _PAPER, "figures 1 and 15: schedules of that example", _figure_15),
)
