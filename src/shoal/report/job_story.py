"""What happened to each job of a journal: its runs, resizes and batch sizes, how long it waited and why.

Runs and batch sizes come from the history. A journal keeps verdicts only as a digest, so the caller replays it and
passes the reasons for waiting.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, JobNumber, Seconds
from shoal.report.history import History

_UNKNOWN = -1
"""Stands for a reason's code if no reason is known."""


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """A job's reason for having no GPUs from this time on; ``code`` is that of its template."""

    at: Seconds
    job: JobNumber
    code: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Run:
    """An interval on a constant number of GPUs."""

    since: Seconds
    until: Seconds
    gpus: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The total time a job waited for one reason code, and the last sentence of that code."""

    seconds: Seconds
    sentence: str


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to one job; ``batches`` are its batch sizes in order, ``waits`` sorted longest first.

    ``lost`` is the seconds of its runs whose work was lost, since it was stopped before it had saved.
    ``notes`` are actions of users, operators and limits on it, such as "held by ana", with their times.
    """

    id: JobId
    submitted: Seconds
    ended: Seconds | None
    outcome: str
    runs: tuple[Run, ...]
    batches: tuple[int, ...]
    waits: tuple[Wait, ...]
    lost: Seconds = 0.0
    notes: tuple[tuple[Seconds, str], ...] = ()
    suspensions: int = 0
    """How often it was suspended in place and resumed there, losing nothing."""

    @property
    def resizes(self) -> int:
        """How often it got more, fewer or other GPUs while it ran."""
        return sum(one.until == other.since for one, other in pairwise(self.runs))

    @property
    def stops(self) -> int:
        """How often it was stopped and started again later."""
        return max(len(self.runs) - 1, 0) - self.resizes - self.suspensions

    @property
    def waited(self) -> Seconds:
        """Total seconds without GPUs."""
        return sum(wait.seconds for wait in self.waits)

    def document(self) -> dict[str, Any]:
        """The story as plain values, for ``--json``."""
        return {
            "id": self.id,
            "submitted": self.submitted,
            "ended": self.ended,
            "outcome": self.outcome,
            "runs": [{"since": s.since, "until": s.until, "gpus": s.gpus} for s in self.runs],
            "resizes": self.resizes,
            "stops": self.stops,
            "lost": self.lost,
            "suspensions": self.suspensions,
            "batch_sizes": list(self.batches),
            "waited": self.waited,
            "waits": [{"seconds": w.seconds, "reason": w.sentence} for w in self.waits],
            "notes": [{"at": at, "what": what} for at, what in self.notes],
        }

    def lines(self) -> list[str]:
        """The story as text: what happened in the first line, then a line for each reason it waited."""
        end = "still live" if self.ended is None else f"{self.outcome} after {self.ended - self.submitted:,.1f} s"
        runs = ", ".join(f"{_gpus(s.gpus)} {s.since:,.1f}–{s.until:,.1f} s" for s in self.runs) or "it never ran"
        stopped = "stopped and started again" if self.lost >= 1 else "stopped and resumed"
        counts = [(self.resizes, "resized"), (self.suspensions, "suspended and resumed"), (self.stops, stopped)]
        moved = "".join(f"; {what} {_times(count)}" for count, what in counts if count)
        moved += f"; the work of {self.lost:,.1f} s was lost" if self.lost >= 1 else ""
        sizes = f"; batch {' → '.join(map(str, self.batches))}" if len(self.batches) > 1 else ""
        waits = [f"waited {wait.seconds:,.1f} s: {wait.sentence}" for wait in self.waits]
        notes = [f"at {at:,.1f} s: {what}" for at, what in self.notes]
        return [f"{self.id}: {end}; {runs}{moved}{sizes}", *notes, *waits]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def stories(history: History, reasons: Iterable[WaitingReason], until: Seconds = inf) -> list[Story]:
    """Every job's story, in order of admission; ``reasons`` are in order of time and complete up to ``until``."""
    by_job: dict[JobNumber, list[WaitingReason]] = {}
    for reason in reasons:
        by_job.setdefault(reason.job, []).append(reason)
    return [_story(history, job, by_job.get(job, []), until) for job in range(len(history))]


def _story(history: History, job: JobNumber, reasons: list[WaitingReason], until: Seconds) -> Story:
    holds = np.flatnonzero(history.holds.job == job)
    held = history.holds
    runs = tuple(map(Run, held.since[holds].tolist(), held.until[holds].tolist(), held.gpus[holds].tolist()))
    ended = float(history.ended[job])
    return Story(
        id=history.ids[job],
        submitted=float(history.submitted[job]),
        ended=ended if np.isfinite(ended) else None,
        outcome=JobState(int(history.outcome[job])).name.lower(),
        runs=runs,
        batches=_batches(history, job),
        waits=_waits(history, job, runs, reasons, until),
        lost=_lost(history, holds.tolist()),
        notes=tuple(history.notes.get(job, ())),
        suspensions=history.resumed.get(job, 0),
    )


def _lost(history: History, holds: list[int]) -> Seconds:
    """Return seconds of run whose work a stop of the job lost, at the rate last measured in each interval."""
    lost, rates = 0.0, history.rates
    for hold in holds:
        last = int(np.searchsorted(rates.hold, hold, side="right")) - 1
        if history.holds.lost[hold] > 0 and last >= 0 and rates.hold[last] == hold and rates.rate[last] > 0:
            lost += float(history.holds.lost[hold] / rates.rate[last])
    return lost


def _batches(history: History, job: JobNumber) -> tuple[int, ...]:
    rates = history.rates
    own = np.flatnonzero(history.holds.job[rates.hold] == job)
    sizes = [size for size in rates.batch_size[own[np.argsort(rates.since[own], kind="stable")]].tolist() if size]
    return tuple(size for at, size in enumerate(sizes) if not at or size != sizes[at - 1])


def _waits(
    history: History, job: JobNumber, runs: tuple[Run, ...], reasons: list[WaitingReason], until: Seconds
) -> tuple[Wait, ...]:
    """Time without GPUs by reason code; the first reason of an interval counts from the interval's begin."""
    inner = (edge for r in runs for edge in (r.since, r.until))
    edges = [float(history.submitted[job]), *inner, history.live_until[job]]
    found: dict[int, tuple[float, str]] = {}
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        known = min(float(end), max(begin, until))
        within = [reason for reason in reasons if begin <= reason.at < known]
        starts = [begin, *(reason.at for reason in within[1:]), known]
        spans = [(r.code, stop - start, r.sentence) for r, (start, stop) in zip(within, pairwise(starts), strict=False)]
        for code, seconds, sentence in (*spans, (_UNKNOWN, float(end) - known, "the reason is not known")):
            found[code] = found.get(code, (0.0, ""))[0] + seconds, sentence
    waits = (Wait(seconds, sentence) for seconds, sentence in found.values() if seconds > 0.0)
    return tuple(sorted(waits, key=lambda wait: -wait.seconds))
