"""Successive halving and Hyperband: all trials are trained a little, the better ones more, the best to the end.

A *rung* is a number of trials and how far they are trained. When all trials of a rung have reached it, the best go on
to the next, on gangs ``eta`` times as wide, with the GPUs of the trials dropped (Themis §4.3.2). Ties go to the lower
number; a trial that failed is not replaced.

References: Jamieson and Talwalkar, AISTATS 2016 (successive halving); Li et al., JMLR 2018 (Hyperband, Algorithm 1);
Mahajan et al., NSDI 2020, §4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, isfinite
from typing import ClassVar

from shoal.core.errors import InputError
from shoal.hpo.search import SearchPhase, Train, Trial

_EXACT = 1e-9
"""Relative tolerance for rounding errors in logarithms of whole powers."""


@dataclass(frozen=True, slots=True)
class Rung:
    """Number of trials, and the fraction of a training they are trained to."""

    trials: int
    until: float


def _powers(most: float, eta: int) -> int:
    """The largest k with eta**k <= most."""
    k = 0
    while eta ** (k + 1) <= most * (1 + _EXACT):
        k += 1
    return k


def _check_eta(eta: int) -> None:
    if eta < 2:
        raise ValueError(f"eta must be at least 2, not {eta}")


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """Promotes one trial in ``eta`` at each rung, until one is left; every rung costs the same GPU time.

    So each leg trains ``eta`` times as much as the one before: with 4 trials 1/7, 2/7 and 4/7 of a training, which is
    the 8, 16 and about 36 iterations of Themis's example (§4.3.3).
    """

    eta: int = 2

    def __post_init__(self) -> None:
        _check_eta(self.eta)

    marks: ClassVar[tuple[float, ...]] = ()

    def rungs(self, trials: int) -> tuple[Rung, ...]:
        """The rungs for this number of trials."""
        last = _powers(trials, self.eta)
        whole = self.eta ** (last + 1) - 1
        untils = [(self.eta ** (k + 1) - 1) / whole for k in range(last + 1)]
        return tuple(Rung(trials // self.eta**k, until) for k, until in enumerate(untils))

    def orders(self, trials: Sequence[Trial]) -> Sequence[Train]:
        """The legs of the next rung, once this one is done."""
        return _climb(range(len(trials)), trials, self.rungs(len(trials)), self.eta)

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """The rungs above."""
        return _above(range(len(trials)), trials, self.rungs(len(trials)), self.eta)


@dataclass(frozen=True)
class Hyperband:
    """Several halvings in parallel, from many trials trained a little to few trained fully from the start.

    ``most`` is a whole training in units of the smallest amount worth judging. Bracket s of s_max, ..., 0 takes
    ``ceil((s_max + 1) · eta**s / (s + 1))`` trials, in order of their numbers, to 1/eta**s of a training first. An app
    with fewer trials leaves the later brackets short; one with more is an ``InputError``.
    """

    eta: int = 3
    most: float = 9.0

    def __post_init__(self) -> None:
        _check_eta(self.eta)
        if not (self.most >= 1.0 and isfinite(self.most)):
            raise ValueError(f"most must be a finite number, at least 1, not {self.most}")

    marks: ClassVar[tuple[float, ...]] = ()

    @cached_property
    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        """The rungs of every bracket, the one with the most trials first."""
        eta, top = self.eta, _powers(self.most, self.eta)
        sizes = [(s, ceil((top + 1) * eta**s / (s + 1) - _EXACT)) for s in range(top, -1, -1)]
        return tuple(tuple(Rung(n // eta**i, eta**i / eta**s) for i in range(s + 1)) for s, n in sizes)

    def orders(self, trials: Sequence[Trial]) -> Sequence[Train]:
        """The legs of the next rung of every bracket whose current one is done."""
        return [order for group, rungs in self._groups(trials) for order in _climb(group, trials, rungs, self.eta)]

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """The rungs above, by bracket."""
        return tuple(phase for group, rungs in self._groups(trials) for phase in _above(group, trials, rungs, self.eta))

    def _groups(self, trials: Sequence[Trial]) -> list[tuple[range, tuple[Rung, ...]]]:
        groups, first = [], 0
        for rungs in self.brackets:
            last = min(first + rungs[0].trials, len(trials))
            groups += [(range(first, last), rungs)] if last > first else []
            first = last
        if first < len(trials):
            whole = f"hyperband:eta={self.eta},most={self.most:g}"
            raise InputError("trials", len(trials), f"{whole} tries {first}; leave some out, or raise `most`")
        return groups


def _climb(group: range, trials: Sequence[Trial], rungs: Sequence[Rung], eta: int) -> list[Train]:
    """The legs of the next rung for a group of trials; empty while one of them runs."""
    at = _rung_of(group, trials, rungs)
    if any(trials[n].running for n in group) or at + 1 == len(rungs):
        return []
    up = rungs[at + 1]
    if at < 0:
        return [Train(n, up.until) for n in group]
    reached = [n for n in group if trials[n].until == rungs[at].until and not trials[n].dropped]
    best = sorted(reached, key=lambda n: (trials[n].loss, n))[: up.trials]
    return [Train(n, up.until, eta ** (at + 1)) for n in best]


def _above(group: range, trials: Sequence[Trial], rungs: Sequence[Rung], eta: int) -> tuple[SearchPhase, ...]:
    """The rungs above the current one, with no more trials than are left."""
    at = max(_rung_of(group, trials, rungs), 0)
    left = sum(trials[n].until in (0.0, rungs[at].until) and not trials[n].dropped for n in group)
    legs = [(k, rungs[k].until - rungs[k - 1].until) for k in range(at + 1, len(rungs))]
    return tuple(SearchPhase(count, part, eta**k) for k, part in legs if (count := min(rungs[k].trials, left)))


def _rung_of(group: range, trials: Sequence[Trial], rungs: Sequence[Rung]) -> int:
    """The rung last trained for; −1 before the first."""
    furthest = max((trials[n].until for n in group), default=-inf)
    return next((k for k, rung in enumerate(rungs) if rung.until == furthest), -1)
