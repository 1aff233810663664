"""Shockwave: windows of rounds planned for the most welfare over time, who may finish unfairly late weighing more.

A plan says which jobs run in each of the next ``rounds`` rounds (``solve.window``). It maximises Σ budget · ρ^k ·
welfare(progress after the window) − λ · makespan level: ρ is the finish-time fairness a job is heading for, its gains
know the regimes it is predicted to train through (``perf.adaptation``), and the level is what the longest job will have
left after the window. A new plan is made, at the end of a round, when jobs have come or gone, when one changed its
batch size (``mode=lazy`` leaves that until the window is over), when GPUs were lost or returned, and when the window
is over; else the plan in force is followed. GPUs that it leaves free go to whoever waits, in the plan's order, at once.

Choices of ours, where the paper is silent or its figures speak against it; docs/shockwave.md has the figures:

- ρ counts the run time left alone from now (R, not R · N), at the job's fastest known batch size, so that one that was
  predicted to stay slow is not told too late; and N is the most live jobs at once since the job came, over GPUs.
- ``welfare`` is ``linear``, in parts of what a job has left: a round is worth most to those it brings nearest to their
  end. ``slopes`` and ``log`` are the published code's and the paper's, in parts of all its work.
- The worth of a plan does not say which rounds come first. Those with the most budget · ρ^k for the GPU time they have
  left do (Smith's rule, which makes the weighted sum of completion times least on one machine); who runs already
  counts as nearer to its end, so that rounds follow each other. What the makespan forces goes before all of them once
  it has no round to lose. ``layout=exact`` keeps the counts of most welfare instead, and with them postpones short
  jobs as long as the window allows: re-planned every round, it does so again and again.
- A job's run time counts ``_MARGIN`` rounds more where the makespan is concerned, but never more than the soonest that
  all can be done: a margin beyond that would raise the level, and leave the next longest jobs without theirs. And a
  window is never longer than the makespan: else nothing in it would press.
- Gangs ask to sit on one node; the paper's jobs do not mind distance.
- Z0 makes λ a pure number, as in the paper. From 3 to infinity (the level before all else) it changed next to nothing
  we saw; at 1 some makespan goes to whoever would be treated unfairly for it.

``ahead`` is how long before a round's end the next plan is made, 0 for at the end. A plan that was not made by then
is not waited for: the one in force goes on, and newcomers are filled in. ``budgets`` says whom weights are given to:
each ``job``, or each ``tenant`` (its largest weight, split among its jobs by weight). A kind of GPU is planned by
itself; jobs are dealt out in the order of service, each to the kind where it would be done first, and those that run
leave theirs only for more than a round's gain.

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
from shoal.perf.adaptation import RULES
from shoal.policy.base import all_fit, any_on_slow_kind, check_round, round_end
from shoal.policy.shockwave.carry import Outlooks, ShockwaveCarry, WindowPlan, places
from shoal.policy.shockwave.claimants import Claimants, Draft, dealt_out, fairness
from shoal.policy.shockwave.outlook import outlooks
from shoal.policy.shockwave.reasons import REASONS, nobody, told
from shoal.policy.shockwave.seats import seated
from shoal.policy.shockwave.tuning import TUNING
from shoal.policy.shockwave.welfare import SHAPES, part_done, welfare
from shoal.solve.window import Claims, plan

_MARGIN = TUNING.margin
"""How many rounds longer than predicted a job is taken to run: what a restart or a late change may cost it."""

_NEARER = TUNING.nearer
"""As what part of the time it has left that of a job that runs counts, in the order of rounds."""

_CHOICES = {
    "mode": ("reactive", "lazy"),
    "welfare": SHAPES,
    "layout": ("early", "exact"),
    "budgets": ("job", "tenant"),
    "predictor": RULES,
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
    ahead: float = 0.0

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
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the round if anybody waits."""
        now = snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, ShockwaveCarry) else None
        inside = before is not None and now < before.ends
        ends = before.ends if before is not None and inside else round_end(now, self.round)
        memory = ShockwaveCarry(ends, snapshot.columns.rows, _crowd(snapshot, before))
        settled = all_fit(snapshot)
        if settled is None and not snapshot.possible.any():
            settled = nobody(snapshot)
        if settled is not None:
            return Decision(settled, inf, memory)
        if before is not None:
            memory = replace(memory, outlooks=before.outlooks, plan=before.plan, coming=before.coming)
        memory = self._planned(snapshot, memory, inside)
        assert memory.plan is not None
        assert memory.outlooks is not None
        turn = min(max(round((ends - self.round - memory.plan.begins) / self.round), 0), memory.plan.rounds - 1)
        gpus, kinds = seated(snapshot, memory.plan, turn, inside)
        rho = _fairness(snapshot, memory.outlooks, memory.crowd)
        verdicts = told(snapshot, memory.plan, turn, self.round, gpus, kinds, rho, moving=not inside)
        if not (snapshot.possible & (gpus == 0)).any() and not (inside and any_on_slow_kind(snapshot)):
            return Decision(verdicts, inf, memory)
        early = ends - self.ahead
        return Decision(verdicts, early if now < early else ends, memory)

    def _planned(self, snapshot: Snapshot, memory: ShockwaveCarry, inside: bool) -> ShockwaveCarry:
        """The memory with the plan to follow now, outlooks for everyone, and the next plan if it is time for it."""
        force, coming = memory.plan, memory.coming
        if not inside and coming is not None:
            force, coming = coming, None
        over = force is not None and snapshot.now >= force.begins + (force.rounds - 0.5) * self.round
        at_once = force is None or (not inside and (over or (not self.ahead and self._due(snapshot, force))))
        soon = inside and coming is None and snapshot.now >= memory.ends - self.ahead
        soon = soon and force is not None and (self._due(snapshot, force) or self._last(force, memory.ends))
        known = outlooks(snapshot, memory.outlooks, self.predictor, self.rounds, self.round, renew=at_once or soon)
        if at_once:
            force = self._window(snapshot, known, memory.crowd, memory.ends - self.round)
        elif soon:
            coming = self._window(snapshot, known, memory.crowd, memory.ends)
        return replace(memory, outlooks=known, plan=force, coming=coming)

    def _due(self, snapshot: Snapshot, force: WindowPlan) -> bool:
        """Whether something has happened that the plan does not know of."""
        columns = snapshot.columns
        if force.capacity != snapshot.cluster.capacity or not np.array_equal(force.rows, columns.rows):
            return True
        return self.mode == "reactive" and not np.array_equal(force.batches, columns.batch_size)

    def _last(self, force: WindowPlan, ends: Seconds) -> bool:
        return ends >= force.begins + (force.rounds - 0.5) * self.round

    def _window(self, snapshot: Snapshot, known: Outlooks, crowd: Int32s, begins: Seconds) -> WindowPlan:
        """The plan of a window that begins then."""
        columns, cluster = snapshot.columns, snapshot.cluster
        rho = _fairness(snapshot, known, crowd)
        speeds = np.where(snapshot.possible[:, None], columns.speeds, 0.0)
        kinds = np.where(columns.held > 0, columns.kind, -1).astype(np.int8)
        claimants = Claimants(columns.gpus, speeds, self._budgets(snapshot), rho, kinds, columns.run_seconds, known)
        draft = self.draft(claimants, cluster.capacity)
        for array in (draft.runs, draft.rank, draft.kinds):
            sealed(array)
        gap = max((found.gap for found in draft.windows), default=0.0)
        batches = columns.batch_size
        return WindowPlan(begins, columns.rows, draft.runs, draft.kinds, draft.rank, batches, cluster.capacity, gap)

    def draft(self, claimants: Claimants, capacity: Sequence[int]) -> Draft:
        """Rounds for claimants on so many GPUs of each kind, kind by kind."""
        known, gpus, weight = claimants.known, claimants.gpus, claimants.budget * claimants.rho**self.k
        service = known.optimistic * gpus * np.where(claimants.kinds >= 0, _NEARER, 1.0)
        order = np.argsort(service / weight, kind="stable")
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = np.arange(len(order))
        kinds, pace = dealt_out(claimants, capacity, order, self.round)
        after = part_done(known.done, known.gained * pace[:, None], known.whole, self.welfare)
        worth = weight[:, None] * welfare(after, self.welfare)
        horizon = self._horizon(claimants, capacity, kinds, pace)
        runs, windows, objective = np.zeros((len(gpus), horizon), dtype=bool), [], 0.0
        for kind, room in enumerate(capacity):
            here = order[kinds[order] == kind]
            if not len(here):
                continue
            rate = pace[here] * self.round
            left, alone = known.seconds[here] / rate, known.optimistic[here] / rate
            full = float(gpus[here] @ alone) / room
            left = np.minimum(left + _MARGIN, max(full, float(alone.max())))
            interpolated = float((claimants.ran[here] + known.seconds[here] / pace[here]).sum())
            price = self.lam * len(here) * room * self.round / interpolated
            claims = Claims(gpus[here], worth[here, : horizon + 1], left)
            found = plan(claims, room, price, least=full - horizon, early=self.layout == "early")
            runs[here] = found.runs
            windows.append(found)
            objective += found.welfare - (price * found.level if isfinite(price) else 0.0)
        return Draft(runs, rank, kinds, tuple(windows), objective)

    def _horizon(self, claimants: Claimants, capacity: Sequence[int], kinds: Int8s, pace: Floats) -> int:
        """Rounds to plan: no more than the makespan of what is there, or its level would no longer press anyone."""
        able = kinds >= 0
        alone = claimants.known.optimistic[able] / pace[able]
        areas = np.bincount(kinds[able], alone * claimants.gpus[able], len(capacity))
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


def _crowd(snapshot: Snapshot, before: ShockwaveCarry | None) -> Int32s:
    """By job: the most jobs that were live at once since it came, as far as is remembered."""
    rows = snapshot.columns.rows
    crowd: Int32s = np.full(len(rows), int(snapshot.possible.sum()), dtype=np.int32)
    if before is not None:
        at, known = places(before.rows, rows)
        crowd[known] = np.maximum(crowd[known], before.crowd[at[known]])
    sealed(crowd)
    return crowd


def _fairness(snapshot: Snapshot, known: Outlooks, crowd: Int32s) -> Floats:
    """By job: the ρ it would end at, if it ran from now on at its fastest."""
    columns = snapshot.columns
    contention = crowd / max(snapshot.cluster.total_gpus, 1)
    return fairness(snapshot.now - columns.submitted, columns.run_seconds, known.optimistic, contention)
