"""What jobs say of their own training, weighed: whether it can be true, and whether it is news to anybody.

Pure rules. A job may say anything; what cannot be true is taken as not said, and what was as good as known is not told
again, so that no job can flood the journal.
"""

from math import isfinite

from shoal.core.goodput import GoodputReport, StepFit

_MATERIAL = 0.05
"""A noise scale or a time that moved by this part is news."""

_MOST_KINDS = 64


def credible(said: GoodputReport) -> bool:
    """Whether it can be true: every figure finite and in its range, each kind named once."""
    kinds = [kind for kind, _ in said.fits]
    return (
        0 < len(kinds) <= _MOST_KINDS
        and len(set(kinds)) == len(kinds)
        and all(0 < len(kind) <= 64 and _possible(fit) for kind, fit in said.fits)
        and isfinite(said.noise)
        and said.noise >= 0
        and min(said.noise_batch, said.seen_gpus, said.batch.size) >= 1
        and said.batch.accumulation >= 0
    )


def is_news(before: GoodputReport | None, said: GoodputReport) -> bool:
    """Whether it tells more than what was last told."""
    if before is None:
        return True
    known, new = dict(before.fits), dict(said.fits)
    return (
        (before.batch, before.seen_gpus) != (said.batch, said.seen_gpus)
        or known.keys() != new.keys()
        or _moved(before.noise, said.noise)
        or any(_refitted(known[kind], fit) for kind, fit in new.items())
    )


def _possible(fit: StepFit) -> bool:
    times = (*fit.compute, *fit.node, *fit.network, *fit.rack, fit.error)
    counts = (fit.gpus, fit.nodes)
    return (
        all(isfinite(time) and time >= 0 for time in times)
        and sum(fit.compute) > 0
        and 1 <= fit.gamma <= 10
        and fit.most_local >= 1
        and min(counts) >= 0
    )


def _refitted(before: StepFit, after: StepFit) -> bool:
    def times(fit: StepFit) -> tuple[float, ...]:
        return fit.compute[0] + fit.compute[1] * fit.most_local, fit.node[0], fit.network[0], fit.rack[0]

    grown = (before.gpus, before.nodes) != (after.gpus, after.nodes)
    return grown or any(_moved(old, new) for old, new in zip(times(before), times(after), strict=True))


def _moved(old: float, new: float) -> bool:
    return abs(new - old) > _MATERIAL * max(old, new)
