"""The paper's numbers as claims, each with ours, a 95 % interval, and a verdict computed from them.

A claim agrees with the paper if some value of our 95 % interval is within ``NEAR`` of the paper's number; where the
paper gives a bound, if our whole interval keeps it. The verdict is "cannot be told" for fewer than three seeds, for an
interval half as wide as its mean, and for one that reaches over a bound; figures without chance are compared as they
are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Literal

from shoal.report.compare import half_width
from shoal.research.repro.table import REPRODUCES, Chart, Column, Line, Table, cannot_be_told, differs, table

NEAR = 0.15
"""Relative distance to the paper's number up to which ours agrees with it."""

FEWEST = 3
"""Fewest seeds from which anything is concluded."""

WIDEST = 0.5
"""Widest half of an interval, relative to its mean, from which anything is concluded."""


@dataclass(frozen=True, slots=True)
class SeedInterval:
    """A mean over seeds with the ends of its 95 % interval, which are the mean itself for one seed."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def half(self) -> float | None:
        """Half of the interval's width; None for one seed."""
        return (self.high - self.low) / 2 if self.seeds > 1 else None


def interval(values: Sequence[float]) -> SeedInterval:
    """The mean of values by seed and its 95 % interval after Student."""
    mean = fmean(values)
    half = half_width(values) if len(values) > 1 else 0.0
    return SeedInterval(mean, mean - half, mean + half, len(values))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> SeedInterval:
    """The geometric mean of ratios of runs of the same seed, with its 95 % interval."""
    logs = interval([log(a / b) for a, b in zip(above, below, strict=True)])
    return SeedInterval(exp(logs.mean), exp(logs.low), exp(logs.high), logs.seeds)


@dataclass(frozen=True, slots=True)
class Claim:
    """A number of the paper and ours: equal, at most (``most``) or at least (``least``).

    ``certain`` marks figures without chance, of which one draw is enough.
    """

    what: str
    theirs: float
    ours: SeedInterval
    bound: Literal["equal", "most", "least"] = "equal"
    certain: bool = False

    @property
    def undecided(self) -> str:
        """Why nothing can be concluded; empty if something can."""
        if self.certain:
            return ""
        if self.ours.seeds < FEWEST:
            return f"{self.what}: {self.ours.seeds} of {FEWEST} seeds"
        half, over = self.ours.half or 0.0, self.ours.low < self.theirs < self.ours.high
        wide = half > WIDEST * abs(self.ours.mean) if self.bound == "equal" else over
        return f"{self.what}: ± {half:.2f} around {self.ours.mean:.2f}" if wide else ""

    @property
    def holds(self) -> bool:
        """Whether ours agrees with the paper."""
        room = NEAR * abs(self.theirs)
        below, above = self.ours.low <= self.theirs + room, self.ours.high >= self.theirs - room
        mean = self.ours.mean
        return {"equal": below and above, "most": mean <= self.theirs, "least": mean >= self.theirs}[self.bound]

    @property
    def difference(self) -> float | None:
        """Ours relative to the paper's, less one; None where the paper's number is 0."""
        return self.ours.mean / self.theirs - 1.0 if self.theirs else None


def verdict(claims: Sequence[Claim]) -> str:
    """Return the verdict on all claims: reproduced if all hold; claims that differ are named with both numbers."""
    wrong = [claim for claim in claims if not claim.undecided and not claim.holds]
    if wrong:
        words = {"equal": "paper", "most": "paper at most", "least": "paper at least"}
        parts = (f"{c.what} {c.ours.mean:.2f} ({words[c.bound]} {c.theirs:.3g})" for c in wrong)
        agree = sum(not claim.undecided and claim.holds for claim in claims)
        return differs("; ".join(parts) + (f"; {agree} of {len(claims)} agree" if agree else ""))
    open_claims = [claim.undecided for claim in claims if claim.undecided]
    return cannot_be_told("; ".join(open_claims)) if open_claims or not claims else REPRODUCES


def claims_table(
    title: str, claims: Sequence[Claim], paper: str, here: str = "", charts: Sequence[Chart] = ()
) -> Table:
    """A row for each claim: theirs, ours with its interval, the difference and whether it agrees."""
    signs = {"equal": "", "most": "≤ ", "least": "≥ "}
    rows = [
        (
            claim.what,
            f"{signs[claim.bound]}{claim.theirs:.3g}",
            claim.ours.mean,
            claim.ours.low if claim.ours.seeds > 1 else None,
            claim.ours.high if claim.ours.seeds > 1 else None,
            claim.difference if claim.bound == "equal" else None,
            "cannot be told" if claim.undecided else "yes" if claim.holds else "no",
        )
        for claim in claims
    ]
    columns: list[str | Column] = ["", "theirs", "ours", "95 % from", "to", Column("difference", "+.0%"), "agrees"]
    drawn = (_bars(title, claims), *charts)
    return table(title, columns, rows, paper, here, verdict=verdict(claims), charts=drawn)


def _bars(title: str, claims: Sequence[Claim]) -> Chart:
    theirs = Line("paper", tuple((float(i), claim.theirs) for i, claim in enumerate(claims)))
    halves = tuple(claim.ours.half or 0.0 for claim in claims)
    ours = Line("Shoal", tuple((float(i), claim.ours.mean) for i, claim in enumerate(claims)), halves)
    return Chart(title, "", "", (theirs,), (ours,), "bars", tuple(claim.what for claim in claims))


def line(name: str, xs: Sequence[float], values: Callable[[float], Sequence[float]]) -> Line:
    """A line of means over seeds with their intervals."""
    found = [interval(values(x)) for x in xs]
    return Line(
        name, tuple((x, one.mean) for x, one in zip(xs, found, strict=True)), tuple(f.half or 0.0 for f in found)
    )
