"""Filter for reports of jobs: passes on progress and goodput that are possible and differ from the last report.

A job may report anything; this keeps false reports out of decisions and repeated ones out of the journal.
"""

from typing import TypeGuard

from shoal.core.goodput import GoodputReport, StepFit

_CHANGE = 0.05
"""The fraction by which a noise scale or a step time must change to be reported."""

_MOST_KINDS = 64

_MOST_COUNT = 10_000_000
"""Most samples in a batch, and most GPUs or nodes: the journal and the columns of a snapshot hold no larger numbers."""

_MOST_FIGURE = 1e15
"""Most seconds of a step, and the largest noise scale in samples."""

_SHORTEST_STEP = 1e-12
"""Shortest time of a pass over one sample, in seconds: the speed that follows from a shorter one may be infinite."""

_MOST_PROGRESS = 1e18
"""Largest progress, in the unit of a job's work: far above the largest work, and sums of it stay finite."""


def possible_progress(value: float | None) -> TypeGuard[float]:
    """Return whether a job's progress was reported and is in its range."""
    return value is not None and 0 <= value <= _MOST_PROGRESS


def credible(report: GoodputReport) -> bool:
    """Return whether every figure is finite and in its range, and each kind is named once."""
    kinds = [kind for kind, _ in report.fits]
    return (
        0 < len(kinds) <= _MOST_KINDS
        and len(set(kinds)) == len(kinds)
        and all(0 < len(kind) <= 64 and _possible(fit) for kind, fit in report.fits)
        and 0 <= report.noise <= _MOST_FIGURE
        and all(1 <= n <= _MOST_COUNT for n in (report.noise_batch, report.seen_gpus, report.batch.size))
        and 0 <= report.batch.accumulation <= _MOST_COUNT
    )


def differs(known: GoodputReport | None, report: GoodputReport) -> bool:
    """Return whether a report differs from the last one that was passed on."""
    if known is None:
        return True
    before, after = dict(known.fits), dict(report.fits)
    return (
        (known.batch, known.seen_gpus) != (report.batch, report.seen_gpus)
        or before.keys() != after.keys()
        or _changed(known.noise, report.noise)
        or any(_refitted(before[kind], fit) for kind, fit in after.items())
    )


def _possible(fit: StepFit) -> bool:
    times = (*fit.compute, *fit.node, *fit.network, *fit.rack, fit.error)
    return (
        all(0 <= time <= _MOST_FIGURE for time in times)
        and sum(fit.compute) >= _SHORTEST_STEP
        and 1 <= fit.gamma <= 10
        and 1 <= fit.most_local <= _MOST_COUNT
        and all(0 <= count <= _MOST_COUNT for count in (fit.gpus, fit.nodes))
    )


def _refitted(before: StepFit, after: StepFit) -> bool:
    grown = (before.gpus, before.nodes) != (after.gpus, after.nodes)
    return grown or any(_changed(old, new) for old, new in zip(_step_times(before), _step_times(after), strict=True))


def _step_times(fit: StepFit) -> tuple[float, ...]:
    """Seconds of a step's parts: computing the largest local batch, and exchanging gradients at each distance."""
    return fit.compute[0] + fit.compute[1] * fit.most_local, fit.node[0], fit.network[0], fit.rack[0]


def _changed(old: float, new: float) -> bool:
    return abs(new - old) > _CHANGE * max(old, new)
