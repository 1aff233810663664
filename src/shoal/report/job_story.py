"""What happened to each job of a journal, in words: its runs, resizes and batch sizes, how long it waited and why.

Runs and batch sizes are the history's; why a job waited is what its verdicts said, which a journal keeps only as a
digest: whoever wants the sentences derives them again and gives them here.
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

_UNTOLD = -1
"""In place of a reason's code."""


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """From when on a job without GPUs was told this; ``code`` says of which kind the reason is."""

    at: Seconds
    job: JobNumber
    code: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Stay:
    """A stretch of time on so many GPUs."""

    since: Seconds
    until: Seconds
    gpus: int


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a job waited for one kind of reason in all, and what it was last told of it."""

    seconds: Seconds
    sentence: str


@dataclass(frozen=True, slots=True)
class Story:
    """One job's. ``resizes`` are changes of its GPUs while it ran; ``stops`` are times it was left without any."""

    id: JobId
    submitted: Seconds
    ended: Seconds | None
    outcome: str
    stays: tuple[Stay, ...]
    batches: tuple[int, ...]
    """The batch sizes it trained at, one after another; none where it never said."""
    waits: tuple[Wait, ...]
    """The longest first."""

    @property
    def resizes(self) -> int:
        """How often it was given more, fewer or other GPUs while it ran."""
        return sum(one.until == other.since for one, other in pairwise(self.stays))

    @property
    def stops(self) -> int:
        """How often it ran, was left without GPUs, and ran again."""
        return max(len(self.stays) - 1, 0) - self.resizes

    @property
    def waited(self) -> Seconds:
        """Seconds without GPUs, in all."""
        return sum(wait.seconds for wait in self.waits)

    def document(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "id": self.id,
            "submitted": self.submitted,
            "ended": self.ended,
            "outcome": self.outcome,
            "runs": [{"since": s.since, "until": s.until, "gpus": s.gpus} for s in self.stays],
            "resizes": self.resizes,
            "stops": self.stops,
            "batch_sizes": list(self.batches),
            "waited": self.waited,
            "waits": [{"seconds": w.seconds, "reason": w.sentence} for w in self.waits],
        }

    def lines(self) -> list[str]:
        """For people: what happened, and then why it waited."""
        end = "still there" if self.ended is None else f"{self.outcome} after {self.ended - self.submitted:,.1f} s"
        runs = ", ".join(f"{_gpus(s.gpus)} {s.since:,.1f}–{s.until:,.1f} s" for s in self.stays) or "it never ran"
        counts = [(self.resizes, "resized"), (self.stops, "stopped and resumed")]
        moved = "".join(f"; {what} {_times(count)}" for count, what in counts if count)
        sizes = f"; batch {' → '.join(map(str, self.batches))}" if len(self.batches) > 1 else ""
        said = [f"waited {wait.seconds:,.1f} s: {wait.sentence}" for wait in self.waits]
        return [f"{self.id}: {end}; {runs}{moved}{sizes}", *said]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def stories(history: History, told: Iterable[WaitingReason], until: Seconds = inf) -> list[Story]:
    """Every job's story, in order of admission; ``told``, in order of time, is all that was told ``until`` then."""
    heard: dict[JobNumber, list[WaitingReason]] = {}
    for telling in told:
        heard.setdefault(telling.job, []).append(telling)
    return [_story(history, job, heard.get(job, []), until) for job in range(len(history))]


def _story(history: History, job: JobNumber, told: list[WaitingReason], until: Seconds) -> Story:
    holds = np.flatnonzero(history.holds.job == job)
    held = history.holds
    stays = tuple(map(Stay, held.since[holds].tolist(), held.until[holds].tolist(), held.gpus[holds].tolist()))
    ended = float(history.ended[job])
    return Story(
        id=history.ids[job],
        submitted=float(history.submitted[job]),
        ended=ended if np.isfinite(ended) else None,
        outcome=JobState(int(history.outcome[job])).name.lower(),
        stays=stays,
        batches=_batches(history, job),
        waits=_waits(history, job, stays, told, until),
    )


def _batches(history: History, job: JobNumber) -> tuple[int, ...]:
    rates = history.rates
    own = np.flatnonzero(history.holds.job[rates.hold] == job)
    sizes = [size for size in rates.batch_size[own[np.argsort(rates.since[own], kind="stable")]].tolist() if size]
    return tuple(size for at, size in enumerate(sizes) if not at or size != sizes[at - 1])


def _waits(
    history: History, job: JobNumber, stays: tuple[Stay, ...], told: list[WaitingReason], until: Seconds
) -> tuple[Wait, ...]:
    """By kind of reason, for how long a job had no GPUs; what it was told first counts from when it had none."""
    edges = [float(history.submitted[job]), *(edge for s in stays for edge in (s.since, s.until)), history.gone[job]]
    found: dict[int, tuple[float, str]] = {}
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        known = min(float(end), max(begin, until))
        within = [t for t in told if begin <= t.at < known]
        ends = [t.at for t in within[1:]] + [known]
        starts = [begin, *(t.at for t in within[1:])]
        spans = [(t.code, stop - start, t.sentence) for t, start, stop in zip(within, starts, ends, strict=False)]
        for code, seconds, sentence in (*spans, (_UNTOLD, float(end) - known, "what it was told is not known")):
            found[code] = found.get(code, (0.0, ""))[0] + seconds, sentence
    waits = (Wait(seconds, sentence) for seconds, sentence in found.values() if seconds > 0.0)
    return tuple(sorted(waits, key=lambda wait: -wait.seconds))
