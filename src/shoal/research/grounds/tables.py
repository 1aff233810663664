"""Tables of the grounds: the judged policy over the best other on each ground, and the numbers it is to meet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isnan, log, nan
from statistics import fmean
from typing import Any

from shoal.report.compare import half_width
from shoal.research.grounds.cells import BOUND
from shoal.research.grounds.ground import GROUNDS, Ground
from shoal.research.grounds.runner import Results
from shoal.research.repro.table import Cell, Column, Table, table

FAIR = ("shockwave", "themis", "gavel.max-min", "gavel.ftf", "max-min", "gandiva-fair", "drf", "las", "afs-p", "pollux")
"""Policies made for fairness: the lowest worst ρ among them is the fair policies' best."""


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class GroundComparison:
    """The judged policy on a ground beside all others, over the draws on which it ran.

    ``best`` has the lowest mean JCT of the others and ``shortest`` the lowest makespan, in the geometric mean over the
    draws; policies stopped on a draw, or with unfinished jobs, take no part.
    """

    ground: Ground
    draws: tuple[int, ...]
    mine: Rows
    others: Mapping[str, Rows]
    stopped: Mapping[str, str]
    bound: Rows = ()
    """By draw the bound on all schedules; empty where it is not known for every draw."""

    def _best(self, metric: str) -> str:
        return min(self.others, key=lambda policy: geometric_mean([row[metric] for row in self.others[policy]]))

    @property
    def best(self) -> str:
        """The other policy with the lowest JCT."""
        return self._best("jct")

    @property
    def shortest(self) -> str:
        """The policy other than the judged one with the lowest makespan."""
        return self._best("makespan")

    def logs(self, metric: str, policy: str) -> list[float]:
        """Return the logarithms of the judged policy's figure over another's, by draw."""
        pairs = zip(self.mine, self.others[policy], strict=True)
        return [log(max(mine[metric], 1e-9) / max(other[metric], 1e-9)) for mine, other in pairs]

    def ratio(self, metric: str, policy: str) -> float:
        """Return the geometric mean, over the draws, of the judged policy's figure over another's."""
        return exp(fmean(self.logs(metric, policy)))

    def over_bound(self, metric: str, rows: Rows) -> float:
        """Return the geometric mean of a policy's figures over the bound; NaN without one."""
        return geometric_mean([row[metric] / low[metric] for row, low in zip(rows, self.bound, strict=False)])

    def worst_rho(self) -> float:
        """The judged policy's worst ρ on any draw."""
        return max((row["rho"] for row in self.mine), default=nan)

    def fair_rho(self) -> float:
        """The lowest worst ρ of a fair policy; NaN if none ran."""
        return min((max(r["rho"] for r in rows) for p, rows in self.others.items() if name_of(p) in FAIR), default=nan)

    def mean(self, metric: str, rows: Rows | None = None) -> float:
        """Return the mean of a figure over the draws."""
        return fmean(row[metric] for row in (self.mine if rows is None else rows))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; NaN without values."""
    return exp(fmean(log(max(value, 1e-9)) for value in values)) if values else nan


def interval(logs: Sequence[float]) -> str:
    """Return the 95 % interval of a mean ratio, from logarithms by draw; empty for a single draw."""
    if len(logs) < 2:
        return ""
    half = half_width(logs)
    return f"{exp(fmean(logs) - half):.2f}–{exp(fmean(logs) + half):.2f}"


def name_of(policy: str) -> str:
    """Return a policy's name without its options."""
    return policy.partition(":")[0]


