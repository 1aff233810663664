"""Shockwave: windows of rounds planned for the most welfare over time, weighted by predicted unfairness.

A plan says which jobs run in each of the next ``rounds`` rounds (``solve.window``). It maximises Σ budget · ρ^k ·
welfare(progress after the window) − λ · makespan level: ρ is a job's predicted finish-time fairness, its gains follow
the regimes it is predicted to train through (``perf.regime_forecast``), and the level is the time that the longest job
has left after the window. A new plan is made, at the end of a round, when jobs have arrived or ended, when one changed
its batch size (``mode=lazy`` ignores that until the window ends), when GPUs were lost or returned, and when the window
ends; else the plan in force is followed. GPUs that it leaves free go to waiting jobs at once, in its order.

Choices of ours, where the paper is silent or its figures contradict it; docs/shockwave.md has the figures:

- ρ counts the run time left alone from now (R, not R · N), at the job's fastest known batch size, so that a job wrongly
  predicted to stay slow is not recognised too late; N is the most live jobs at once since the job arrived, over GPUs.
  ``rho=mean`` is eq. 9 as printed: N averaged over the job's life, and R · N with R as predicted.
- ``welfare`` is ``linear``, in fractions of the work left: a round is worth most to jobs that it brings nearest to
  their end. ``slopes`` and ``log`` are the published code's and the paper's, in fractions of all work.
- Welfare does not order rounds. Jobs with the most budget · ρ^k for the GPU time they have left go first (Smith's rule,
  which minimises the weighted sum of completion times on one machine); a running job's time left counts
  ``TUNING.nearer``, so that its rounds follow each other. Jobs that the makespan forces go before all of them once they
  have no round to lose. ``layout=exact`` keeps the counts of most welfare instead, and with them postpones short jobs
  as long as the window allows: re-planned every round, it does so again and again.
- For the makespan a job's run time counts ``TUNING.margin`` rounds more, for a restart or a late change, but never more
  than the soonest end of all jobs: a larger margin would raise the level, and leave the next longest jobs without
  theirs. A window is never longer than the makespan: else the level would force nothing.
- Gangs ask for one node; the paper's jobs are as fast across nodes.
- Z0 makes λ a pure number, as in the paper. From 3 to infinity (the level before all else) it changed next to nothing
  we saw; at 1 some makespan is given up for jobs that would be treated unfairly.

``ahead`` is how many seconds before a round's end the next plan is made, 0 for at the end. A plan that is not ready by
then is not waited for: the one in force stays, and new jobs get free GPUs. ``budgets`` gives weights to each ``job``,
or to each ``tenant`` (its largest weight, split among its jobs by weight). Each kind of GPU is planned by itself; jobs
go, in the order of service, to the kind where they would end first, and running jobs change theirs only for a gain of
more than a round.

References: Shockwave (NSDI '23); ρ after Themis (NSDI '20).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from shoal.core.arrays import Floats, Int8s, Int32s
from shoal.core.columns import sealed
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.perf.regime_forecast import RULES
from shoal.policy.base import all_fit, any_on_slow_kind, check_round, prefer_kind, round_end, serve
from shoal.policy.carried_rows import match_rows
from shoal.policy.shockwave.carry import JobContention, JobForecasts, ShockwaveCarry, WindowPlan
from shoal.policy.shockwave.fairness import MEASURES, heading_for, met_contention
from shoal.policy.shockwave.forecasts import job_forecasts
from shoal.policy.shockwave.reasons import REASONS, infeasible_verdicts, window_verdicts
from shoal.policy.shockwave.tuning import TUNING
from shoal.policy.shockwave.welfare import SHAPES, part_done, welfare
from shoal.policy.shockwave.window_jobs import WindowDraft, WindowJobs, assign_kinds
from shoal.solve.window import Claims, plan

_CHOICES = {
    "mode": ("reactive", "lazy"),
    "welfare": SHAPES,
    "layout": ("early", "exact"),
    "budgets": ("job", "tenant"),
    "predictor": RULES,
    "rho": MEASURES,
}


@dataclass(frozen=True, slots=True)
class Shockwave:
    """Plans of ``rounds`` rounds of ``round`` seconds, for welfare weighted by ρ to the power ``k``."""

    reasons = REASONS
    tuning = TUNING
    k: float = 3.0
    lam: float = 10.0
    rounds: int = 20
    round: float = 120.0
    mode: str = "reactive"
    welfare: str = "linear"
    layout: str = "early"
    budgets: str = "job"
    predictor: str = "restatement"
    rho: str = "peak"
    ahead: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_round(self.round)
        if not (isfinite(self.k) and 0.0 <= self.k <= 20.0):
            raise ValueError(f"k must be a power from 0 to 20, not {self.k}")
        if not self.lam >= 0.0:
            raise ValueError(f"lam must be a number, at least 0, or inf, not {self.lam}")
        if not 1 <= self.rounds <= 1000:
            raise ValueError(f"rounds must be a number of rounds from 1 to 1000, not {self.rounds}")
        if not 0.0 <= self.ahead < self.round:
            raise ValueError(f"ahead must be seconds from 0 up to below the round, not {self.ahead}")
        if not 0.0 <= self.noise < 1.0:
            raise ValueError(f"noise must be from 0 to below 1, not {self.noise}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the round if some job waits."""
        now = snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, ShockwaveCarry) else None
        inside = before is not None and now < before.ends
        ends = before.ends if before is not None and inside else round_end(now, self.round)
        carry = ShockwaveCarry(ends, snapshot.columns.rows, met_contention(snapshot, before))
        settled = all_fit(snapshot)
        if settled is None and not snapshot.possible.any():
            settled = infeasible_verdicts(snapshot)
        if settled is not None:
            return Decision(settled, inf, carry)
        if before is not None:
            carry = replace(carry, forecasts=before.forecasts, plan=before.plan, next_plan=before.next_plan)
        carry = self._planned(snapshot, carry, inside)
        assert carry.plan is not None
        assert carry.forecasts is not None
        turn = min(max(round((ends - self.round - carry.plan.begins) / self.round), 0), carry.plan.rounds - 1)
        gpus, kinds = _serve_round(snapshot, carry.plan, turn, inside)
        rho = heading_for(snapshot, carry.forecasts, carry.contention, self.rho)
        verdicts = window_verdicts(snapshot, carry.plan, turn, self.round, gpus, kinds, rho, moving=not inside)
        if not (snapshot.possible & (gpus == 0)).any() and not (inside and any_on_slow_kind(snapshot)):
            return Decision(verdicts, inf, carry)
        early = ends - self.ahead
        return Decision(verdicts, early if now < early else ends, carry)

    def _planned(self, snapshot: Snapshot, carry: ShockwaveCarry, inside: bool) -> ShockwaveCarry:
        """Return the carry with the plan to follow now, forecasts of all jobs, and, if it is due, the next plan."""
        force, next_plan = carry.plan, carry.next_plan
        if not inside and next_plan is not None:
            force, next_plan = next_plan, None
        over = force is not None and snapshot.now >= force.begins + (force.rounds - 0.5) * self.round
        at_once = force is None or (not inside and (over or (not self.ahead and self._due(snapshot, force))))
        soon = inside and next_plan is None and snapshot.now >= carry.ends - self.ahead
        soon = soon and force is not None and (self._due(snapshot, force) or self._last(force, carry.ends))
        renew, before = at_once or soon, carry.forecasts
        known = job_forecasts(
            snapshot, before, self.predictor, self.rounds, self.round, renew=renew, noise=self.noise
        )  # fmt: skip
        if at_once:
            force = self._window(snapshot, known, carry.contention, carry.ends - self.round)
        elif soon:
            next_plan = self._window(snapshot, known, carry.contention, carry.ends)
        return replace(carry, forecasts=known, plan=force, next_plan=next_plan)

    def _due(self, snapshot: Snapshot, force: WindowPlan) -> bool:
        """Whether jobs, capacity or batch sizes changed since the plan was made."""
        columns = snapshot.columns
        if force.capacity != snapshot.cluster.capacity or not np.array_equal(force.rows, columns.rows):
            return True
        return self.mode == "reactive" and not np.array_equal(force.batches, columns.batch_size)

    def _last(self, force: WindowPlan, ends: Seconds) -> bool:
        return ends >= force.begins + (force.rounds - 0.5) * self.round

    def _window(self, snapshot: Snapshot, known: JobForecasts, met: JobContention, begins: Seconds) -> WindowPlan:
        columns, cluster = snapshot.columns, snapshot.cluster
        rho = heading_for(snapshot, known, met, self.rho)
        speeds = np.where(snapshot.possible[:, None], columns.speeds, 0.0)
        kinds = np.where(columns.held > 0, columns.kind, -1).astype(np.int8)
        jobs = WindowJobs(columns.gpus, speeds, self._budgets(snapshot), rho, kinds, columns.run_seconds, known)
        draft = self.draft(jobs, cluster.capacity)
        for array in (draft.runs, draft.rank, draft.kinds):
            sealed(array)
        gap = max((found.gap for found in draft.windows), default=0.0)
        batches = columns.batch_size
        return WindowPlan(begins, columns.rows, draft.runs, draft.kinds, draft.rank, batches, cluster.capacity, gap)

    def draft(self, jobs: WindowJobs, capacity: Sequence[int]) -> WindowDraft:
        """A window for jobs on ``capacity`` GPUs of each kind, kind by kind."""
        known, gpus, weight = jobs.known, jobs.gpus, jobs.budget * jobs.rho**self.k
        service = known.optimistic * gpus * np.where(jobs.kinds >= 0, TUNING.nearer, 1.0)
        order = np.argsort(service / weight, kind="stable")
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = np.arange(len(order))
        kinds, pace = assign_kinds(jobs, capacity, order, self.round)
        after = part_done(known.done, known.gained * pace[:, None], known.whole, self.welfare)
        worth = weight[:, None] * welfare(after, self.welfare)
        horizon = self._horizon(jobs, capacity, kinds, pace)
        runs, windows, objective = np.zeros((len(gpus), horizon), dtype=bool), [], 0.0
        for kind, available in enumerate(capacity):
            here = order[kinds[order] == kind]
            if not len(here):
                continue
            rate = pace[here] * self.round
            left, alone = known.seconds[here] / rate, known.optimistic[here] / rate
            full = float(gpus[here] @ alone) / available
            left = np.minimum(left + TUNING.margin, max(full, float(alone.max())))
            interpolated = float((jobs.ran[here] + known.seconds[here] / pace[here]).sum())
            price = self.lam * len(here) * available * self.round / interpolated
            claims = Claims(gpus[here], worth[here, : horizon + 1], left)
            found = plan(claims, available, price, least=full - horizon, early=self.layout == "early")
            runs[here] = found.runs
            windows.append(found)
            objective += found.welfare - (price * found.level if isfinite(price) else 0.0)
        return WindowDraft(runs, rank, kinds, tuple(windows), objective)

    def _horizon(self, jobs: WindowJobs, capacity: Sequence[int], kinds: Int8s, pace: Floats) -> int:
        """Return the rounds to plan: at most the makespan of the live jobs, or its level would force nothing."""
        able = kinds >= 0
        alone = jobs.known.optimistic[able] / pace[able]
        areas = np.bincount(kinds[able], alone * jobs.gpus[able], len(capacity))
        makespan = max(float((areas / np.maximum(capacity, 1)).max()), float(alone.max()))
        return int(np.clip(np.ceil(makespan / self.round), 1, self.rounds))

    def _budgets(self, snapshot: Snapshot) -> Floats:
        columns = snapshot.columns
        if self.budgets == "job":
            return columns.weight
        count = len(snapshot.tenant_service)
        shares = np.bincount(columns.tenant, columns.weight * snapshot.possible, count)
        most = np.zeros(count)
        np.maximum.at(most, columns.tenant, columns.weight)
        split: Floats = most[columns.tenant] * columns.weight / np.maximum(shares[columns.tenant], columns.weight)
        return split


def _serve_round(snapshot: Snapshot, plan: WindowPlan, turn: int, inside: bool) -> tuple[Int32s, Int8s | None]:
    """Return GPUs by job and, with several kinds, their kind: planned jobs first, then waiting ones that fit.

    Planned and waiting jobs are each in the plan's order. Inside a round running jobs keep their GPUs before all
    others.
    """
    columns = snapshot.columns
    at, known = match_rows(plan.rows, columns.rows)
    planned = known & plan.runs[at, turn]
    kept = (columns.held == columns.gpus) & inside
    rank = np.where(known, plan.rank[at], len(plan.rows))
    order = np.lexsort((rank, ~planned, ~kept))
    order = order[snapshot.possible[order]]
    wanted = np.where(kept, columns.kind, np.where(known, plan.kinds[at], -1))
    served = serve(snapshot, order, preferences=prefer_kind(snapshot, wanted))
    return served.gpus, served.kinds
