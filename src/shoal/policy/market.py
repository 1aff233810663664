"""The house policy: everybody done by its fair finish, all of them done by a common horizon, the smallest first.

No window and no solver: one sort each round. Each job has a predicted remaining run time R, an optimistic one r and a
pessimistic one R⁺, with all of it at the fastest and at the slowest rate in sight (``perf.adaptation``). Whoever runs
keeps its GPUs until the round ends, and until then only newcomers are judged; then jobs are served in this order,
passing over gangs that do not fit:

1. **due**: waiting longer would miss its fair finish a + α·c·(s + r), a being its arrival, s the seconds it ran and c
   the contention: the weight that came since the oldest live job did, at most twice what is live, per GPU and unit of
   its own weight; the most that this was since it came, and at least 1.4. Worst ratio ρ = (now − a + r) / (c·(s + r))
   first. When the due ask for more GPUs than there are, no order can keep all their finishes, and nobody is due.
2. **pressing**: R⁺, begun ``margin`` rounds from now, would end after the horizon. Longest R first.
3. everybody else, fewest GPU-seconds gang·R for its weight and its ρ first (Smith's rule: who is behind weighs more).

The **horizon** is the soonest that all live jobs can be done: now plus max(Σ gang·R / GPUs, max R). What is not needed
to keep it is free to serve response times.

**Who runs goes on.** Near a limit jobs would be stopped and started in turns, a restart each time: a fair finish moves
away while its job runs, r being optimistic, and who was pressing is so no longer after a round. So whoever runs is
due and pressing three rounds sooner, and of what it has left seven tenths count.

**Rates that were never measured.** By how much the model's rates are off is learned from the jobs that were: their
mean corrects the others, and their spread σ widens R⁺ of an unmeasured job by e^(4σ), more than the slowest of a
thousand jobs is off. So where rates are misjudged long jobs run early for a round, which measures them, and where they
are not, nothing is lost.

Jobs run on the gang they ask for. On several kinds of GPU times are those of the kind that suits a job best, the
horizon and c count a slow GPU for what jobs get out of it, and everybody in turn takes the fastest kind that has room,
running jobs where a move pays.

What is proved of this, what was measured and where it is weak: docs/house-policy.md.

References: ours. Zheng et al., NSDI 2023 (finish-time fairness, the predictor); Muntz and Coffman, 1970 (levels);
Smith, 1956 (the order of weighted completion times).
"""

from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.decision import Decision, Numbers, Verdicts
from shoal.core.reasons import LEASED, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.perf.adaptation import RULES, forecast
from shoal.policy.base import Served, any_on_slow_kind, check_round, explained, migration_preferences, round_end, serve

DUE = ReasonTemplate(
    18,
    "DUE",
    "runs first: to be fair it is to be done by t = {0:,.6g} s, and it takes {1:,.6g} s more at best",
    ("fair finish in seconds", "least predicted seconds left"),
)
PRESSING = ReasonTemplate(
    19,
    "PRESSING",
    "runs: it takes {0:,.6g} s more, and if it waited not all could be done by t = {1:,.6g} s",
    ("predicted seconds left", "common horizon in seconds"),
)
SMALLEST = ReasonTemplate(
    15,
    "SMALLEST",
    "runs: the {0:,.6g} GPU-seconds it still takes are among the least; its fair finish is t = {1:,.6g} s",
    ("predicted GPU-seconds left", "fair finish in seconds"),
)
HAS_TIME = ReasonTemplate(
    38,
    "HAS_TIME",
    "waits: smaller jobs go first; it takes {0:,.6g} s more and moves up at t = {1:,.6g} s at the latest, "
    "its fair finish being t = {2:,.6g} s",
    ("predicted seconds left", "latest time it moves up in seconds", "fair finish in seconds"),
)

_PRIOR_ERROR, _PRIOR_JOBS = 0.1, 2.0
"""How far off rates are taken to be before any was measured, and as how many measured jobs that counts."""

_DEVIATIONS = 4.0
"""How many standard deviations longer than predicted an unmeasured job may be: one late job ends the whole late."""

