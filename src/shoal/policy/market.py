"""The default policy ``shoal``: each job done by its fair finish, all by a common horizon, the smallest first.

No window and no solver: one sort each round. Each job has a predicted remaining run time R, an optimistic one r and a
pessimistic one R⁺, at its fastest and its slowest possible rate (``perf.regime_forecast``). A running job keeps
its GPUs until the round ends; until then only new jobs are ranked. Then jobs are served in this order, passing over
gangs that do not fit:

1. **due**: waiting longer would miss the fair finish a + α·c·(s + r), where a is the job's arrival, s the seconds it
   ran and c the contention: the weight that arrived since the oldest live job did, at most twice the live weight, per
   GPU and unit of the job's own weight; the largest value of this since the job arrived, and at least 1.4. Highest
   ρ = (now − a + r) / (c·(s + r)) first. When the due jobs need more GPUs than there are, no order can meet all their
   finishes, and no job is due.
2. **pressing**: R⁺, begun ``margin`` rounds from now, would end after the horizon. Longest R first.
3. all other jobs, fewest GPU-seconds gang·R for their weight and their ρ first (Smith's rule; the later, the heavier).

The **horizon** is the soonest time by which all live jobs can be done: now plus max(Σ gang·R / GPUs, max R). Capacity
that it does not need serves response times.

**Running jobs go on.** Near a limit jobs would be stopped and started in turns, at the cost of a restart each time: a
fair finish moves away while its job runs, since r is optimistic, and a pressing job no longer presses after a round.
So a running job is due and pressing three rounds sooner, and seven tenths of its remaining GPU time count.

**Rates that were never measured.** The error of the model's rates is learned from measured jobs: its mean corrects the
others, and its standard deviation σ widens R⁺ of an unmeasured job by e^(4σ), more than the error of the slowest of a
thousand jobs. So where rates are wrong long jobs run early for a round, which measures them, and where they are right
nothing is lost.

Jobs run on the gang they request. On several kinds of GPU times are those on the job's fastest kind, the horizon and c
count a slow GPU by the mean speed of jobs on it, and each job in turn takes the fastest kind with enough free GPUs,
running jobs where a move pays.

Proofs, measurements and weaknesses are in the page of the documentation that ``shoal policies shoal`` names.

References: ours. Zheng et al., NSDI 2023 (finish-time fairness, the predictor); Muntz and Coffman, 1970 (levels);
Smith, 1956 (the order of weighted completion times).
"""

from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s
from shoal.core.columns import sealed
from shoal.core.decision import Decision, Numbers, Verdicts
from shoal.core.reasons import LEASED, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.perf.regime_forecast import RULES, forecast
from shoal.policy.base import (
    MIGRATION,
    MigrationTuning,
    Served,
    any_on_slow_kind,
    check_round,
    explained,
    migration_preferences,
    round_end,
    serve,
)
from shoal.policy.carried_rows import match_rows
from shoal.policy.tuning import constant

DUE = ReasonTemplate(
    18,
    "DUE",
    "runs first: to be fair it is to be done by {fair finish:time}, and it takes "
    "{least predicted time left:span} more at best",
)
PRESSING = ReasonTemplate(
    19,
    "PRESSING",
    "runs: it takes {predicted time left:span} more, and if it waited not all jobs could be done by "
    "{common horizon:time}",
)
SMALLEST = ReasonTemplate(
    15,
    "SMALLEST",
    "runs: the {predicted GPU-seconds left:,.6g} GPU-seconds it still takes are among the least; its fair finish is"
    " {fair finish:time}",
)
HAS_TIME = ReasonTemplate(
    38,
    "HAS_TIME",
    "waits: smaller jobs go first; it takes {predicted time left:span} more and moves up at "
    "{latest time it moves up:time} at the latest, its fair finish being "
    "{fair finish:time}",
)


@dataclass(frozen=True, slots=True)
class MarketTuning:
    """Constants of the policy."""

    prior_error: float = constant(0.1, "standard deviation of log rate errors assumed before any is measured")
    prior_jobs: float = constant(2.0, "measured jobs that this assumption counts as")
    deviations: float = constant(4.0, "standard deviations by which an unmeasured job may run longer than predicted")
    grace_rounds: float = constant(3.0, "rounds by which a running job is due or pressing sooner than a waiting one")
    nearer: float = constant(0.7, "factor on the remaining GPU time of a running job that is neither")
    least_contention: float = constant(1.4, "contention of a job that arrived on an empty cluster")
    turnover: float = constant(2.0, "most weight that counts as arrived, in multiples of the live weight")
    migration: MigrationTuning = MIGRATION


_TUNING = MarketTuning()


