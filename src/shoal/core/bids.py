"""What an app and a cluster that auctions GPUs say to each other: how the app stands, and what GPUs are worth to it.

Values only. ``check_rows`` is the rule by which an app may speak for itself: more GPUs are worth something to it, and
no more than in proportion. So a lie about GPUs is worth no more than one about work.

References: Themis (NSDI '20) §4.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shoal.core.errors import InputError
from shoal.core.units import JobNumber, Seconds

Rows: TypeAlias = tuple[tuple[int, Seconds], ...]
"""A valuation: GPUs held for good, ascending, and the seconds until the app would be done with them, falling."""

_ROUNDING = 1e-9
"""What a quotient may lose on its way through a wire."""


@dataclass(frozen=True, slots=True)
class StandingBid:
    """What an app said at a time GPUs are worth to it, with the jobs it had then."""

    at: Seconds
    jobs: tuple[JobNumber, ...]
    rows: Rows


@dataclass(frozen=True, slots=True)
class OnOffer:
    """What of a kind will be auctioned next, and when, at the latest: None where nothing is leased.

    ``machines`` are how many GPUs a machine has, and how many such machines are up.
    """

    kind: str
    gpus: int
    machines: tuple[tuple[int, int], ...]
    until: Seconds | None


@dataclass(frozen=True, slots=True)
class JobLeft:
    """What is left of a job as the cluster sees it: the ``part`` of its work, and the seconds that takes.

    ``seconds`` are by number of GPUs, from the fewest to the most it can use of the app's kind; none where it can use
    none.
    """

    job: JobNumber
    part: float
    least: int
    seconds: tuple[Seconds, ...]


@dataclass(frozen=True, slots=True)
class AppStanding:
    """How an app stands before the next auction.

    ``rho`` is its finish-time fairness as the arbiter sees it. ``kind`` is the one that suits its jobs best, on which
    it values GPUs, ``most`` how many of them it could hold at once. ``said`` is whether what it last said of itself
    counts now.
    """

    rho: float
    kind: str
    most: int
    jobs: tuple[JobLeft, ...]
    offers: tuple[OnOffer, ...]
    said: bool


def check_rows(rows: Sequence[tuple[int, Seconds]], most: int) -> Rows:
    """The rows as a valuation, or an ``InputError`` that names the first that cannot be one."""
    before: tuple[int, Seconds] | None = None
    for number, (gpus, seconds) in enumerate(rows):
        where = f"rows[{number}]"
        if not 1 <= gpus <= most:
            raise InputError(f"{where}[0]", gpus, f"must be from 1 to {most}, the GPUs there are of its kind")
        if not 0.0 < seconds < float("inf"):
            raise InputError(f"{where}[1]", seconds, "must be a finite number of seconds above 0")
        if before is not None and gpus <= before[0]:
            raise InputError(f"{where}[0]", gpus, f"must be above the row before, {before[0]}")
        if before is not None and seconds >= before[1]:
            raise InputError(f"{where}[1]", seconds, f"must fall: {before[0]} GPUs already take {before[1]:g} s")
        if before is not None and gpus * seconds < before[0] * before[1] * (1.0 - _ROUNDING):
            fewest = before[0] * before[1] / gpus
            hint = f"falls faster than GPUs grow; after {before[1]:g} s on {before[0]} at least {fewest:g} s"
            raise InputError(f"{where}[1]", seconds, hint)
        before = gpus, seconds
    if before is None:
        raise InputError("rows", [], "must have at least one row, [GPUs, SECONDS]")
    return tuple((int(gpus), float(seconds)) for gpus, seconds in rows)
