"""Values exchanged between an app and a cluster that auctions GPUs: the app's standing, and its valuation of GPUs.

``check_rows`` is the rule a valuation must meet: more GPUs shorten the app's time, at most in proportion. So a false
valuation of GPUs gains an app no more than a false declaration of work.

References: Themis (NSDI '20) §4.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shoal.core.errors import InputError
from shoal.core.units import JobNumber, Seconds

Rows: TypeAlias = tuple[tuple[int, Seconds], ...]
"""A valuation: pairs of GPUs held until the app ends, ascending, and the seconds it would then take, descending."""

_ROUNDING = 1e-9
"""Relative rounding error allowed in a valuation that was sent as text."""


@dataclass(frozen=True, slots=True)
class StandingBid:
    """An app's declared valuation, the time of the declaration, and the jobs it had then."""

    at: Seconds
    jobs: tuple[JobNumber, ...]
    rows: Rows


@dataclass(frozen=True, slots=True)
class OnOffer:
    """GPUs of one kind in the next auction.

    The auction takes place at ``until`` at the latest; None if none of the GPUs is leased. ``machines`` are pairs (GPUs
    per machine, machines of that size that are up).
    """

    kind: str
    gpus: int
    machines: tuple[tuple[int, int], ...]
    until: Seconds | None


@dataclass(frozen=True, slots=True)
class JobLeft:
    """The rest of a job as the cluster estimates it; ``part`` is the fraction of its work that is left.

    ``seconds`` is the time left by number of GPUs, from ``least`` to the most the job can use of the app's kind; empty
    if it cannot use that kind.
    """

    job: JobNumber
    part: float
    least: int
    seconds: tuple[Seconds, ...]


@dataclass(frozen=True, slots=True)
class AppStanding:
    """An app's standing before the next auction.

    ``rho`` is its finish-time fairness as the arbiter computes it. The app's valuation is about GPUs of ``kind``, the
    kind that suits its jobs best; ``most`` is the number of them it could hold at once. ``bid_in_force`` says whether
    its last valuation is still valid.
    """

    rho: float
    kind: str
    most: int
    jobs: tuple[JobLeft, ...]
    offers: tuple[OnOffer, ...]
    bid_in_force: bool


def check_rows(rows: Sequence[tuple[int, Seconds]], most: int) -> Rows:
    """Return the rows as a valuation, or raise an ``InputError`` that names the first row at fault."""
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