_GRACE_ROUNDS = 3.0
"""How much sooner a job is due, or pressing, that runs than one that waits."""

_NEARER = 0.7
"""As what part of the GPU time it has left that of a job that runs counts, among those neither due nor pressing."""

_LEAST_CONTENTION = 1.4
"""The contention of whoever came to an empty cluster: else it were due at once, and so would be everybody."""

_TURNOVER = 2.0
"""At most how many times what is live counts as having come: beside a job that runs for months, thousands do."""


@dataclass(frozen=True, slots=True, eq=False)
class _Outlook:
    """By job: predicted and extreme seconds left (0 where it cannot run), and its correction's logarithm, or NaN.

    ``done``, ``batch`` and ``gang`` are what it was made for: while they stay, so does it.
    """

    predicted: Floats
    optimistic: Floats
    pessimistic: Floats
    correction: Floats
    done: Floats
    batch: Int32s
    gang: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class _Learned:
    """Of jobs that ended: how many were measured, the sum of their logarithmic corrections, and that of the squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def with_jobs(self, corrections: Floats) -> "_Learned":
        """The same with more of them."""
        known = corrections[~np.isnan(corrections)]
        return _Learned(
            self.count + len(known), self.total + float(known.sum()), self.squares + float((known * known).sum())
        )

    def bias_and_error(self) -> tuple[float, float]:
        """The mean and the standard deviation to expect of the next."""
        weight = self.count + _PRIOR_JOBS
        bias = self.total / weight
        variance = (_PRIOR_JOBS * _PRIOR_ERROR**2 + self.squares) / weight - bias * bias
        return bias, sqrt(max(variance, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _MarketCarry:
    """What is carried: the end of the round, the horizon, what was learned, and how much weight came so far.

    By job: how much had come before it did, the most weight that shared the cluster since, and the outlook.
    """

    end: Seconds
    horizon: Seconds
    learned: _Learned
    came: float
    rows: Indices
    came_before: Floats
    crowd: Floats
    outlook: _Outlook


_NO_FLOATS, _NO_INTS = np.empty(0), np.empty(0, dtype=np.int32)
_NO_OUTLOOK = _Outlook(_NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_INTS, _NO_INTS)
_NOTHING = _MarketCarry(-inf, -inf, _Learned(), 0.0, np.empty(0, dtype=np.intp), _NO_FLOATS, _NO_FLOATS, _NO_OUTLOOK)


@dataclass(frozen=True, slots=True, eq=False)
class _Ranking:
    """By job: its class (0 due, 1 pressing, 2 neither), its place in the class, its fair finish, when it moves up."""

    rank: Int8s
    key: Floats
    fair: Floats
    moves_up: Floats


@dataclass(frozen=True, slots=True)
class Market:
    """The house policy.

    ``alpha`` is the fair stretch, ``margin`` how many rounds before it is too late a job is pressing, ``rule`` how
    regimes are predicted, and ``noise`` an injected error of predictions.
    """

    reasons = (DUE, PRESSING, SMALLEST, HAS_TIME)
    round: float = 120.0
    alpha: float = 0.98
    margin: float = 3.0
    rule: str = "restatement"
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_round(self.round)
        if not 0.0 < self.alpha <= inf:
            raise ValueError("alpha must be above 0")
        if not 0.0 <= self.margin < inf:
            raise ValueError("margin must be a finite number of rounds, at least 0")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, not {self.rule!r}")
        if not 0.0 <= self.noise < 1.0:
            raise ValueError("noise must be from 0 to below 1")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the round if anybody waits."""
        columns, now = snapshot.columns, snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, _MarketCarry) else _NOTHING
        inside = now < before.end
        at, known = _matched(before.rows, columns.rows)
        outlook = self._outlook(snapshot, before.outlook, at, known, inside)
        gone = np.ones(len(before.rows), dtype=bool)
        gone[at[known]] = False
        learned = before.learned.with_jobs(before.outlook.correction[gone])
        came, came_before, crowd = _crowd(snapshot, before, at, known)
        horizon = before.horizon if inside else _horizon(snapshot, outlook)
        ranking = self._ranking(snapshot, outlook, learned.with_jobs(outlook.correction), crowd, horizon)
        kept = columns.held > 0 if inside else np.zeros(len(columns), dtype=bool)
        order = np.lexsort((ranking.key, ranking.rank, ~kept))
        stays = inside or len(snapshot.cluster.kinds) == 1
        served = serve(
            snapshot, order, preferences=None if stays else migration_preferences(snapshot, outlook.predicted)
        )
        end = before.end if inside else round_end(now, self.round)
        waiting = bool((snapshot.possible & (served.gpus == 0)).any()) or (inside and any_on_slow_kind(snapshot))
        # A lease that nobody waits for ends unnoticed: it is not spoken of.
        verdicts = _told(snapshot, served, ranking, outlook, kept & waiting, horizon, end)
        carry = _MarketCarry(end, horizon, learned, came, columns.rows, came_before, crowd, outlook)
        return Decision(verdicts, end if waiting else inf, carry)

    def _outlook(self, snapshot: Snapshot, before: _Outlook, at: Indices, known: Flags, inside: bool) -> _Outlook:
        """What every job has before it; made anew at the end of a round, for those of which something changed."""
        columns = snapshot.columns
        done, batch, gang = columns.done.copy(), columns.batch_size.copy(), columns.gpus.copy()
        predicted, optimistic, pessimistic = (np.zeros(len(done)) for _ in range(3))
        correction = np.full(len(done), np.nan)
        old, same = at[known], known.copy()
        same[known] = before.predicted[old] > 0.0
        if inside:
            done[known], batch[known], gang[known] = before.done[old], before.batch[old], before.gang[old]
        else:
            same[known] &= (before.done[old] == done[known]) & (before.batch[old] == batch[known])
            same[known] &= before.gang[old] == gang[known]
        old = at[same]
        predicted[same], optimistic[same] = before.predicted[old], before.optimistic[old]
        pessimistic[same], correction[same] = before.pessimistic[old], before.correction[old]
        for i in np.flatnonzero(~same & snapshot.possible).tolist():
            ahead = forecast(snapshot, snapshot.jobs.at(i), self.rule, self.noise)
            if isfinite(ahead.seconds):
                predicted[i], optimistic[i], pessimistic[i] = ahead.seconds, ahead.optimistic, ahead.pessimistic
            if ahead.correction is not None:
                correction[i] = log(ahead.correction)
        columns_made = (predicted, optimistic, pessimistic, correction, done, batch, gang)
        for column in columns_made:
            column.flags.writeable = False
        return _Outlook(*columns_made)

    def _ranking(
        self, snapshot: Snapshot, outlook: _Outlook, learned: _Learned, crowd: Floats, horizon: Seconds
    ) -> _Ranking:
        columns, now = snapshot.columns, snapshot.now
        bias, error = learned.bias_and_error()
        unmeasured = np.isnan(outlook.correction)
        likely = np.where(unmeasured, exp(-bias), 1.0)
        widened = np.where(unmeasured, exp(_DEVIATIONS * error - bias), 1.0)
        predicted, optimistic = outlook.predicted * likely, outlook.optimistic * likely
        gpus = max(sum(snapshot.cluster.capacity), 1)
        contention = np.maximum(crowd / (columns.weight * gpus), _LEAST_CONTENTION)
        fair_seconds = contention * (columns.run_seconds + optimistic) / _mean_pace(snapshot)
        fair = columns.submitted + self.alpha * fair_seconds
        latest = horizon - outlook.pessimistic * widened - self.margin * self.round
        moves_up = np.minimum(fair - optimistic, latest)
        runs = columns.held > 0
        grace = np.where(runs, _GRACE_ROUNDS * self.round, 0.0)
        due = (fair - optimistic - grace <= now) & snapshot.possible
        if int(columns.gpus[due].sum()) > sum(snapshot.cluster.capacity):
            due[:] = False
        pressing = (latest - grace <= now) & ~due
        rank = np.where(due, 0, np.where(pressing, 1, 2)).astype(np.int8)
        ratio = (now - columns.submitted + optimistic) / np.maximum(fair_seconds, 1e-9)
        size = columns.gpus * predicted * np.where(runs, _NEARER, 1.0)
        worth = columns.weight * np.maximum(ratio, 1e-9)
        key = np.where(due, -ratio, np.where(pressing, -predicted, size / worth))
        return _Ranking(rank, key, fair, moves_up)