def compared(results: Results, judged: str) -> dict[str, GroundComparison]:
    """Return the comparison on each ground on which the judged policy ran, or was stopped, by name."""
    found: dict[str, GroundComparison] = {}
    for name in GROUNDS:
        draws = tuple(sorted(draw for ground, policy, draw in results if (ground, policy) == (name, judged)))
        if not draws:
            continue
        rows: dict[str, Rows] = {}
        stopped: dict[str, str] = {}
        for policy in dict.fromkeys(policy for ground, policy, _ in results if ground == name and policy != BOUND):
            cells = [results[name, policy, draw] for draw in draws if (name, policy, draw) in results]
            reasons = [cell["stopped"] for cell in cells if "stopped" in cell]
            if reasons:
                stopped[policy] = reasons[0]
            elif len(cells) == len(draws):
                rows[policy] = cells
        others = {p: r for p, r in rows.items() if name_of(p) != name_of(judged)}
        if others:
            low = tuple(cell for draw in draws if "jct" in (cell := results.get((name, BOUND, draw), {})))
            low = low if len(low) == len(draws) else ()
            found[name] = GroundComparison(GROUNDS[name], draws, rows.get(judged, ()), others, stopped, low)
    return found


_COLUMNS = (
    Column("ground"),
    Column("draws", "d"),
    Column("best other"),
    Column("JCT ÷"),
    Column("95 %"),
    Column("p99 ÷"),
    Column("makespan ÷ shortest"),
    Column("worst ρ"),
    Column("fair policies' best"),
    Column("mean ρ"),
    Column("ρ > 1", ".1%"),
    Column("restarts a job"),
    Column("shockwave's"),
    Column("CPU s", ".1f"),
)


def ground_table(comparisons: Mapping[str, GroundComparison], judged: str, draws: str) -> Table:
    """Return the table by ground, with geometric means of the ratios in the last row."""
    rows = [_row(one, judged) for one in comparisons.values()]
    counted = _counted(comparisons)
    means = [
        geometric_mean([one.ratio("jct", one.best) for one in counted]),
        geometric_mean([one.ratio("p99", one.best) for one in counted]),
        geometric_mean([one.ratio("makespan", one.shortest) for one in counted]),
    ]
    blank: list[Cell] = [None] * (len(_COLUMNS) - 7)
    rows.append([f"geometric mean of {len(counted)}", None, None, means[0], None, means[1], means[2], *blank])
    return table(
        f"{judged} over the best other policy on each ground, {draws} draws",
        _COLUMNS,
        rows,
        here="÷: geometric means of ratios by draw. Restarts, CPU, mean ρ and ρ > 1 are means over draws, worst ρ is "
        "of any draw. Grounds that only serve as the base of another do not count in the last row.",
    )


def _row(one: GroundComparison, judged: str) -> list[Cell]:
    name = one.ground.name
    if not one.mine:
        return [name, len(one.draws), one.best, one.stopped.get(judged, "–"), *[None] * (len(_COLUMNS) - 4)]
    theirs = one.others.get("shockwave")
    return [
        name,
        len(one.draws),
        one.best,
        one.ratio("jct", one.best),
        interval(one.logs("jct", one.best)),
        one.ratio("p99", one.best),
        one.ratio("makespan", one.shortest),
        one.worst_rho(),
        one.fair_rho(),
        one.mean("rho_mean"),
        one.mean("unfair"),
        one.mean("restarts"),
        None if theirs is None else one.mean("restarts", theirs),
        one.mean("cpu"),
    ]


def _counted(comparisons: Mapping[str, GroundComparison]) -> list[GroundComparison]:
    return [one for one in comparisons.values() if one.mine and not one.ground.reference]


def bound_table(comparisons: Mapping[str, GroundComparison], judged: str) -> Table:
    """Return how far the judged policy and the best others are above the bound on all schedules."""
    ones = [one for one in _counted(comparisons) if one.bound]
    rows: list[list[Cell]] = []
    for one in ones:
        best, shortest = one.others[one.best], one.others[one.shortest]
        figures = [one.over_bound(metric, their) for metric, their in (("jct", best), ("makespan", shortest))]
        mine = [one.over_bound(metric, one.mine) for metric in ("jct", "makespan")]
        rows.append([one.ground.name, one.best, figures[0], mine[0], one.shortest, figures[1], mine[1]])
    means = [geometric_mean([float(row[at] or nan) for row in rows]) for at in (2, 3, 5, 6)]
    rows.append([f"geometric mean of {len(ones)}", None, *means[:2], None, *means[2:]])
    names = (
        "best other",
        "its JCT ÷ bound",
        f"{judged}'s",
        "shortest other",
        "its makespan ÷ bound",
        f"{judged}'s own",
    )
    return table(
        "what no policy can be below",
        [Column("ground"), *map(Column, names)],
        rows,
        here="a bound holds for every schedule of these jobs, with their true lengths and speeds known ahead and no "
        "cost of a restart, in which no two jobs share a GPU (`shoal.solve.schedule_bounds`)",
    )


