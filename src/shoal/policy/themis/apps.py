"""The apps of a snapshot: which jobs are whose, what is left of them, and the agent that speaks for each.

An app is all live jobs that name it; a job that names none is an app of its own. A job that declares no work is taken
to be half done, or to take an hour if that is more; one past its declared work to have a hundredth of it left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shoal.core.bids import Said
from shoal.core.snapshot import Measurement, Snapshot
from shoal.core.topology import Locality
from shoal.perf.valuation import Floats, Ints, Work, heard_seconds, ideal_seconds
from shoal.policy.themis.agent import Agent
from shoal.policy.themis.locality import Slowdown, learned, level_of
from shoal.policy.themis.memory import Memory, Past, Valuation
from shoal.policy.themis.protocol import Level

_UNDECLARED = 3600.0
_LATE = 0.01


@dataclass(frozen=True)
class Apps:
    """The apps of one moment, with what is remembered of them."""

    snapshot: Snapshot
    before: Memory

    @cached_property
    def members(self) -> dict[int, Ints]:
        """By app the positions of its jobs, in order of admission."""
        app = self.snapshot.columns.app
        order = np.argsort(app, kind="stable")
        numbers, starts = np.unique(app[order], return_index=True)
        return dict(zip(numbers.tolist(), np.split(order, starts)[1:], strict=True))

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
    def pasts(self) -> dict[int, Past]:
        """What is remembered of each app, brought up to now; apps whose jobs are all gone stay, for more may come."""
        now, columns = self.snapshot.now, self.snapshot.columns
        departed = self.before.departed(columns.rows, now)
        crowd = self.before.crowd_at(now)
        pasts: dict[int, Past] = {}
        for app, past in self.before.apps.items():
            if past.named or app in self.members:
                pasts[app] = self._aged(app, replace(past, gone=past.gone + departed.get(app, 0.0)))
        for app, jobs in self.members.items():
            ahead = max((count * gpus for count, gpus, _ in self._later(jobs)), default=0)
            demand = max(int(columns.max_gpus[jobs].sum()), ahead)
            named = self.snapshot.specs[int(jobs[0])].app is not None
            past = pasts.get(app) or Past(float(columns.submitted[jobs].min()), crowd, named)
            pasts[app] = replace(past, demand=max(past.demand, demand), heard=self._heard(app, past))
        return pasts

    def _aged(self, app: int, past: Past) -> Past:
        """The same with what the app has done since it was last asked counted in its valuation."""
        if past.valuation is None or app not in self.members:
            return past
        seconds, held = self.snapshot.now - self.before.at, int(self.snapshot.columns.held[self.members[app]].sum())
        return replace(past, valuation=past.valuation.after(seconds, held))

    def said(self, app: int) -> Said | None:
        """What the app said of itself with the jobs it has now; None where it did not, or they were others."""
        said = self.snapshot.bids.get(app)
        return said if said is not None and said.jobs == self.jobs(app) else None

    def _heard(self, app: int, past: Past) -> tuple[float, float] | None:
        """When the app said what counts now, and the GPU-seconds that were left of it then."""
        said = self.said(app)
        if said is None or (past.heard is not None and past.heard[0] == said.at):
            return None if said is None else past.heard
        jobs, columns = self.members[app], self.snapshot.columns
        since = float((columns.rate[jobs] * self.unit[jobs]).sum()) * (self.snapshot.now - said.at)
        return said.at, self._rest(jobs) + since

    def _rest(self, jobs: Ints) -> float:
        """GPU-seconds left of these jobs, an app's, and of the phases after them."""
        later = sum(count * seconds for count, _, seconds in self._later(jobs))
        return float((self.left[jobs] * self.unit[jobs]).sum()) + later

    def _still(self, app: int) -> float:
        """The part of what was left when the app spoke that is left now."""
        heard = self.pasts[app].heard
        return self._rest(self.members[app]) / heard[1] if heard is not None else 1.0

    def contention(self, app: int) -> float:
        """The average number of live apps during its life."""
        past, now = self.pasts[app], self.snapshot.now
        seconds = now - past.start
        average = (self.before.crowd_at(now) - past.crowd) / seconds if seconds > 0 else 0.0
        return max(average, 1.0) if average > 0 else float(len(self.members))

    def ideal(self, app: int) -> float:
        """T_id: its time on its own share of the cluster."""
        past, jobs, columns = self.pasts[app], self.members[app], self.snapshot.columns
        said = self.said(app)
        if said is None:
            total = past.gone + float(((self.left + columns.done)[jobs] * self.unit[jobs]).sum())
            total += sum(count * seconds for count, _, seconds in self._later(jobs))
        else:  # an app is held to its word: one that has more to do is also expected to take longer
            gpus, seconds = said.rows[0]
            total = past.gone + float((columns.done[jobs] * self.unit[jobs]).sum()) + gpus * seconds * self._still(app)
        seconds = ideal_seconds(total, past.demand, max(self.snapshot.cluster.total_gpus, 1), self.contention(app))
        return max(seconds, 1e-9)

    def rho(self, app: int, valuation: Valuation) -> float:
        """ρ as it is, if the app has its own 1/N of the cluster from now on: by how much it has fallen behind."""
        share = round(self.snapshot.cluster.total_gpus / self.contention(app))
        seconds = self.snapshot.now - self.pasts[app].start + valuation.seconds(share)
        return seconds / self.ideal(app)

    def favourite(self, app: int) -> int:
        """The kind that suits its jobs best: on which most of them can run, and then in the fewest GPU-seconds."""
        jobs = self.members[app]

        def cost(kind: int) -> tuple[int, float]:
            able = jobs[[self.reaches[kind][i][0] > 0 for i in jobs.tolist()]]
            return -len(able), self._gpu_seconds(able, kind)

        return min(range(len(self.snapshot.cluster.kinds)), key=cost)

    def _gpu_seconds(self, jobs: Ints, kind: int) -> float:
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
        seconds, best = heard_seconds(said.rows, limit) * self._still(app), self.favourite(app)
        both = np.array([i for i in jobs if self.snapshot.columns.speeds[i, [kind, best]].all()], dtype=np.int64)
        if kind == best or not len(both):
            return seconds
        slower: Floats = seconds * (self._gpu_seconds(both, kind) / self._gpu_seconds(both, best))
        return slower

    def jobs(self, app: int) -> tuple[int, ...]:
        """The admission numbers of its live jobs."""
        return tuple(self.snapshot.columns.rows[self.members[app]].tolist())

    def agent(self, app: int, kind: int, jobs: Sequence[int], held: int) -> Agent:
        """The agent of an app for one kind: these jobs, in this order, and so many GPUs that it keeps."""
        cluster, past, limit = self.snapshot.cluster, self.pasts[app], self.limit(kind, jobs)
        works = tuple(self.work(i, kind) for i in jobs)
        return Agent(
            app,
            self.snapshot.now - past.start,
            self.ideal(app),
            works,
            held,
            cluster.node_size[kind],
            self._learned(past.slowdown, self.members[app]),
            limit,
            tuple((Work.linear(s, 1, gpus),) * count for count, gpus, s in self._later(self.members[app])),
            self._said_seconds(app, kind, jobs, limit),
        )

    def _later(self, jobs: Ints) -> list[tuple[int, int, float]]:
        """The phases its latest job says will follow: how many jobs, of how many GPUs, of how many GPU-seconds each."""
        i = int(jobs[-1])
        spec = self.snapshot.specs[i]
        # Work is in samples where a model is named, and otherwise in seconds of the gang that will be asked for.
        unit = float(self.unit[i]) / spec.gpus if spec.model is None else float(self.unit[i])
        return [(n, g, work * unit * (g if spec.model is None else 1)) for n, g, work in spec.ahead]

    def limit(self, kind: int, jobs: Sequence[int]) -> int:
        """The most GPUs of a kind that these jobs can use."""
        return min(self.snapshot.cluster.capacity[kind], sum(self.reaches[kind][i][1] for i in jobs))

    def work(self, i: int, kind: int) -> Work:
        """What is left of a job on a kind it can run on; no GPU that does not make it faster counts."""
        least, most = self.reaches[kind][i]
        curve = self.snapshot.perf.curve(self.snapshot.jobs.at(i), self.snapshot.cluster.kinds[kind])
        seconds = np.full(len(curve), np.inf)
        np.divide(self.left[i], curve, out=seconds, where=curve > 0)
        return Work(np.minimum.accumulate(seconds), least, most)

    @cached_property
    def reaches(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By kind and job: the fewest and the most GPUs of it the job can use; (0, 0) where it cannot run."""
        columns, capacity = self.snapshot.columns, self.snapshot.cluster.capacity
        rigid = columns.min_gpus == columns.max_gpus
        found = []
        for kind, room in enumerate(capacity):
            able = (columns.speeds[:, kind] > 0) & (columns.gpus <= room)
            gangs = np.where(rigid & able, columns.gpus, 0).tolist()
            reach = [(gang, gang) for gang in gangs]
            for i in np.flatnonzero(~rigid).tolist():
                reach[i] = self._reach(i, kind)
            found.append(tuple(reach))
        return tuple(found)

    def _reach(self, i: int, kind: int) -> tuple[int, int]:
        columns, cluster = self.snapshot.columns, self.snapshot.cluster
        least, most = int(columns.min_gpus[i]), min(int(columns.max_gpus[i]), cluster.capacity[kind])
        curve = self.snapshot.perf.curve(self.snapshot.jobs.at(i), cluster.kinds[kind])[: most + 1]
        able = np.flatnonzero(curve[least:] > 0)
        if not len(able):
            return 0, 0
        least += int(able[0])
        stops = np.flatnonzero(np.diff(curve[least:]) <= 0)
        return least, least + int(stops[0]) if len(stops) else most

    def _learned(self, slowdown: Slowdown, jobs: Ints) -> Slowdown:
        """What the app knows of distance after what was measured on its jobs so far."""
        running = jobs[self.snapshot.columns.held[jobs] > 1].tolist()
        seen = [(i, m) for i in running for m in reversed(self.snapshot.measurements(i)) if m.gpus > 1]
        return learned(slowdown, [(m, *self._expected(i, m)) for i, m in seen]) if seen else slowdown

    def _expected(self, i: int, seen: Measurement) -> tuple[float, Level]:
        """The rate of as many GPUs nearer together as it was measured, or else as it is expected well seated."""
        nearer = [
            m
            for m in self.snapshot.measurements(i)
            if (m.kind, m.gpus, m.batch_size) == (seen.kind, seen.gpus, seen.batch_size) and m.locality < seen.locality
        ]
        if nearer:
            best = min(nearer, key=lambda m: m.locality)
            return best.rate, level_of(best.gpus, best.locality)
        cluster = self.snapshot.cluster
        curve = self.snapshot.perf.curve(self.snapshot.jobs.at(i), cluster.kinds[seen.kind])
        local = seen.gpus <= cluster.node_size[seen.kind]
        at = level_of(seen.gpus, Locality.SAME_NODE if local else Locality.CROSS_NODE)
        return float(curve[min(seen.gpus, len(curve) - 1)]), at