def _crowd(snapshot: Snapshot, before: _MarketCarry, at: Indices, known: Flags) -> tuple[float, Floats, Floats]:
    """How much weight came so far, how much of it before each job, and the most that shared the cluster with each."""
    weight = snapshot.columns.weight
    came = before.came + float(weight[~known].sum())
    came_before = np.full(len(weight), before.came)
    came_before[known] = before.came_before[at[known]]
    sharing = min(came - float(came_before.min(initial=came)), _TURNOVER * float(weight.sum()))
    crowd = np.full(len(weight), sharing)
    crowd[known] = np.maximum(sharing, before.crowd[at[known]])
    for column in (came_before, crowd):
        column.flags.writeable = False
    return came, came_before, crowd


def _horizon(snapshot: Snapshot, outlook: _Outlook) -> Seconds:
    """The soonest that all which can run can be done; a slow kind of GPU counts for as much as jobs get out of it."""
    columns, capacity = snapshot.columns, np.asarray(snapshot.cluster.capacity, dtype=np.float64)
    area = columns.gpus * outlook.predicted
    total, room = float(columns.gpus @ outlook.predicted), float(capacity.sum())
    if len(capacity) > 1 and total > 0.0:
        room *= float(area @ _mean_pace(snapshot)) / total
    return snapshot.now + max(total / max(room, 1.0), float(outlook.predicted.max(initial=0.0)))