def number_table(comparisons: Mapping[str, GroundComparison], judged: str) -> Table:
    """Return the numbers to meet, each with the figure reached and the ground that decides it."""
    known = [one for one in _counted(comparisons) if one.ground.lengths != "none"]
    unknown = [one for one in _counted(comparisons) if one.ground.lengths == "none"]
    both = known + unknown

    def jct(one: GroundComparison) -> float:
        return one.ratio("jct", one.best)

    def makespan(one: GroundComparison) -> float:
        return one.ratio("makespan", one.shortest)

    exact = [one for one in known if one.ground.lengths == "exact"]
    beside = [one for one in both if "shockwave" in one.others]
    wrong = [one for one in known if one.ground.base in comparisons and comparisons[one.ground.base].mine]

    def least_jct(one: GroundComparison) -> float:
        return 1.0 / one.over_bound("jct", one.others[one.best])

    def least_makespan(one: GroundComparison) -> float:
        return 1.0 / one.over_bound("makespan", one.others[one.shortest])

    rows = [
        _mean_row("JCT over the best other, lengths declared, geometric mean", 0.92, known, jct, least_jct),
        _worst_row("JCT over the best other, lengths declared, worst ground", 1.03, known, jct, least_jct),
        _mean_row("JCT over the best other, lengths undeclared, geometric mean", 0.90, unknown, jct, least_jct),
        _worst_row("JCT over the best other, lengths undeclared, worst ground", 1.03, unknown, jct, least_jct),
        _mean_row("makespan over the shortest other, geometric mean", 1.05, both, makespan, least_makespan),
        _worst_row("makespan over the shortest other, worst ground", 1.20, both, makespan, least_makespan),
        _worst_row("worst ρ where lengths are exact", 1.3, exact, GroundComparison.worst_rho),
        _worst_row("worst ρ over the fair policies' best", 1.2, both, lambda one: one.worst_rho() / one.fair_rho()),
        _restart_row(beside),
        _worst_row(
            "JCT with wrong lengths or speeds over JCT without error",
            1.05,
            wrong,
            lambda one: _over_base(one, comparisons[one.ground.base]),
        ),
    ]
    names = ("number", "at most", "reached", "decided by", "met", "no policy below")
    return table(
        f"{judged}: the numbers to meet",
        [Column(name) for name in names],
        rows,
        here="no policy below: the bound over the best other, on the grounds with a bound; on the worst of them",
    )


def _over_base(one: GroundComparison, base: GroundComparison) -> float:
    ours = dict(zip(one.draws, one.mine, strict=True))
    exact = dict(zip(base.draws, base.mine, strict=True))
    shared = sorted(ours.keys() & exact.keys())
    return geometric_mean([ours[draw]["jct"] / exact[draw]["jct"] for draw in shared])


Figure = Callable[[GroundComparison], float]


def _mean_row(
    what: str, most: float, ones: Sequence[GroundComparison], figure: Figure, least: Figure | None = None
) -> list[Cell]:
    reached = geometric_mean([figure(one) for one in ones])
    low = geometric_mean(_floors(ones, least))
    return [what, most, reached, f"{len(ones)} grounds", _met(reached, most), None if isnan(low) else low]


