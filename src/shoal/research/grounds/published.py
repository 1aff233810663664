"""The published grounds: the judged policy beside figures of other simulators and earlier policies on public traces.

Targets are figures in the same settings: average JCT on Pollux's, Sia's and Gavel's public workloads, the makespans of
the former ``shoal`` on Shockwave's, ``rank``'s JCT on AFS's, and ``themis``'s worst app.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from shoal.research.grounds.cells import BOUND
from shoal.research.grounds.runner import Key, Results
from shoal.research.grounds.tables import geometric_mean
from shoal.research.repro.afs import TRACES
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.research.repro.themis import THEMIS

LIMIT = 1200.0
"""CPU seconds of a cell: AFS's largest trace has 41,226 jobs."""


_RANK = (114066, 9975.2, 18873, 15497, 18254, 222500, 11037.3, 429231, 79658, 1244.7, 7382.5)
"""Average JCT of ``rank`` on AFS's traces 1 to 11, draw 0, in seconds: 2026-11-16, commit fc96360."""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: the mean of ``metric`` over these cells in units of ``unit``, or its mean ratio to a base.

    ``options`` are added to the judged policy. The base is the policy ``against`` on the same cells, or the figures
    ``former``, one for each cell.
    """

    what: str
    most: float
    cells: tuple[tuple[str, int], ...]
    metric: str = "jct"
    unit: float = 1.0
    options: str = ""
    against: str = ""
    former: tuple[float, ...] = ()
    bounded: bool = True
    """Whether to compute the bound on all policies."""

    def policy(self, judged: str) -> str:
        """Return the judged policy with this target's options."""
        if not self.options:
            return judged
        return f"{judged}{',' if ':' in judged else ':'}{self.options}"

    def keys(self, judged: str) -> list[Key]:
        """Return the cells that the figure needs."""
        policies = [self.policy(judged), *([self.against] if self.against else [BOUND] if self.bounded else [])]
        return [(ground, policy, draw) for ground, draw in self.cells for policy in policies]

    def figure(self, results: Results, judged: str) -> float | str:
        """Return the figure, or why there is none."""
        mine = [results[ground, self.policy(judged), draw] for ground, draw in self.cells]
        base: Sequence[Mapping[str, Any]] = [{self.metric: value} for value in self.former]
        if self.against:
            base = [results[ground, self.against, draw] for ground, draw in self.cells]
        stopped = [row["stopped"] for row in (*mine, *base) if "stopped" in row]
        if stopped:
            return str(stopped[0])
        if base:
            return geometric_mean([row[self.metric] / b[self.metric] for row, b in zip(mine, base, strict=True)])
        return fmean(row[self.metric] for row in mine) / self.unit

    def floor(self, results: Results) -> float | None:
        """Return the bound that no policy can be below; None where it is not known for every cell."""
        low = [results.get((ground, BOUND, draw), {}).get(self.metric) for ground, draw in self.cells]
        figures = [float(value) for value in low if value is not None]
        if len(figures) < len(low) or self.against:
            return None
        if self.former:
            return geometric_mean([value / former for value, former in zip(figures, self.former, strict=True)])
        return fmean(figures) / self.unit


def targets(themis_draws: Sequence[int]) -> tuple[Target, ...]:
    """Return all targets; Themis's apps are generated from these draws."""
    numbers = tuple(range(1, 9))
    shockwave = tuple((f"sw-{jobs}", 0) for jobs in (120, 220, 460, 900))
    makespans, jcts = (21173.5, 22387.2, 22471.0, 21976.9), (7277.5, 5974.7, 6588.2, 6197.5)
    return (
        Target("Pollux's 8 workloads, average JCT, s", 2238.0, tuple(("pollux", n) for n in numbers)),
        Target("the same at double load", 3777.0, tuple(("pollux-double", n) for n in numbers)),
        Target("Sia's rate_10 workload 6, average JCT, s", 1103.0, (("sia-rate-10", 6),)),
        Target("Gavel's continuous trace, average JCT, h", 3.2, (("gavel-public-continuous", 0),), unit=3600.0),
        Target(
            "Gavel's static trace, makespan, h, with makespan=1",
            17.4,
            (("gavel-public-static", 0),),
            "makespan",
            3600.0,
            "makespan=1",
        ),
        Target(
            "Shockwave's 4 traces, makespan over the former shoal's, with makespan=1",
            1.01,
            shockwave,
            "makespan",
            options="makespan=1",
            former=makespans,
        ),
        Target("the same, average JCT", 1.0, shockwave, options="makespan=1", former=jcts),
        Target(
            "AFS's 11 traces, average JCT over rank's",
            1.0,
            tuple((f"afs-trace-{number}", 0) for number in TRACES),
            former=_RANK,
            bounded=False,
        ),
        Target(
            "Themis's apps, worst ρ of an app over themis's",
            1.1,
            tuple(("themis-paper", draw) for draw in themis_draws),
            "app_rho",
            against=THEMIS,
        ),
    )


def published_table(results: Results, judged: str, chosen: Sequence[Target]) -> Table:
    """Return the targets with the judged policy's figures."""
    rows: list[list[Cell]] = []
    for target in chosen:
        figure = target.figure(results, judged)
        met = isinstance(figure, float) and figure <= target.most
        rows.append([target.what, target.most, figure, "yes" if met else "no", target.floor(results)])
    figures = [Column(name, ",.2f") for name in ("at most", "reached")]
    columns = [Column("ground"), *figures, Column("met"), Column("no policy below", ",.2f")]
    return table(f"{judged} on the published grounds", columns, rows)