def _mean_pace(snapshot: Snapshot) -> Floats:
    """By job: its mean speed on the cluster's GPUs beside that on the kind that suits it best; on one kind 1."""
    columns, capacity = snapshot.columns, np.asarray(snapshot.cluster.capacity, dtype=np.float64)
    if len(capacity) == 1:
        return np.ones(len(columns))
    mean = columns.speeds @ capacity / max(capacity.sum(), 1.0)
    pace: Floats = np.divide(mean, columns.best_speed, out=np.ones(len(mean)), where=columns.best_speed > 0.0)
    return np.where(pace > 0.0, pace, 1.0)


def _matched(old: Indices, new: Indices) -> tuple[Indices, Flags]:
    """Where each new row stood among the old ones, and whether it did."""
    if not len(old):
        return np.zeros(len(new), dtype=np.intp), np.zeros(len(new), dtype=bool)
    at = np.minimum(np.searchsorted(old, new), len(old) - 1)
    return at, old[at] == new


def _told(
    snapshot: Snapshot,
    served: Served,
    ranking: _Ranking,
    outlook: _Outlook,
    kept: Flags,
    horizon: Seconds,
    end: Seconds,
) -> Verdicts:
    runs = served.gpus > 0
    by_rank = np.array([DUE.code, PRESSING.code, SMALLEST.code])[ranking.rank]
    waits = np.where(ranking.rank < 2, NO_ROOM.code, HAS_TIME.code)
    codes = np.where(runs, np.where(kept, LEASED.code, by_rank), waits)
    numbers: Numbers = {
        DUE: (ranking.fair, outlook.optimistic),
        PRESSING: (outlook.predicted, horizon),
        SMALLEST: (snapshot.columns.gpus * outlook.predicted, ranking.fair),
        LEASED: (end,),
        NO_ROOM: (snapshot.columns.gpus, served.most_free),
        HAS_TIME: (outlook.predicted, np.maximum(ranking.moves_up, end), ranking.fair),
    }
    return explained(snapshot, served.gpus, codes, numbers, served.kinds)