def _worst_row(
    what: str, most: float, ones: Sequence[GroundComparison], figure: Figure, least: Figure | None = None
) -> list[Cell]:
    figures = {one.ground.name: figure(one) for one in ones}
    known = {name: value for name, value in figures.items() if not isnan(value)}
    worst = max(known, key=known.__getitem__, default="")
    reached = known.get(worst, nan)
    low = max(_floors(ones, least), default=None)
    return [what, most, reached, worst or "–", _met(reached, most), low]


def _floors(ones: Sequence[GroundComparison], least: Figure | None) -> list[float]:
    """Return the figures that no policy can be below, on the grounds with a bound."""
    return [] if least is None else [least(one) for one in ones if one.bound]


def _restart_row(ones: Sequence[GroundComparison]) -> list[Cell]:
    mine = fmean(one.mean("restarts") for one in ones) if ones else nan
    theirs = fmean(one.mean("restarts", one.others["shockwave"]) for one in ones) if ones else nan
    what = "restarts a job, mean over grounds (at most: shockwave's)"
    return [what, theirs, mine, f"{len(ones)} grounds", _met(mine, theirs), None]


def _met(reached: float, most: float) -> str:
    return "–" if isnan(reached) else "yes" if reached <= most else "no"


def policy_table(results: Results, draws: str) -> Table:
    """Return all policies over the best of all on each ground: geometric means, worst ρ, and the runs stopped."""
    results = {key: cell for key, cell in results.items() if key[1] != BOUND}
    policies = list(dict.fromkeys(policy for _, policy, _ in results))
    cells: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for (ground, policy, draw), cell in results.items():
        cells.setdefault((ground, draw), {})[policy] = cell
    rows: list[list[Cell]] = []
    for policy in policies:
        ratios: dict[str, list[float]] = {"jct": [], "makespan": []}
        for found in cells.values():
            done = {p: cell for p, cell in found.items() if "stopped" not in cell}
            for metric, values in ratios.items():
                if policy in done:
                    values.append(done[policy][metric] / min(cell[metric] for cell in done.values()))
        mine = [cell for (_, p, _), cell in results.items() if p == policy]
        ran = [cell for cell in mine if "stopped" not in cell]
        means: list[Cell] = [
            geometric_mean(ratios["jct"]),
            geometric_mean(ratios["makespan"]),
            geometric_mean([cell["rho"] for cell in ran]),
            fmean(cell["restarts"] for cell in ran) if ran else None,
            fmean(cell["cpu"] for cell in ran) if ran else None,
        ]
        rows.append([policy, len(ran), *(means if ran else [None] * 5), len(mine) - len(ran)])
    rows.sort(key=lambda row: row[2] if isinstance(row[2], float) else inf)
    ratios_over = ("JCT ÷ best", "makespan ÷ best", "worst ρ, mean", "restarts a job")
    columns = [
        Column("policy"),
        Column("runs", "d"),
        *map(Column, ratios_over),
        Column("CPU s", ".1f"),
        Column("stopped", "d"),
    ]
    here = "each run over the best of all policies on that draw, geometric means over the runs that were not stopped"
    return table(f"all policies, {draws} draws", columns, rows, here=here)


def stopped_table(results: Results) -> Table:
    """Return which policies have no figures on which grounds, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (ground, policy, _), cell in results.items():
        if "stopped" in cell and policy != BOUND:
            reasons.setdefault((policy, cell["stopped"]), []).append(ground)
    rows = [[policy, reason, ", ".join(dict.fromkeys(grounds))] for (policy, reason), grounds in reasons.items()]
    return table("runs without figures", ["policy", "reason", "grounds"], rows)


def tables(results: Results, judged: str, draws: str) -> list[Table]:
    """Return all tables of these results."""
    found = compared(results, judged)
    made = [ground_table(found, judged, draws), number_table(found, judged)] if found else []
    if any(one.bound for one in found.values()):
        made.append(bound_table(found, judged))
    without = stopped_table(results)
    return [*made, policy_table(results, draws), *([without] if without.rows else [])]
