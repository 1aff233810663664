"""When a waiting job is expected to start, and a running one to end.

Starts are simulated; ends follow from declared work, as uncertain as declarations are, or from earlier runs.
"""

from math import exp, inf, log
from statistics import NormalDist

from shoal.core.lengths import JobLength, LengthView
from shoal.core.lifecycle import JobState
from shoal.core.units import Seconds, span
from shoal.live.accounts import Account
from shoal.live.job_lists import WAITING
from shoal.perf.work_prior import DECLARED_SPREAD
from shoal.wire.messages import StartForecast

_QUANTILES = (0.5, 0.1, 0.9)


def expected_start(account: Account, now: Seconds, found: StartForecast | None, age: Seconds) -> StartForecast | None:
    """Return the seconds until a waiting job starts, from a forecast that is ``age`` seconds old; None without one.

    It may be older than the crash after which the job is held back, or than the order to hold the job.
    """
    if found is None or account.state not in WAITING or account.held_by:
        return None
    held = account.state is JobState.HELD and account.held_until < inf
    least = account.held_until - now if held else 0.0
    return StartForecast(*(max(0.0, least, at - age) for at in (found.median, found.low, found.high)))


def expected_end(account: Account, now: Seconds, lengths: LengthView | None) -> StartForecast | None:
    """Return the seconds until a running job ends if it keeps its GPUs; None if its work or its rate is not known.

    Declared work is taken as lognormal about the declaration, given that it exceeds the work done; other work is as
    predicted by ``lengths``. No end is later than the time limit of the run.
    """
    work, most = account.spec.work, account.time_left(now)
    if account.state is not JobState.RUNNING or account.rate <= 0:
        return None
    if not work:
        left = predicted(account, now, lengths)
        if left is None:
            return None
        return StartForecast(*(min(most, part / account.rate) for part in (left.median, left.low, left.high)))
    done, normal = account.progress(now), NormalDist()
    below = normal.cdf(log(done / work) / DECLARED_SPREAD) if done > 0 else 0.0
    points = (min(below + part * (1.0 - below), 1.0 - 1e-9) for part in _QUANTILES)
    totals = (work * exp(DECLARED_SPREAD * normal.inv_cdf(max(point, 1e-9))) for point in points)
    return StartForecast(*(min(most, max(0.0, total - done) / account.rate) for total in totals))


def predicted(account: Account, now: Seconds, lengths: LengthView | None) -> JobLength | None:
    """Return the work left of a live job that declares none, predicted from earlier runs; None if it cannot be."""
    if lengths is None or account.spec.work is not None or not account.live:
        return None
    return lengths.given(account.number, account.progress(now))


def length_in_words(account: Account, now: Seconds, lengths: LengthView | None, best_speed: float) -> str:
    """Return a phrase on how long a job that declares no work will run on, and the runs it is predicted from; else "".

    ``best_speed`` is its rate on its best kind, 0 if that is not known.
    """
    left, speed = predicted(account, now, lengths), account.rate or best_speed
    if left is None or not speed:
        return ""
    most = account.time_left(now) if account.state is JobState.RUNNING else account.spec.time or inf
    low, median, high = (span(min(most, part / speed)) for part in (left.low, left.median, left.high))
    started = account.started is not None
    few = "having outlasted others" if started else "with few earlier runs to go by"
    runs = f"from {left.runs} earlier run{'s' * (left.runs != 1)} {left.of}" if left.runs else few
    return f"about {median} {'left' if started else 'of run'} (80 %: {low} to {high}), {runs}"
