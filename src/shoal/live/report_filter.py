"""Filter for goodput reports of jobs: the ring gets those that can be true and differ from the last one.

A job may report anything; this keeps false reports out of decisions and repeated ones out of the journal.
"""

from math import isfinite

from shoal.core.goodput import GoodputReport, StepFit

_CHANGE = 0.05
"""The fraction by which a noise scale or a step time must change to be reported."""

_MOST_KINDS = 64


def credible(report: GoodputReport) -> bool:
    """Return whether every figure is finite and in its range, and each kind is named once."""
    kinds = [kind for kind, _ in report.fits]
    return (
        0 < len(kinds) <= _MOST_KINDS
        and len(set(kinds)) == len(kinds)
        and all(0 < len(kind) <= 64 and _possible(fit) for kind, fit in report.fits)
        and isfinite(report.noise)
        and report.noise >= 0
        and min(report.noise_batch, report.seen_gpus, report.batch.size) >= 1
        and report.batch.accumulation >= 0
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
        all(isfinite(time) and time >= 0 for time in times)
        and sum(fit.compute) > 0
        and 1 <= fit.gamma <= 10
        and fit.most_local >= 1
        and min(fit.gpus, fit.nodes) >= 0
    )


def _refitted(before: StepFit, after: StepFit) -> bool:
    grown = (before.gpus, before.nodes) != (after.gpus, after.nodes)
    return grown or any(_changed(old, new) for old, new in zip(_step_times(before), _step_times(after), strict=True))


def _step_times(fit: StepFit) -> tuple[float, ...]:
    """Seconds of a step's parts: computing the largest local batch, and exchanging gradients at each distance."""
    return fit.compute[0] + fit.compute[1] * fit.most_local, fit.node[0], fit.network[0], fit.rack[0]


def _changed(old: float, new: float) -> bool:
    return abs(new - old) > _CHANGE * max(old, new)
