"""The apps of a snapshot: their jobs, the work left of them, and their agents.

An app is all live jobs that name it; a job that names none is an app of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from math import inf

import numpy as np
from msgspec.structs import replace

from shoal.core.arrays import Floats, Indices, Int64s
from shoal.core.bids import StandingBid
from shoal.core.job import JobSpec
from shoal.core.snapshot import Measurement, Snapshot
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.app_valuation import Use, Work, ideal_seconds, phase_seconds, row_seconds, usable, useful_range
from shoal.perf.work_prior import remaining_work
from shoal.policy.carried_rows import match_rows
from shoal.policy.themis.admission import AppAdmission
from shoal.policy.themis.agent import AppAgent
from shoal.policy.themis.carry import AppHistory, AppValuation, GpuRange, GpuRanges, ThemisCarry, WorkEstimate
from shoal.policy.themis.locality import Slowdown, learned, level_of
from shoal.policy.themis.protocol import Level
from shoal.policy.themis.singles import Singles, classed, records_now


@dataclass(frozen=True)
class Apps:
    """The apps of a snapshot, with the carry of the last decision (``before``).

    ``nothing`` is ρ of an app without GPUs over ρ with its fewest, ``limit`` that of `AppAdmission`. The jobs at the
    positions ``alone`` are apps of one job, which are in columns (``singles``); the rest is of the other apps. In a
    ``plain`` auction no option distorts, delays or seats bids, and apps that keep what they have are carried.
    """

    snapshot: Snapshot
    before: ThemisCarry
    nothing: float = inf
    limit: float = inf
    alone: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    plain: bool = False

    @cached_property
    def _others(self) -> Indices:
        """The positions of the jobs of apps that are not in columns."""
        return np.delete(np.arange(len(self.snapshot.columns)), self.alone)

    @cached_property
    def admission(self) -> AppAdmission:
        """All apps, of which some may wait for admission."""
        app = self.snapshot.columns.app
        order = self._others[np.argsort(app[self._others], kind="stable")]
        numbers, starts = np.unique(app[order], return_index=True)
        jobs = [order[a:b] for a, b in pairwise([*starts.tolist(), len(order)])]
        return AppAdmission(self.snapshot, dict(zip(numbers.tolist(), jobs, strict=True)), self.before, self.limit)

    @cached_property
    def members(self) -> dict[int, Int64s]:
        """By admitted app the positions of its jobs, in order of arrival."""
        return self.admission.members

    @property
    def count(self) -> int:
        """The number of admitted apps."""
        return len(self.members) + len(self.alone)

    @cached_property
    def singles(self) -> Singles:
        """The apps of one job."""
        snapshot, at, columns = self.snapshot, self.alone, self.snapshot.columns
        records = records_now(snapshot, self.before, at, self.count, self._app_seconds)
        records, rates = classed(snapshot, self.before.singles, at, records)
        gpus, elapsed = max(snapshot.cluster.total_gpus, 1), snapshot.now - records.start
        share, left = np.minimum(gpus, records.demand), self._work_left[at]
        rest = left / share
        shared = (self._app_seconds - records.app_seconds + self.count * rest) / np.maximum(elapsed + rest, 1e-9)
        ideal = np.maximum((self._work_done[at] + left) / share * np.maximum(shared, 1.0), 1e-9)
        held, heads = columns.held[at].astype(np.int64), columns.measured[at].astype(np.int64)
        return Singles(at, records, rates, held, heads, elapsed, ideal, self.left[at], records.slowdown.copy())

    def name(self, app: int) -> str:
        """The app's name, or that of its only job."""
        spec = self.snapshot.specs[int(self.members[app][0])]
        return spec.app or spec.id

    @cached_property
    def left(self) -> Floats:
        """Expected work left by job, in its own unit; above 0."""
        columns = self.snapshot.columns
        return remaining_work(columns.work, columns.done, columns.best_speed)

    @cached_property
    def unit(self) -> Floats:
        """GPU-seconds that a unit of each job's work takes on the requested gang and the kind that suits it best."""
        columns = self.snapshot.columns
        speed = columns.best_speed.copy()
        for i in np.flatnonzero((speed <= 0) & (columns.min_gpus < columns.max_gpus)).tolist():
            job = self.snapshot.jobs.at(i)
            curves = [self.snapshot.perf.curve(job, kind) for kind in self.snapshot.cluster.kinds]
            speed[i] = max(float((c[1:] / np.arange(1, len(c))).max()) for c in curves) * columns.gpus[i]
        unit: Floats = np.where(speed > 0, columns.gpus / np.where(speed > 0, speed, 1.0), 0.0)
        return unit

    @cached_property
    def histories(self) -> dict[int, AppHistory]:
        """Each app's history up to now; a named app without live jobs stays, since it may get more."""
        now, columns = self.snapshot.now, self.snapshot.columns
        departed = self.before.departed(columns.rows, now)
        histories = {app: past for app, past in self.before.apps.items() if past.named or app in self.members}
        for app in departed.keys() & histories.keys():
            histories[app] = replace(histories[app], gone=histories[app].gone + departed[app])
        others = self._others
        running = others[columns.held[others] > 0]
        apps, at = np.unique(columns.app[running], return_inverse=True)
        held = dict(zip(apps.tolist(), np.bincount(at, columns.held[running]).astype(int).tolist(), strict=True))
        for app in held.keys() & histories.keys():
            histories[app] = self._advanced(histories[app], held[app])
        # A history stays as it is unless the app's jobs or its own bid changed.
        changed = set(columns.app[others[self.before.changed(columns.rows, columns.max_gpus)[others]]].tolist())
        bidding = {app for app, past in histories.items() if past.own_bid is not None} | self.snapshot.bids.keys()
        changed |= self.members.keys() - histories.keys()
        for app in sorted(self.members.keys() & (changed | departed.keys() | bidding)):
            past = histories.get(app) or self._new(app)
            demand = max(past.demand, self._demand(app))
            histories[app] = replace(past, demand=demand, own_bid=self._bid_record(app, past))
        return histories

    def _new(self, app: int) -> AppHistory:
        """Return the history of a new app; before its first snapshot as many apps as now are assumed live."""
        jobs = self.members[app]
        named = self._spec(jobs[0]).app is not None
        waited = self.admission.waited(app)
        start = self.snapshot.now if waited else float(self.snapshot.columns.submitted[jobs].min())
        return AppHistory(start, self._app_seconds - self.count * (self.snapshot.now - start), named)

    def _demand(self, app: int) -> int:
        """The most GPUs that its live jobs, or those of a later phase, could use."""
        jobs = self.members[app]
        ahead = max((count * gpus for count, gpus, _ in self._later(jobs)), default=0)
        return max(int(self.snapshot.columns.max_gpus[jobs].sum()), ahead)

    def wanted_next(self, app: int) -> int:
        """The most GPUs the app could use in its next phase; 0 without one."""
        later = self._later(self.members[app])
        return later[0][0] * later[0][1] if later else 0

    @cached_property
    def _app_seconds(self) -> float:
        return self.before.app_seconds_at(self.snapshot.now)

    def _advanced(self, past: AppHistory, held: int) -> AppHistory:
        """The history of an app on GPUs, its valuation reduced by the work done since the last decision."""
        if past.valuation is None:
            return past
        valuation = past.valuation.after(self.snapshot.now - self.before.at, held)
        return past if valuation is past.valuation else replace(past, valuation=valuation)

    def own_bid(self, app: int) -> StandingBid | None:
        """Return the app's own bid in force; None without one, or if the app's live jobs have changed since."""
        bid = self.snapshot.bids.get(app)
        return bid if bid is not None and bid.jobs == self.jobs(app) else None

    def _bid_record(self, app: int, past: AppHistory) -> tuple[float, float] | None:
        """The time of the app's own bid in force, and the GPU-seconds left at that time."""
        bid = self.own_bid(app)
        if bid is None or (past.own_bid is not None and past.own_bid[0] == bid.at):
            return None if bid is None else past.own_bid
        jobs, columns = self.members[app], self.snapshot.columns
        since = float((columns.rate[jobs] * self.unit[jobs]).sum()) * (self.snapshot.now - bid.at)
        return bid.at, self._rest(jobs) + since

    def _rest(self, jobs: Int64s) -> float:
        """GPU-seconds left of an app's jobs and of the phases after them."""
        later = sum(count * seconds for count, _, seconds in self._later(jobs))
        return _total(self._work_left, jobs) + later

    @cached_property
    def _work_left(self) -> Floats:
        """GPU-seconds left by job."""
        return self.left * self.unit

    @cached_property
    def _work_done(self) -> Floats:
        """GPU-seconds done by job."""
        return self.snapshot.columns.done * self.unit

    def _fraction_left(self, app: int) -> float:
        """Return the fraction now left of the work that was left at the app's own bid."""
        bid = self.histories[app].own_bid
        return self._rest(self.members[app]) / bid[1] if bid is not None else 1.0

    @cached_property
    def ideal(self) -> dict[int, float]:
        """T_id by app: its time on its own share of the cluster."""
        gpus, known = max(self.snapshot.cluster.total_gpus, 1), {}
        done, left = self._work_done.tolist(), self._work_left.tolist()
        for app, jobs in self.members.items():
            past, i = self.histories[app], self._single_jobs.get(app)
            rest = self._left_of(app) if i is None else left[i]
            total = past.gone + (_total(self._work_done, jobs) if i is None else done[i]) + rest
            contention = self._contention(past, rest / min(gpus, past.demand))
            known[app] = max(ideal_seconds(total, past.demand, gpus, contention), 1e-9)
        return known

    def _contention(self, past: AppHistory, rest: Seconds) -> float:
        """Return the average number of live apps over the life of an app that has ``rest`` seconds left on its own.

        The present number of live apps is assumed to stay until then. By the past average alone, an app that arrived
        when few were live would have a high ρ until its end, though it now shares with as many as all others.
        """
        lived, live = self.snapshot.now - past.start, self.count
        return max((self._app_seconds - past.app_seconds + live * rest) / max(lived + rest, 1e-9), 1.0)

    @cached_property
    def _single_jobs(self) -> dict[int, int]:
        """The position of the only job of each app that has one job, no later phases and no own bid."""
        sole = {app: jobs.item(0) for app, jobs in self.members.items() if len(jobs) == 1}
        return {app: i for app, i in sole.items() if not self._spec(i).ahead and app not in self.snapshot.bids}

    def _left_of(self, app: int) -> float:
        """GPU-seconds left of an app, by its own bid where it made one."""
        bid = self.own_bid(app)
        if bid is None:
            return self._rest(self.members[app])
        # An app is held to its bid: one that bids with more work also has a longer ideal time.
        gpus, seconds = bid.rows[0]
        return gpus * seconds * self._fraction_left(app)

    def rho(self, app: int, valuation: AppValuation, wait: Seconds = 0.0, kept: int = 0) -> float:
        """The least ρ the app can still reach: after ``wait`` seconds on the ``kept`` GPUs it has all it can use."""
        elapsed = self.snapshot.now - self.histories[app].start
        return (elapsed + wait + valuation.fastest(wait, kept)) / self.ideal[app]

    def best_kind(self, app: int) -> int:
        """The kind that suits its jobs best: on which most of them can run, and then in the fewest GPU-seconds."""
        jobs = self.members[app]

        def cost(kind: int) -> tuple[int, float]:
            able = jobs[[self.gpu_range(i, kind)[0] > 0 for i in jobs.tolist()]]
            return -len(able), self._gpu_seconds(able, kind)

        return min(range(len(self.snapshot.cluster.kinds)), key=cost)

    def _gpu_seconds(self, jobs: Int64s, kind: int) -> float:
        """Return the GPU-seconds left, on a kind, of the jobs that can have the gang they ask for on it."""
        columns = self.snapshot.columns
        speed = columns.speeds[jobs, kind]
        able = speed > 0
        return float((self.left[jobs][able] * columns.gpus[jobs][able] / speed[able]).sum())

    def _bid_seconds(self, app: int, kind: int, jobs: Sequence[int], limit: int) -> Floats | None:
        """By number of GPUs, the seconds left by the app's own bid; None without one.

        The bid is for the kind that suits the app best; on another its seconds grow by its jobs' slowdown there.
        """
        bid = self.own_bid(app)
        if bid is None:
            return None
        seconds, best = row_seconds(bid.rows, limit) * self._fraction_left(app), self.best_kind(app)
        both = np.array([i for i in jobs if self.snapshot.columns.speeds[i, [kind, best]].all()], dtype=np.int64)
        if kind == best or not len(both):
            return seconds
        slower: Floats = seconds * (self._gpu_seconds(both, kind) / self._gpu_seconds(both, best))
        return slower

    def jobs(self, app: int) -> tuple[int, ...]:
        """The admission numbers of its live jobs."""
        i = self._single_jobs.get(app)
        return (self._rows[i],) if i is not None else tuple([self._rows[i] for i in self.members[app].tolist()])

    def agent(self, app: int, kind: int, jobs: Sequence[int], held: int) -> AppAgent:
        """The agent of an app for one kind: these jobs, in this order, with ``held`` GPUs kept under lease."""
        cluster, past, use = self.snapshot.cluster, self.histories[app], self.use(kind, jobs)
        estimate, limit = self._estimate(app, kind, jobs, use), len(use.gpus) - 1
        return AppAgent(
            app,
            self.snapshot.now - past.start,
            self.ideal[app],
            estimate.works,
            held,
            cluster.node_size[kind],
            self._learned(past.slowdown, self.members[app]),
            limit,
            cluster.capacity[kind],
            tuple((Work.linear(s, 1, gpus),) * count for count, gpus, s in self._later(self.members[app])),
            self._bid_seconds(app, kind, jobs, limit),
            estimate,
            self.nothing,
        )

    def _estimate(self, app: int, kind: int, jobs: Sequence[int], use: Use) -> WorkEstimate:
        """The estimate of an app's work left: the carried one while its inputs are the same."""
        left, curves = tuple(self.left[jobs].tolist()), tuple([self._known(i, kind).curve for i in jobs])
        known = self.histories[app].estimate
        if known is not None and known.holds(left, curves, use):
            return known
        works = tuple(self.work(i, kind) for i in jobs)
        return WorkEstimate(left, curves, use, works, phase_seconds(works, use))

    def _spec(self, i: int) -> JobSpec:
        """Return a job's specification; to list all specifications would take longer."""
        return self.snapshot.register.specs[self._rows[i]]

    def _later(self, jobs: Int64s) -> list[tuple[int, int, float]]:
        """The later phases that its latest job declares: jobs, GPUs of each, GPU-seconds of each."""
        i = int(jobs[-1])
        spec = self._spec(i)
        if not spec.ahead:
            return []
        # Work is in samples where a model is named, and otherwise in seconds of the gang that will be asked for.
        unit = float(self.unit[i]) / spec.gpus if spec.model is None else float(self.unit[i])
        return [(n, g, work * unit * (g if spec.model is None else 1)) for n, g, work in spec.ahead]

    def use(self, kind: int, jobs: Sequence[int]) -> Use:
        """How these jobs, in this order, can use GPUs of a kind."""
        gpu_ranges = [self.gpu_range(i, kind) for i in jobs]
        return usable(gpu_ranges, min(self.snapshot.cluster.capacity[kind], sum([most for _, most in gpu_ranges])))

    def work(self, i: int, kind: int) -> Work:
        """Return the work left of a job on a kind it can run on; GPUs that do not make it faster are left out."""
        least, most = self.gpu_range(i, kind)
        curve = self._known(i, kind).curve
        if least == most:
            peak, seconds = float(curve[: least + 1].max()), np.full(least + 1, np.inf)
            if peak > 0:
                seconds[least] = self.left[i] / peak
            return Work(seconds, least, most)
        seconds = np.full(len(curve), np.inf)
        np.divide(self.left[i], curve, out=seconds, where=curve > 0)
        return Work(np.minimum.accumulate(seconds), least, most)

    def gpu_range(self, i: int, kind: int) -> tuple[int, int]:
        """The fewest and the most GPUs of a kind that a job can use; (0, 0) where it cannot run."""
        gang = self._gangs[kind][i]
        return self._known(i, kind).gpus if gang < 0 else (gang, gang)

    @cached_property
    def _gangs(self) -> tuple[list[int], ...]:
        """By kind and job the GPUs of a gang that can run there, 0 of one that cannot, −1 of an elastic job."""
        columns = self.snapshot.columns
        rigid, gangs = columns.min_gpus == columns.max_gpus, []
        for kind, gpus in enumerate(self.snapshot.cluster.capacity):
            able = (columns.speeds[:, kind] > 0) & (columns.gpus <= gpus)
            gangs.append(np.where(rigid, np.where(able, columns.gpus, 0), -1).tolist())
        return tuple(gangs)

    @cached_property
    def node_kind(self) -> Int64s:
        """By node its kind."""
        return np.array(self.snapshot.cluster.node_kind, dtype=np.int64)

    @cached_property
    def current(self) -> list[int]:
        """By job the kind it holds now."""
        current: list[int] = self.snapshot.columns.kind.tolist()
        return current

    @cached_property
    def gpu_ranges(self) -> GpuRanges:
        """Ranges of live jobs found by earlier decisions, with those that this decision adds."""
        snapshot, before, capacity = self.snapshot, self.before.gpu_ranges, self.snapshot.cluster.capacity
        if before.perf is not snapshot.perf or before.capacity != capacity:
            return GpuRanges(snapshot.perf, capacity)
        found = dict(before.found)
        ended = self.before.rows[~match_rows(snapshot.columns.rows, self.before.rows)[1]]
        for key in product(ended.tolist(), range(len(capacity))):
            found.pop(key, None)
        return GpuRanges(snapshot.perf, capacity, found)

    def _known(self, i: int, kind: int) -> GpuRange:
        """A job's rates on a kind and its range."""
        known = self._known_now[kind].get(i)
        if known is None:
            known = self._known_now[kind][i] = self._looked_up(i, kind)
        return known

    @cached_property
    def _known_now(self) -> tuple[dict[int, GpuRange], ...]:
        """By kind and job the rates and ranges that this decision has looked up."""
        return tuple({} for _ in self.snapshot.cluster.kinds)

    def _looked_up(self, i: int, kind: int) -> GpuRange:
        """A job's rates on a kind and its range: the carried ones while their inputs are the same."""
        columns, key = self.snapshot.columns, (self._rows[i], kind)
        inputs = self._spec(i), columns.batch_size.item(i), columns.measured.item(i)
        known = self.gpu_ranges.found.get(key)
        if known is None or not known.holds(*inputs):
            most = min(int(columns.max_gpus[i]), self.snapshot.cluster.capacity[kind])
            curve = self.snapshot.perf.curve(self.snapshot.jobs.at(i), self.snapshot.cluster.kinds[kind])
            gpus = useful_range(curve[: most + 1].tobytes(), int(columns.min_gpus[i]))
            known = self.gpu_ranges.found[key] = GpuRange(gpus, curve, *inputs)
        return known

    def fastest_count(self, i: int, kind: int, gpus: int) -> int:
        """The number of GPUs, up to ``gpus``, on which a job is fastest; 0 if it cannot run on so few."""
        least, most = self.gpu_range(i, kind)
        if gpus < least or least == most:
            return most if gpus >= most else 0
        return least + int(self._known(i, kind).curve[least : min(gpus, most) + 1].argmax())

    @cached_property
    def _rows(self) -> list[int]:
        rows: list[int] = self.snapshot.columns.rows.tolist()
        return rows

    def _learned(self, slowdown: Slowdown, jobs: Int64s) -> Slowdown:
        """Return the app's slowdown by distance, corrected by the measurements of its running jobs."""
        return self.learned_by([i for i in jobs.tolist() if self._held[i] > 1], slowdown)

    def learned_by(self, running: Sequence[int], slowdown: Slowdown) -> Slowdown:
        """Return an app's slowdown by distance, corrected by the measurements of these jobs on more than one GPU."""
        seen = [measured for i in running for measured in self._measured(i)]
        return learned(slowdown, seen) if seen else slowdown

    @cached_property
    def _held(self) -> list[int]:
        held: list[int] = self.snapshot.columns.held.tolist()
        return held

    def _measured(self, i: int) -> Iterator[tuple[Measurement, float, Level]]:
        """Measurements of a job's gangs, the oldest first, with the rate expected of each and at which level."""
        measured = self.snapshot.measurements(i)
        nearest: dict[tuple[int, int, int], Measurement] = {}
        for m in measured:
            best = nearest.setdefault((m.kind, m.gpus, m.batch_size), m)
            if m.locality < best.locality:
                nearest[m.kind, m.gpus, m.batch_size] = m
        for m in reversed(measured):
            if m.gpus > 1:
                yield m, *self._expected(i, m, nearest[m.kind, m.gpus, m.batch_size])

    def _expected(self, i: int, seen: Measurement, nearest: Measurement) -> tuple[float, Level]:
        """Return the measured rate of as many GPUs nearer together, or else the expected one on the fewest nodes."""
        if nearest.locality < seen.locality:
            return nearest.rate, level_of(nearest.gpus, nearest.locality)
        cluster = self.snapshot.cluster
        curve = self._known(i, seen.kind).curve
        local = seen.gpus <= cluster.node_size[seen.kind]
        at = level_of(seen.gpus, Locality.SAME_NODE if local else Locality.CROSS_NODE)
        return float(curve[min(seen.gpus, len(curve) - 1)]), at


def _total(column: Floats, jobs: Int64s) -> float:
    """The sum over an app's jobs; most have one."""
    return float(column[jobs[0]] if len(jobs) == 1 else column[jobs].sum())