@dataclass(frozen=True, slots=True, eq=False)
class _Outlook:
    """By job: predicted, optimistic and pessimistic seconds left (0 where it cannot run), log correction or NaN.

    ``basis``: the progress, batch sizes and gangs it was computed for; while a job's stay, its outlook stays valid.
    """

    predicted: Floats
    optimistic: Floats
    pessimistic: Floats
    correction: Floats
    basis: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Learned:
    """Of ended jobs that were measured: their number, the sum of log corrections, and the sum of their squares."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def with_jobs(self, corrections: Floats) -> "_Learned":
        """The same with these jobs' log corrections (NaN: not measured) added."""
        known = corrections[~np.isnan(corrections)]
        return _Learned(
            self.count + len(known), self.total + float(known.sum()), self.squares + float((known * known).sum())
        )

    def bias_and_error(self) -> tuple[float, float]:
        """Expected mean and standard deviation of the next job's log correction."""
        weight = self.count + _TUNING.prior_jobs
        bias = self.total / weight
        variance = (_TUNING.prior_jobs * _TUNING.prior_error**2 + self.squares) / weight - bias * bias
        return bias, sqrt(max(variance, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _MarketCarry:
    """The end of the round, the horizon, what was learned of rates, and the weight that arrived so far.

    By job: the weight that had arrived before it, the most weight that shared the cluster since, and the outlook.
    """

    end: Seconds
    horizon: Seconds
    learned: _Learned
    arrived: float
    rows: Indices
    arrived_before: Floats
    most_sharing: Floats
    outlook: _Outlook


_NONE = np.empty(0)
_NO_OUTLOOK = _Outlook(_NONE, _NONE, _NONE, _NONE, np.empty((3, 0)))
_START = _MarketCarry(-inf, -inf, _Learned(), 0.0, np.empty(0, dtype=np.intp), _NONE, _NONE, _NO_OUTLOOK)


@dataclass(frozen=True, slots=True, eq=False)
class _Ranking:
    """By job: its class (0 due, 1 pressing, 2 neither), sort key within it, fair finish, and time it moves up."""

    rank: Int8s
    key: Floats
    fair: Floats
    moves_up: Floats


@dataclass(frozen=True, slots=True)
class Market:
    """Fair finishes first, then a common horizon, then the smallest jobs.

    ``alpha`` is the factor α on fair finishes, ``margin`` the rounds before its latest start at which a job is
    pressing, ``rule`` how regimes are predicted, and ``noise`` an injected relative error of predictions.
    """

    reasons = (DUE, PRESSING, SMALLEST, HAS_TIME)
    tuning = _TUNING
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
        """Verdicts in the order above, reviewed at the end of the round if a job waits or may move to a faster kind."""
        columns, now = snapshot.columns, snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, _MarketCarry) else _START
        inside = now < before.end
        at, known = match_rows(before.rows, columns.rows)
        outlook = self._outlook(snapshot, before.outlook, at, known, inside)
        gone = np.ones(len(before.rows), dtype=bool)
        gone[at[known]] = False
        learned = before.learned.with_jobs(before.outlook.correction[gone])
        arrived, arrived_before, most_sharing = _arrived_weights(snapshot, before, at, known)
        horizon = before.horizon if inside else _horizon(snapshot, outlook)
        ranking = self._ranking(snapshot, outlook, learned.with_jobs(outlook.correction), most_sharing, horizon)
        kept = columns.held > 0 if inside else np.zeros(len(columns), dtype=bool)
        order = np.lexsort((ranking.key, ranking.rank, ~kept))
        stays = inside or len(snapshot.cluster.kinds) == 1
        served = serve(
            snapshot, order, preferences=None if stays else migration_preferences(snapshot, outlook.predicted)
        )
        end = before.end if inside else round_end(now, self.round)
        waiting = bool((snapshot.possible & (served.gpus == 0)).any()) or (inside and any_on_slow_kind(snapshot))
        # With no job waiting no review is scheduled at lease end, so LEASED is not reported.
        verdicts = _explain(snapshot, served, ranking, outlook, kept & waiting, horizon, end)
        carry = _MarketCarry(end, horizon, learned, arrived, columns.rows, arrived_before, most_sharing, outlook)
        return Decision(verdicts, end if waiting else inf, carry)

    def _outlook(self, snapshot: Snapshot, before: _Outlook, at: Indices, known: Flags, inside: bool) -> _Outlook:
        """Every job's outlook; within a round only new jobs' is computed, at its end that of jobs that changed."""
        columns = snapshot.columns
        basis = np.stack([columns.done, columns.batch_size, columns.gpus])
        values = np.zeros((4, len(columns)))
        values[3] = np.nan
        old, same = at[known], known.copy()
        same[known] = before.predicted[old] > 0.0
        if inside:
            basis[:, known] = before.basis[:, old]
        else:
            same[known] &= (before.basis[:, old] == basis[:, known]).all(axis=0)
        earlier = np.stack([before.predicted, before.optimistic, before.pessimistic, before.correction])
        values[:, same] = earlier[:, at[same]]
        for i in np.flatnonzero(~same & snapshot.possible).tolist():
            ahead = forecast(snapshot, snapshot.jobs.at(i), self.rule, self.noise)
            if isfinite(ahead.seconds):
                values[:3, i] = ahead.seconds, ahead.optimistic, ahead.pessimistic
            if ahead.correction is not None:
                values[3, i] = log(ahead.correction)
        sealed(values)
        sealed(basis)
        return _Outlook(values[0], values[1], values[2], values[3], basis)

    def _ranking(
        self, snapshot: Snapshot, outlook: _Outlook, learned: _Learned, most_sharing: Floats, horizon: Seconds
    ) -> _Ranking:
        columns, now = snapshot.columns, snapshot.now
        bias, error = learned.bias_and_error()
        unmeasured = np.isnan(outlook.correction)
        likely = np.where(unmeasured, exp(-bias), 1.0)
        widened = np.where(unmeasured, exp(_TUNING.deviations * error - bias), 1.0)
        predicted, optimistic = outlook.predicted * likely, outlook.optimistic * likely
        gpus = max(sum(snapshot.cluster.capacity), 1)
        contention = np.maximum(most_sharing / (columns.weight * gpus), _TUNING.least_contention)
        fair_seconds = contention * (columns.run_seconds + optimistic) / _mean_pace(snapshot)
        fair = columns.submitted + self.alpha * fair_seconds
        latest = horizon - outlook.pessimistic * widened - self.margin * self.round
        moves_up = np.minimum(fair - optimistic, latest)
        runs = columns.held > 0
        grace = np.where(runs, _TUNING.grace_rounds * self.round, 0.0)
        due = (fair - optimistic - grace <= now) & snapshot.possible
        if int(columns.gpus[due].sum()) > sum(snapshot.cluster.capacity):
            due[:] = False
        pressing = (latest - grace <= now) & ~due
        rank = np.where(due, 0, np.where(pressing, 1, 2)).astype(np.int8)
        ratio = (now - columns.submitted + optimistic) / np.maximum(fair_seconds, 1e-9)
        size = columns.gpus * predicted * np.where(runs, _TUNING.nearer, 1.0)
        worth = columns.weight * np.maximum(ratio, 1e-9)
        key = np.where(due, -ratio, np.where(pressing, -predicted, size / worth))
        return _Ranking(rank, key, fair, moves_up)


def _arrived_weights(
    snapshot: Snapshot, before: _MarketCarry, at: Indices, known: Flags
) -> tuple[float, Floats, Floats]:
    """The weight that has arrived; by job, the weight before it, and the most that shared the cluster with it."""
    weight = snapshot.columns.weight
    arrived = before.arrived + float(weight[~known].sum())
    arrived_before = np.full(len(weight), before.arrived)
    arrived_before[known] = before.arrived_before[at[known]]
    sharing = min(arrived - float(arrived_before.min(initial=arrived)), _TUNING.turnover * float(weight.sum()))
    most_sharing = np.full(len(weight), sharing)
    most_sharing[known] = np.maximum(sharing, before.most_sharing[at[known]])
    sealed(arrived_before)
    sealed(most_sharing)
    return arrived, arrived_before, most_sharing


def _horizon(snapshot: Snapshot, outlook: _Outlook) -> Seconds:
    """The soonest time by which all jobs that can run can be done; a slow kind counts by jobs' mean pace on it."""
    columns, capacity = snapshot.columns, np.asarray(snapshot.cluster.capacity, dtype=np.float64)
    area = columns.gpus * outlook.predicted
    total, gpus = float(columns.gpus @ outlook.predicted), float(capacity.sum())
    if len(capacity) > 1 and total > 0.0:
        gpus *= float(area @ _mean_pace(snapshot)) / total
    return snapshot.now + max(total / max(gpus, 1.0), float(outlook.predicted.max(initial=0.0)))


def _mean_pace(snapshot: Snapshot) -> Floats:
    """By job: its mean speed on the cluster's GPUs over that on its fastest kind; 1 on a cluster of one kind."""
    columns, capacity = snapshot.columns, np.asarray(snapshot.cluster.capacity, dtype=np.float64)
    if len(capacity) == 1:
        return np.ones(len(columns))
    mean = columns.speeds @ capacity / max(capacity.sum(), 1.0)
    pace: Floats = np.divide(mean, columns.best_speed, out=np.ones(len(mean)), where=columns.best_speed > 0.0)
    return np.where(pace > 0.0, pace, 1.0)


def _explain(
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
