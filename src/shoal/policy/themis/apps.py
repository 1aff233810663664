"""The apps of a snapshot: which jobs are whose, what is left of them, and the agent that speaks for each.

An app is all live jobs that name it; a job that names none is an app of its own. A job that declares no work is taken
to be half done, or to take an hour if that is more; one past its declared work to have a hundredth of it left.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.bids import StandingBid
from shoal.core.job import JobSpec
from shoal.core.snapshot import Measurement, Snapshot
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.app_valuation import Use, Work, ideal_seconds, phase_seconds, row_seconds, usable
from shoal.policy.themis.agent import AppAgent
from shoal.policy.themis.carry import AppHistory, AppValuation, Reach, Reaches, Reckoning, ThemisCarry
from shoal.policy.themis.locality import Slowdown, learned, level_of
from shoal.policy.themis.protocol import Level

_UNDECLARED = 3600.0
_LATE = 0.01


@dataclass(frozen=True)
class Apps:
    """The apps of one moment, with what is remembered of them."""

    snapshot: Snapshot
    before: ThemisCarry

    @cached_property
    def members(self) -> dict[int, Int64s]:
        """By app the positions of its jobs, in order of admission."""
        app = self.snapshot.columns.app
        order = np.argsort(app, kind="stable")
        numbers, starts = np.unique(app[order], return_index=True)
        jobs = [order[a:b] for a, b in pairwise([*starts.tolist(), len(order)])]
        return dict(zip(numbers.tolist(), jobs, strict=True))

    def name(self, app: int) -> str:
        """What people call it: the app's name, or that of its only job."""
        spec = self.snapshot.specs[int(self.members[app][0])]
        return spec.app or spec.id

    @cached_property
    def left(self) -> Floats:
        """Work left by job, in its own unit; always some."""
        columns = self.snapshot.columns
        assumed = np.maximum(columns.done, columns.best_speed * _UNDECLARED)
        declared = np.maximum(columns.work - columns.done, _LATE * np.maximum(columns.done, columns.work))
        left: Floats = np.where(np.isinf(columns.work), assumed, declared)
        return np.maximum(left, 1e-9)

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
    def pasts(self) -> dict[int, AppHistory]:
        """What is remembered of each app, brought up to now; apps whose jobs are all gone stay, for more may come."""
        now, columns = self.snapshot.now, self.snapshot.columns
        departed = self.before.departed(columns.rows, now)
        pasts = {app: past for app, past in self.before.apps.items() if past.named or app in self.members}
        for app in departed.keys() & pasts.keys():
            pasts[app] = replace(pasts[app], gone=pasts[app].gone + departed[app])
        for app in set(columns.app[columns.held > 0].tolist()) & pasts.keys():
            pasts[app] = self._aged(app, pasts[app])
        # An app's past goes on as it is unless its jobs or its own words are others now.
        unlike = set(columns.app[self.before.unlike(columns.rows, columns.max_gpus)].tolist())
        spoke = {app for app, past in pasts.items() if past.heard is not None} | self.snapshot.bids.keys()
        for app in sorted(self.members.keys() & (unlike | departed.keys() | spoke)):
            past = pasts.get(app) or self._new(app)
            pasts[app] = replace(past, demand=max(past.demand, self._demand(app)), heard=self._heard(app, past))
        return pasts

    def _new(self, app: int) -> AppHistory:
        """The past of an app that has none yet; before it was seen it is taken to have been as crowded as now."""
        jobs = self.members[app]
        named = self.snapshot.specs[int(jobs[0])].app is not None
        start = float(self.snapshot.columns.submitted[jobs].min())
        return AppHistory(start, self._crowd - len(self.members) * (self.snapshot.now - start), named)

    def _demand(self, app: int) -> int:
        """The most GPUs it could use with the jobs it has, or in a phase that is to follow."""
        jobs = self.members[app]
        ahead = max((count * gpus for count, gpus, _ in self._later(jobs)), default=0)
        return max(int(self.snapshot.columns.max_gpus[jobs].sum()), ahead)

    def wanted_next(self, app: int) -> int:
        """The most GPUs it could use in the phase that follows; 0 where none does."""
        later = self._later(self.members[app])
        return later[0][0] * later[0][1] if later else 0

    @cached_property
    def _crowd(self) -> float:
        return self.before.crowd_at(self.snapshot.now)

    def _aged(self, app: int, past: AppHistory) -> AppHistory:
        """The same with what an app that holds GPUs has done since it was last asked counted in its valuation."""
        if past.valuation is None:
            return past
        seconds, held = self.snapshot.now - self.before.at, int(self.snapshot.columns.held[self.members[app]].sum())
        return replace(past, valuation=past.valuation.after(seconds, held))

    def said(self, app: int) -> StandingBid | None:
        """What the app said of itself with the jobs it has now; None where it did not, or they were others."""
        said = self.snapshot.bids.get(app)
        return said if said is not None and said.jobs == self.jobs(app) else None

    def _heard(self, app: int, past: AppHistory) -> tuple[float, float] | None:
        """When the app said what counts now, and the GPU-seconds that were left of it then."""
        said = self.said(app)
        if said is None or (past.heard is not None and past.heard[0] == said.at):
            return None if said is None else past.heard
        jobs, columns = self.members[app], self.snapshot.columns
        since = float((columns.rate[jobs] * self.unit[jobs]).sum()) * (self.snapshot.now - said.at)
        return said.at, self._rest(jobs) + since

    def _rest(self, jobs: Int64s) -> float:
        """GPU-seconds left of these jobs, an app's, and of the phases after them."""
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

    def _still(self, app: int) -> float:
        """The part of what was left when the app spoke that is left now."""
        heard = self.pasts[app].heard
        return self._rest(self.members[app]) / heard[1] if heard is not None else 1.0

    @cached_property
    def ideal(self) -> dict[int, float]:
        """T_id by app: its time on its own share of the cluster."""
        gpus, known = max(self.snapshot.cluster.total_gpus, 1), {}
        done, left = self._work_done.tolist(), self._work_left.tolist()
        for app, jobs in self.members.items():
            past, i = self.pasts[app], self._plain.get(app)
            rest = self._left_of(app) if i is None else left[i]
            total = past.gone + (_total(self._work_done, jobs) if i is None else done[i]) + rest
            crowd = self._contention(past, rest / min(gpus, past.demand))
            known[app] = max(ideal_seconds(total, past.demand, gpus, crowd), 1e-9)
        return known

    def _contention(self, past: AppHistory, rest: Seconds) -> float:
        """The average number of live apps in the life of an app that has so long to go if it is left alone.

        Until then it is taken to stay as crowded as it is. By the crowd up to now alone an app that came when few were
        there would pass for badly off until its end, though it shares with as many as all others from now on.
        """
        lived, live = self.snapshot.now - past.start, len(self.members)
        return max((self._crowd - past.crowd + live * rest) / max(lived + rest, 1e-9), 1.0)

    @cached_property
    def _plain(self) -> dict[int, int]:
        """The position of its job, of every app that has only one, means to run none later and does not speak."""
        specs, said = self.snapshot.specs, self.snapshot.bids
        sole = {app: jobs.item(0) for app, jobs in self.members.items() if len(jobs) == 1}
        return {app: i for app, i in sole.items() if not specs[i].ahead and app not in said}

    def _left_of(self, app: int) -> float:
        """GPU-seconds left of an app, by its own word where it spoke."""
        said = self.said(app)
        if said is None:
            return self._rest(self.members[app])
        # An app is held to its word: one that has more to do is also expected to take longer.
        gpus, seconds = said.rows[0]
        return gpus * seconds * self._still(app)

    def rho(self, app: int, valuation: AppValuation, wait: Seconds = 0.0, kept: int = 0) -> float:
        """The least ρ the app can still reach, were it given all it can use after a ``wait`` with what it has kept."""
        elapsed = self.snapshot.now - self.pasts[app].start
        return (elapsed + wait + valuation.fastest(wait, kept)) / self.ideal[app]

    def favourite(self, app: int) -> int:
        """The kind that suits its jobs best: on which most of them can run, and then in the fewest GPU-seconds."""
        jobs = self.members[app]

        def cost(kind: int) -> tuple[int, float]:
            able = jobs[[self.reach(i, kind)[0] > 0 for i in jobs.tolist()]]
            return -len(able), self._gpu_seconds(able, kind)

        return min(range(len(self.snapshot.cluster.kinds)), key=cost)

    def _gpu_seconds(self, jobs: Int64s, kind: int) -> float:
        """GPU-seconds left of jobs on a kind, of those that can have the gang they ask for there."""
        columns = self.snapshot.columns
        speed = columns.speeds[jobs, kind]
        able = speed > 0
        return float((self.left[jobs][able] * columns.gpus[jobs][able] / speed[able]).sum())

    def _said_seconds(self, app: int, kind: int, jobs: Sequence[int], limit: int) -> Floats | None:
        """What the app said of itself, as of now and on this kind; None where it said nothing that counts.

        It speaks of its favourite kind. On another it is as much slower as its jobs are.
        """
        said = self.said(app)
        if said is None:
            return None
        seconds, best = row_seconds(said.rows, limit) * self._still(app), self.favourite(app)
        both = np.array([i for i in jobs if self.snapshot.columns.speeds[i, [kind, best]].all()], dtype=np.int64)
        if kind == best or not len(both):
            return seconds
        slower: Floats = seconds * (self._gpu_seconds(both, kind) / self._gpu_seconds(both, best))
        return slower

    def jobs(self, app: int) -> tuple[int, ...]:
        """The admission numbers of its live jobs."""
        i = self._plain.get(app)
        return (self._rows[i],) if i is not None else tuple([self._rows[i] for i in self.members[app].tolist()])

    def agent(self, app: int, kind: int, jobs: Sequence[int], held: int) -> AppAgent:
        """The agent of an app for one kind: these jobs, in this order, and so many GPUs that it keeps."""
        cluster, past, use = self.snapshot.cluster, self.pasts[app], self.use(kind, jobs)
        reckoning, limit = self._reckoning(app, kind, jobs, use), len(use.gpus) - 1
        return AppAgent(
            app,
            self.snapshot.now - past.start,
            self.ideal[app],
            reckoning.works,
            held,
            cluster.node_size[kind],
            self._learned(past.slowdown, self.members[app]),
            limit,
            cluster.capacity[kind],
            tuple((Work.linear(s, 1, gpus),) * count for count, gpus, s in self._later(self.members[app])),
            self._said_seconds(app, kind, jobs, limit),
            reckoning,
        )

    def _reckoning(self, app: int, kind: int, jobs: Sequence[int], use: Use) -> Reckoning:
        """What follows from an app's work left: as it was, unless anything it rests on is another now."""
        left, curves = tuple(self.left[jobs].tolist()), tuple([self._known(i, kind).curve for i in jobs])
        known = self.pasts[app].reckoning
        if known is not None and known.holds(left, curves, use):
            return known
        works = tuple(self.work(i, kind) for i in jobs)
        return Reckoning(left, curves, use, works, phase_seconds(works, use))

    def _later(self, jobs: Int64s) -> list[tuple[int, int, float]]:
        """The phases its latest job says will follow: how many jobs, of how many GPUs, of how many GPU-seconds each."""
        i = int(jobs[-1])
        spec = self.snapshot.specs[i]
        if not spec.ahead:
            return []
        # Work is in samples where a model is named, and otherwise in seconds of the gang that will be asked for.
        unit = float(self.unit[i]) / spec.gpus if spec.model is None else float(self.unit[i])
        return [(n, g, work * unit * (g if spec.model is None else 1)) for n, g, work in spec.ahead]

    def use(self, kind: int, jobs: Sequence[int]) -> Use:
        """How these jobs, in this order, can use GPUs of a kind."""
        reaches = [self.reach(i, kind) for i in jobs]
        return usable(reaches, min(self.snapshot.cluster.capacity[kind], sum([most for _, most in reaches])))

    def work(self, i: int, kind: int) -> Work:
        """What is left of a job on a kind it can run on; no GPU that does not make it faster counts."""
        least, most = self.reach(i, kind)
        curve = self._known(i, kind).curve
        seconds = np.full(len(curve), np.inf)
        np.divide(self.left[i], curve, out=seconds, where=curve > 0)
        return Work(np.minimum.accumulate(seconds), least, most)

    def reach(self, i: int, kind: int) -> tuple[int, int]:
        """The fewest and the most GPUs of a kind that a job can use; (0, 0) where it cannot run."""
        known = self._reaches[kind]
        gpus = known.get(i)
        if gpus is None:
            gpus = known[i] = self._known(i, kind).gpus
        return gpus

    @cached_property
    def _reaches(self) -> tuple[dict[int, tuple[int, int]], ...]:
        """By kind and job: of gangs all, of elastic jobs those that somebody asked about."""
        columns, capacity = self.snapshot.columns, self.snapshot.cluster.capacity
        rigid = np.flatnonzero(columns.min_gpus == columns.max_gpus)
        found = []
        for kind, room in enumerate(capacity):
            able = (columns.speeds[rigid, kind] > 0) & (columns.gpus[rigid] <= room)
            gangs = np.where(able, columns.gpus[rigid], 0).tolist()
            found.append({i: (gang, gang) for i, gang in zip(rigid.tolist(), gangs, strict=True)})
        return tuple(found)

    @cached_property
    def reaches(self) -> Reaches:
        """Curves and reaches found before, of jobs that are there, to which those found now are added."""
        snapshot, before = self.snapshot, self.before.reaches
        capacity, live = snapshot.cluster.capacity, set(snapshot.columns.rows.tolist())
        same = before.perf is snapshot.perf and before.capacity == capacity
        found = {key: reach for key, reach in before.found.items() if key[0] in live} if same else {}
        return Reaches(snapshot.perf, capacity, found)

    @cached_property
    def _rests_on(self) -> list[tuple[JobSpec, int, int]]:
        """By job what its curve depends on."""
        columns = self.snapshot.columns
        return list(zip(self.snapshot.specs, columns.batch_size.tolist(), columns.measured.tolist(), strict=True))

    def _known(self, i: int, kind: int) -> Reach:
        """The curve of a job and its reach if it is elastic, as found before unless it may be another now."""
        key, rests_on = (self._rows[i], kind), self._rests_on[i]
        known = self.reaches.found.get(key)
        if known is None or not known.holds(*rests_on):
            columns = self.snapshot.columns
            most = min(int(columns.max_gpus[i]), self.snapshot.cluster.capacity[kind])
            curve = self.snapshot.perf.curve(self.snapshot.jobs.at(i), self.snapshot.cluster.kinds[kind])
            gpus = _useful(curve[: most + 1].tobytes(), int(columns.min_gpus[i]))
            known = self.reaches.found[key] = Reach(gpus, curve, *rests_on)
        return known

    def quickest(self, i: int, kind: int, gpus: int) -> int:
        """Of up to so many GPUs, the number that a job is fastest on; 0 where those are too few."""
        least, most = self.reach(i, kind)
        if gpus < least or least == most:
            return most if gpus >= most else 0
        return least + int(self._known(i, kind).curve[least : min(gpus, most) + 1].argmax())

    @cached_property
    def _rows(self) -> list[int]:
        rows: list[int] = self.snapshot.columns.rows.tolist()
        return rows

    def _learned(self, slowdown: Slowdown, jobs: Int64s) -> Slowdown:
        """What the app knows of distance after what was measured on its jobs so far."""
        running = [i for i in jobs.tolist() if self._held[i] > 1]
        seen = [told for i in running for told in self._measured(i)]
        return learned(slowdown, seen) if seen else slowdown

    @cached_property
    def _held(self) -> list[int]:
        held: list[int] = self.snapshot.columns.held.tolist()
        return held

    def _measured(self, i: int) -> Iterator[tuple[Measurement, float, Level]]:
        """What was measured on gangs of a job, the oldest first, with the rate expected of each and at which level."""
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
        """The rate of as many GPUs nearer together as it was measured, or else as it is expected well seated."""
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


@lru_cache(maxsize=4096)
def _useful(rates: bytes, least: int) -> tuple[int, int]:
    """The first number of GPUs with a rate, and the fastest; (0, 0) where there is none.

    Not where the rate first stops rising: it falls where a gang no longer fits one machine, and then rises on.
    Remembered, since many jobs train the same model.
    """
    curve = np.frombuffer(rates)
    able = np.flatnonzero(curve[least:] > 0)
    if not len(able):
        return 0, 0
    least += int(able[0])
    return least, least + int(curve[least:].argmax())
