"""Ratios of paired runs with 95 % intervals, and verdicts that compare them with a paper's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, nan
from statistics import fmean

from shoal.report.compare import half_width
from shoal.research.repro.table import REPRODUCES, cannot_be_told, differs


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The geometric mean of ratios by seed, and its 95 % interval (Student's t); of one seed the interval is all."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f}–{self.high:.2f})"


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> PairedRatio:
    """Return ``above`` / ``below``, pair by pair; both positive."""
    return ratio_of([a / b for a, b in zip(above, below, strict=True)])


def ratio_of(ratios: Sequence[float]) -> PairedRatio:
    """Return the mean of ratios that are known already, one by seed."""
    if not ratios:
        return PairedRatio(nan, 0.0, inf)
    logs = [log(ratio) for ratio in ratios]
    mean = fmean(logs)
    half = half_width(logs)
    return PairedRatio(exp(mean), exp(mean - half), exp(mean + half))


def all_at_least(what: str, ratios: Mapping[str, PairedRatio], least: float) -> str:
    """Return the verdict on a paper's statement that all these ratios, of ``what``, are at least ``least``.

    The verdict is "differs" if an interval lies below ``least``, and "cannot be told" if one contains it.
    """
    below = [f"{name} {ratio}" for name, ratio in ratios.items() if ratio.high < least]
    if below:
        return differs(f"{what} less than {least:g}: {', '.join(below)}")
    open_ = [f"{name} {ratio}" for name, ratio in ratios.items() if ratio.low < least]
    if open_:
        return cannot_be_told(f"{what}: {least:g} is within the interval: {', '.join(open_)}")
    return REPRODUCES


def all_within(ratios: Mapping[str, PairedRatio], low: float, high: float) -> str:
    """Return the verdict on a paper's statement that all these ratios lie from ``low`` to ``high``."""
    out = [f"{name} {ratio}" for name, ratio in ratios.items() if ratio.high < low or ratio.low > high]
    if out:
        return differs(f"outside {low:g} to {high:g}: {', '.join(out)}")
    open_ = [f"{name} {ratio}" for name, ratio in ratios.items() if ratio.low < low or ratio.high > high]
    if open_:
        return cannot_be_told(f"intervals reach beyond {low:g} to {high:g}: {', '.join(open_)}")
    return REPRODUCES


def all_hold(claims: Mapping[str, bool]) -> str:
    """Return the verdict that all statements of a paper hold, or names those that do not."""
    failing = [claim for claim, holds in claims.items() if not holds]
    return differs("does not hold: " + "; ".join(failing)) if failing else REPRODUCES
