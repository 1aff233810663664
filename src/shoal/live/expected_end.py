"""When a running job is expected to end: its declared work, as uncertain as declarations are, at its present rate."""

from math import exp, log
from statistics import NormalDist

from shoal.core.lifecycle import JobState
from shoal.core.units import Seconds
from shoal.live.accounts import Account
from shoal.perf.work_prior import DECLARED_SPREAD
from shoal.wire.messages import StartForecast

_QUANTILES = (0.5, 0.1, 0.9)


def expected_end(account: Account, now: Seconds) -> StartForecast | None:
    """Return the seconds until a running job ends if it keeps its GPUs; None if its work or rate is not known.

    The work is lognormal about the declared one, given that it is more than is done.
    """
    work = account.spec.work
    if account.state is not JobState.RUNNING or not work or account.rate <= 0:
        return None
    done, normal = account.progress(now), NormalDist()
    below = normal.cdf(log(done / work) / DECLARED_SPREAD) if done > 0 else 0.0
    points = (min(below + part * (1.0 - below), 1.0 - 1e-9) for part in _QUANTILES)
    totals = (work * exp(DECLARED_SPREAD * normal.inv_cdf(max(point, 1e-9))) for point in points)
    return StartForecast(*(max(0.0, total - done) / account.rate for total in totals))
